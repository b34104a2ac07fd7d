//! Servers outlive nobody: when the process that started them is killed, and can end nothing itself any more, a shell
//! that waits for that ends them.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{ChildStdin, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Reads one line for each server, and at the end of its input, which is the end of the process that writes them, sends
/// each its signal. A process that began at another instant is another one with the same number. Whoever has the mark and no
/// line was started in the last moment, and ends as well.
const WATCH: &str = r#"
while read -r signal pid born; do servers="$servers $signal/$pid/$born"; done
for server in $servers; do
    signal=${server%%/*} rest=${server#*/}
    pid=${rest%/*} born=${rest#*/}
    began=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)
    [ "$began" = "$born" ] && kill -s "$signal" "$pid"
done
for marked in $(grep -lszFx "$1" /proc/[0-9]*/environ); do
    pid=${marked#/proc/} pid=${pid%/environ}
    case "$servers " in *"/$pid/"*) ;; *) kill -s KILL "$pid" ;; esac
done
"#;

/// In the environment of what this process starts.
const MARK: &str = "FENCEPOST_STARTED_BY";

/// Marks a command as ours, so that what it starts ends with this process also when that is killed before
/// [`end_with_us`] was called.
pub fn mark(command: &mut Command) -> &mut Command {
    command.env(MARK, us())
}

/// Has a process of ours, such as a server, ended with this signal (`KILL` for instance) when this process is killed.
pub fn end_with_us(server: u32, signal: &str) {
    static WATCHER: OnceLock<Option<Mutex<ChildStdin>>> = OnceLock::new();
    let (Some(watcher), Some(born)) = (WATCHER.get_or_init(watch), began(server)) else { return };
    let line = format!("{signal} {server} {born}\n");
    // One that is gone watches nothing: then it is as it would be without.
    let _ = watcher.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
}

fn watch() -> Option<Mutex<ChildStdin>> {
    let mut shell = Command::new("sh");
    // In a group of its own: an interrupt from the terminal is not for it.
    shell
        .args(["-c", WATCH, "sh", &format!("{MARK}={}", us())])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    shell.spawn().ok()?.stdin.map(Mutex::new)
}

/// This process and no later one of its number.
fn us() -> String {
    let pid = std::process::id();
    format!("{pid}-{}", began(pid).unwrap_or_default())
}

/// When a process began, in ticks since the machine did.
fn began(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it stands in brackets, and may hold anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    /// What this does for the process that it runs in is done here for another one, which can be killed.
    #[test]
    fn a_server_ends_with_the_process_that_was_killed() {
        let mut server = Command::new("sleep").arg("60").spawn().expect("a process");
        let mut other = Command::new("sleep").arg("60").spawn().expect("a process");
        let mut marked = Command::new("sleep").arg("60").env(MARK, "1-2").spawn().expect("a process");
        let mut watcher = Command::new("sh");
        watcher.args(["-c", WATCH, "sh", "FENCEPOST_STARTED_BY=1-2"]);
        let mut watcher = watcher.stdin(Stdio::piped()).spawn().expect("a shell");
        let mut lines = watcher.stdin.take().expect("a pipe was asked for");
        let born = began(server.id()).expect("it runs");
        writeln!(lines, "KILL {} {born}", server.id()).expect("it reads");
        writeln!(lines, "KILL {} 1", other.id()).expect("it reads"); // somebody else's number by now
        thread::sleep(Duration::from_millis(50));
        for process in [&mut server, &mut marked] {
            assert!(process.try_wait().expect("our child").is_none(), "as long as we live");
        }
        drop(lines);
        for process in [&mut server, &mut marked] {
            let ended = (0..2000).any(|_| {
                thread::sleep(Duration::from_millis(10));
                process.try_wait().expect("our child").is_some()
            });
            assert!(ended, "it lives on");
        }
        watcher.wait().expect("our child");
        assert!(other.try_wait().expect("our child").is_none(), "another process was killed");
        other.kill().and_then(|()| other.wait()).expect("our child");
    }
}
