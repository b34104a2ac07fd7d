//! How long a million holds take to check, and to read: `cargo run --release -p fencepost-history --example million`.

#![allow(clippy::disallowed_methods)] // measures itself and decides nothing by it

use std::{io::Write, time::Instant};

use fencepost_history::{Answer, Event, Options, Verb, What, check, read};

const HOLDS: u64 = 1_000_000;
const LOCKS: u64 = 100;
const CLIENTS: u64 = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = Vec::new();
    for hold in 0..HOLDS {
        let (by, lock) = (format!("client {}", hold % CLIENTS), format!("lock {}", hold % LOCKS));
        let (grant, from) = (format!("grant {hold}"), hold * 1000);
        let mut line = |at, by: &str, what| -> std::io::Result<()> {
            serde_json::to_writer(&mut text, &Event { at: from + at, by: by.to_owned(), what })?;
            text.write_all(b"\n")
        };
        line(0, &by, What::asks(Verb::Acquire, lock.clone(), grant.clone()))?;
        let (fence, ttl, until) = (Some(hold + 1), Some(30_000_000_000), Some(from + 29_000_000_000));
        line(100, &by, What::Ok { answer: Answer::Granted, fence, ttl, from: None, until, slots: None })?;
        let write = What::Write { grant: grant.clone(), fence: None, basis: hold, version: hold + 1, taken: true };
        line(200, "ledger", write)?;
        line(300, &by, What::asks(Verb::Release, lock, grant))?;
        line(400, &by, What::says(Answer::Released))?;
    }
    let begin = Instant::now();
    let history = read(text.as_slice()).whole()?;
    println!("read    {} events, {} MB: {:?}", history.events().len(), text.len() / 1_000_000, begin.elapsed());
    let begin = Instant::now();
    let findings = check(&history, &Options::default());
    println!("checked {} holds: {:?}, {} findings", findings.measures.grants, begin.elapsed(), findings.list.len());
    Ok(())
}
