//! Several locks in one claim: one transaction takes all of them if all are free, else none.
//!
//! Such a claim has no place in a queue, since the queues of several locks have no order in common. Who finds one of them held
//! is told which, and takes them one after the other.

use fencepost_core::{
    claim::{Busy, Claim, Mode, Want},
    error::{Applied, ErrorKind},
};

use crate::{
    api::{KeyValue, MAX_TXN_OPS, TxnRequest, below, none_below, put},
    failure::Failure,
    queue::{Held, Queue, Standing, Taken},
};

/// The most locks in one transaction: one operation each, and one to read the barrier.
const MOST: usize = 100;
const _: () = assert!(MOST < MAX_TXN_OPS);

impl Queue {
    pub(crate) async fn take_several(&self, claim: &Claim, wants: &[Want]) -> Result<Taken, Failure> {
        if wants.len() > MOST {
            return Err(not_in_one_step("more locks than fit into one transaction"));
        }
        if wants.iter().any(|want| want.mode != Mode::Exclusive) {
            return Err(not_in_one_step("shared locks among several"));
        }
        let prefixes: Vec<_> = wants.iter().map(|want| self.keys.lock(&want.name)).collect();
        let record = self.record(claim, Mode::Exclusive).to_json();
        let asked = self.ask(claim, |_, lease| TxnRequest {
            compare: prefixes.iter().map(|prefix| none_below(prefix)).collect(),
            success: self.ledger.keys(claim.owner()).iter().map(|key| put(key, &record, lease)).collect(),
            failure: prefixes.iter().map(|prefix| below(prefix).oldest(1).op()).collect(),
        });
        let mut asked = asked.await?;
        if asked.answer.succeeded {
            for want in wants {
                self.ledger.is_first(&want.name, asked.seen);
            }
            return Ok(asked.alone());
        }
        let oldest: Vec<_> = std::mem::take(&mut asked.answer).firsts().take(wants.len()).flatten().collect();
        let keys = self.ledger.keys(claim.owner());
        let is_ours = |kv: &&KeyValue| keys.contains(&kv.key);
        match oldest.iter().filter(is_ours).count() {
            0 => {}
            all if all == wants.len() => {
                // A repeat of a claim that was applied.
                let held = Held::by(oldest.into_iter().next().ok_or_else(Failure::puzzling)?, asked.seen);
                return Ok(asked.stands(Standing::Holds(held), Busy::default()));
            }
            _ => {
                // One of ours was removed by somebody.
                self.leave(claim).await?;
                return Err(Failure::place_lost());
            }
        }
        let in_the_way = wants
            .iter()
            .zip(&prefixes)
            .find_map(|(want, prefix)| Some((want, prefix, oldest.iter().find(|kv| kv.key.starts_with(prefix))?)));
        let (want, prefix, oldest) = in_the_way.ok_or_else(Failure::puzzling)?;
        if !self.keys.is_claim(prefix, &oldest.key) {
            self.not_placed(claim, asked.unclear).await?;
            return Err(not_in_one_step("locks with keys below them that are no claims"));
        }
        if let Some(refusal) = self.misfit(prefix, oldest)? {
            self.not_placed(claim, asked.unclear).await?;
            return Ok(asked.stands(Standing::Refused(refusal), Busy::default()));
        }
        let taken = self.busy(claim, asked, oldest).await?;
        Ok(Taken { busy: Busy { lock: Some(want.name.clone()), ..taken.busy }, ..taken })
    }
}

fn not_in_one_step(what: &str) -> Failure {
    Failure::new(ErrorKind::Unsupported, Applied::No, format!("etcd does not take {what} in one step"))
        .advise("take them one after the other")
}
