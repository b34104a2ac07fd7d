//! Claims of anything but one lock alone: readers, permits, several locks in one step; and what readers and permits can
//! become. `scripts/holders.lua` says how they are kept.

use fencepost_core::{
    claim::{Claim, Claimed, Mode, Patience, Renewal},
    clock::Sent,
    error::{Applied, Error, ErrorKind, Operation},
    name::LockName,
    refusal::Refusal,
};
use redis::Value;

use crate::{
    answer::{ClaimAnswer, renewal, text},
    failure::Failure,
    nodes::Reach,
    record,
    store::RedisStore,
};

impl RedisStore {
    pub(crate) async fn take_beside(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        let json = self.particulars(&claim.claimant);
        let [want] = claim.holding.wants() else {
            return self.take_several(claim, &json).await;
        };
        if let Some(refusal) = Refusal::of(want.mode) {
            return Err(self.refused(Operation::Claim, refusal, &want.name));
        }
        // What is free needs no connection for messages. Who waits already asks for the place at once.
        if patience == Patience::Once || !self.room().is_waiting(claim.owner()) {
            let claimed = self.ask_the_queue(claim, &json, "once", Reach::Counted).await?;
            if patience == Patience::Once || !matches!(claimed, Claimed::Busy(_)) {
                return Ok(claimed);
            }
        }
        self.take_a_place(claim, &json).await
    }

    /// In one step, or not at all: several locks have no queue in common.
    async fn take_several(&self, claim: &Claim, json: &str) -> Result<Claimed, Error> {
        let wants = claim.holding.wants();
        if !self.room().nodes.is_one() || wants.iter().any(|want| matches!(want.mode, Mode::Permits { .. })) {
            let said = "several locks in one step need one server for all of them, and permits are none of them";
            let failure = Failure::new(ErrorKind::Unsupported, Applied::No, said);
            return Err(failure.error(Operation::Claim, Some(claim.name())));
        }
        let keys: Vec<String> = wants.iter().flat_map(|want| self.room().keys.all(&want.name)).collect();
        let (owner, ttl) = (claim.owner().to_string(), claim.ttl.millis().to_string());
        let wanted: Vec<String> = wants.iter().map(|want| record::wanted(want.mode)).collect();
        let arguments: Vec<&str> = [&*owner, &ttl, json].into_iter().chain(wanted.iter().map(String::as_str)).collect();
        let counted_from = Sent::now(&*self.clock);
        let failed = |failure: Failure| failure.error(Operation::Claim, Some(claim.name()));
        let script = &self.room().scripts.claim_several;
        let kept = self.room().nodes.call_kept(script, &keys, &arguments).await.map_err(failed)?;
        let answer = ClaimAnswer::read(&claim.holding, kept.value).map_err(failed)?;
        self.claimed(claim, answer, counted_from, kept.short).await
    }

    pub(crate) async fn become_reader(&self, claim: &Claim) -> Result<Renewal, Error> {
        self.scriptless.forget(claim.owner());
        let name = claim.name();
        let (owner, ttl) = (claim.owner().to_string(), claim.ttl.millis().to_string());
        let counted_from = Sent::now(&*self.clock);
        let script = &self.room().scripts.downgrade;
        let kept = self.room().nodes.call_kept(script, &self.room().keys.all(name), &[&owner, &ttl]).await;
        let kept = kept.map_err(|failure| failure.error(Operation::Renew, Some(name)))?;
        renewal(claim, name, text(&kept.value).unwrap_or_default(), counted_from, kept.short.as_ref())
    }

    pub(crate) async fn set_limit(&self, name: &LockName, of: u32) -> Result<Option<u32>, Error> {
        if of == 0 {
            return Err(self.refused(Operation::Resize, Refusal::NoPermits, name));
        }
        let failed = |failure: Failure| failure.error(Operation::Resize, Some(name));
        let script = &self.room().scripts.resize;
        // Not sent again: it would tell the new limit as the one before.
        let answer = self.room().nodes.call_unrepeated(script, &self.room().keys.all(name), &[&of.to_string()]).await;
        match answer.map_err(failed)? {
            Value::Array(parts) => match &parts[..] {
                [unused] if text(unused) == Some("unused") => Ok(None),
                [unlike] if text(unlike) == Some("unlike") => {
                    Err(self.refused(Operation::Resize, Refusal::LockInUse, name))
                }
                [was, Value::Int(limit)] if text(was) == Some("was") => {
                    u32::try_from(*limit).map(Some).map_err(|_| failed(Failure::puzzling()))
                }
                _ => Err(failed(Failure::puzzling())),
            },
            _ => Err(failed(Failure::puzzling())),
        }
    }
}
