//! The laboratory's client processes, where the command `fencepost` is not at hand. See `fencepost_lab::agent`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let role = std::env::args().nth(1).ok_or("usage: fencepost-agent ROLE, and orders on the standard input")?;
    fencepost_lab::agent::run(serde_json::from_str(&role)?)
}
