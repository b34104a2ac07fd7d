//! `observe`: who leads an election.

use fencepost::{
    Leader,
    clock::{self, BootClock},
};
use serde::Serialize;

use super::{LOOK_EVERY, to_json, view::Person};
use crate::{
    arguments::{Global, Named},
    exit::Ending,
    take, when,
};

/// The leader as programs see it.
#[derive(Debug, Serialize)]
struct News<'a> {
    at_unix_ms: u64,
    name: &'a str,
    leader: Option<Leading<'a>>,
}

#[derive(Debug, Serialize)]
struct Leading<'a> {
    term: u64,
    word: &'a str,
    #[serde(flatten)]
    who: Person<'a>,
}

/// Who leads, and each change, until interrupted or nobody reads.
pub(crate) fn observe(global: &Global, named: &Named) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?.for_efficiency();
        let mut observer = locks.election(named.name.as_str())?.observe();
        loop {
            let leader = tokio::select! {
                leader = observer.next() => leader?,
                () = until_nobody_reads() => return Ok(Ending::answered()),
            };
            let line = if global.json { json(named, leader.as_ref()) } else { text(named, leader.as_ref()) };
            if !crate::write(&format!("{line}\n"))? {
                return Ok(Ending::answered());
            }
        }
    })
}

/// Without a change nothing is written, and nothing would tell.
async fn until_nobody_reads() {
    while !crate::nobody_reads() {
        clock::sleep(&BootClock, LOOK_EVERY).await;
    }
}

fn json(named: &Named, leader: Option<&Leader>) -> String {
    let leader =
        leader.map(|leader| Leading { term: leader.term, word: &leader.word, who: Person::of(&leader.claimant) });
    to_json(&News { at_unix_ms: clock::wall_unix_ms(&BootClock), name: named.name.as_str(), leader })
}

fn text(named: &Named, leader: Option<&Leader>) -> String {
    let at = when::instant(clock::wall_unix_ms(&BootClock));
    let said = match leader {
        None => "has no leader".into(),
        Some(Leader { term, claimant, word }) => {
            let word = if word.is_empty() { String::new() } else { format!(": {}", when::harmless(word)) };
            format!("is led by {}, term {term}{word}", when::claimant(claimant))
        }
    };
    format!("{at} {} {said}", when::harmless(named.name.as_str()))
}
