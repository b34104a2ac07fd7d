//! How long a million holds take to check, and to read: `cargo run --release -p fencepost-history --example million`. With a name
//! behind that, the history stays in a file, for `fencepost lab check FILE`.

#![allow(clippy::disallowed_methods)] // measures itself and decides nothing by it

use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    time::{Duration, Instant},
};

use fencepost_history::{Answer, Event, Options, Verb, What, check, read};

const HOLDS: u64 = 1_000_000;
const LOCKS: u64 = 100;
const CLIENTS: u64 = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kept = std::env::args().nth(1);
    let file = kept.clone().map_or_else(|| std::env::temp_dir().join("fencepost-million.jsonl"), Into::into);
    write_to(BufWriter::new(File::create(&file)?))?;
    let begin = Spent::now();
    let history = read(BufReader::with_capacity(1 << 20, File::open(&file)?)).whole()?;
    println!("read    {} events, {} MB: {}", history.events().len(), file.metadata()?.len() / 1_000_000, begin.since());
    let begin = Spent::now();
    let findings = check(&history, &Options::default());
    println!("checked {} holds: {}, {} findings", findings.measures.grants, begin.since(), findings.list.len());
    if kept.is_none() {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

fn write_to(mut file: impl Write) -> Result<(), Box<dyn std::error::Error>> {
    for hold in 0..HOLDS {
        let (by, lock) = (format!("client {}", hold % CLIENTS), format!("lock {}", hold % LOCKS));
        let (grant, from) = (format!("grant {hold}"), hold * 1000);
        let mut line = |at, by: &str, what| -> std::io::Result<()> {
            serde_json::to_writer(&mut file, &Event { at: from + at, by: by.to_owned(), what })?;
            file.write_all(b"\n")
        };
        line(0, &by, What::asks(Verb::Acquire, lock.clone(), grant.clone()))?;
        let (fence, ttl, until) = (Some(hold + 1), Some(30_000_000_000), Some(from + 29_000_000_000));
        line(100, &by, What::Ok { answer: Answer::Granted, fence, ttl, from: None, until, slots: None })?;
        let write = What::Write { grant: grant.clone(), fence: None, basis: hold, version: hold + 1, taken: true };
        line(200, "ledger", write)?;
        line(300, &by, What::asks(Verb::Release, lock, grant))?;
        line(400, &by, What::says(Answer::Released))?;
    }
    Ok(file.flush()?)
}

/// Time that went by, and time on a processor: on a busy machine only the second one says what the work costs.
struct Spent {
    at: Instant,
    on_processor: Option<Duration>,
}

impl Spent {
    fn now() -> Self {
        let said = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        let nanos = said.split(' ').next().and_then(|nanos| nanos.parse().ok());
        Self { at: Instant::now(), on_processor: nanos.map(Duration::from_nanos) }
    }

    fn since(&self) -> String {
        let now = Self::now();
        let on_processor = self.on_processor.zip(now.on_processor).map(|(then, now)| now.saturating_sub(then));
        format!("{:.2?}, {:.2?} of it on a processor", now.at - self.at, on_processor.unwrap_or_default())
    }
}
