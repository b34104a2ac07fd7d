//! Renewing, giving back, and taking from a holder by force.

use fencepost_core::{
    claim::{Claim, Forced, Holding, Release, Renewal},
    clock::Sent,
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::LockName,
};
use futures_util::future::join_all;
use redis::Value;

use crate::{
    answer::{holder, renewal, renewals_of, text},
    failure::Failure,
    record,
    replicas::Kept,
    store::RedisStore,
};

/// Leases renewed by one command. More would hold up everybody else on the server for too long.
const BATCH: usize = 250;

impl RedisStore {
    /// By one command without a script, where the server knows such; `None` when that does not settle it.
    async fn extend_without_script(&self, claim: &Claim) -> Option<Result<Renewal, Error>> {
        let key = self.room.keys.lock(claim.name());
        let renewal = self.scriptless.renewal(&key, claim)?;
        let counted_from = Sent::now(&*self.clock);
        match self.room.nodes.ask_kept(&key, &renewal).await {
            Ok(Kept { value: Value::Okay, short }) => {
                Some(self::renewal(claim, claim.name(), "renewed", counted_from, short.as_ref()))
            }
            Err(failure) if failure.kind == ErrorKind::Unavailable => {
                Some(Err(failure.error(Operation::Renew, Some(claim.name()))))
            }
            Ok(_) | Err(_) => {
                self.scriptless.forget(claim.owner());
                None
            }
        }
    }

    pub(crate) async fn extend(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Error>> {
        if let [claim] = claims
            && let [_] = claim.holding.wants()
            && let Some(answer) = self.extend_without_script(claim).await
        {
            return vec![answer];
        }
        let each: Vec<(&Claim, &LockName)> =
            claims.iter().flat_map(|claim| claim.holding.wants().iter().map(|want| (*claim, &want.name))).collect();
        let together = self.room.nodes.together(&each, BATCH, |(_, name)| self.room.keys.lock(name));
        let calls = together.iter().map(|each| {
            let keys = each.iter().map(|(_, name)| self.room.keys.lock(name));
            let arguments =
                each.iter().flat_map(|(claim, _)| [claim.owner().to_string(), claim.ttl.millis().to_string()]);
            (keys.collect(), arguments.collect())
        });
        let calls: Vec<_> = calls.collect();
        let counted_from = Sent::now(&*self.clock);
        // The client waits for a third of the TTL, and then takes every answer for lost.
        let within = claims.iter().map(|claim| claim.ttl.get() / 4).min().unwrap_or_default();
        let answers = self.room.nodes.call_many(&self.room.scripts.renew, &calls, within).await;
        let renewals = together.into_iter().zip(answers);
        let mut renewals = renewals.flat_map(|(each, answer)| renewals_of(each, answer, counted_from));
        // Of several locks, the first that is not renewed speaks for all.
        let of = |claim: &&Claim| {
            let mut of_claim = renewals.by_ref().take(claim.holding.wants().len()).collect::<Vec<_>>();
            let worst = of_claim.iter().position(|answer| !matches!(answer, Ok(Renewal::Renewed { .. }))).unwrap_or(0);
            of_claim.swap_remove(worst) // a claim has one want or more
        };
        claims.iter().map(of).collect()
    }

    pub(crate) async fn give_back(&self, holding: &Holding) -> Result<Release, Error> {
        self.room.leave(&holding.owner);
        let answers = join_all(holding.wants().iter().map(|want| self.give_one_back(&want.name, holding))).await;
        let answers = answers.into_iter().collect::<Result<Vec<_>, Error>>()?;
        // Of several locks, the first that was not ours any more speaks for all.
        Ok(answers.into_iter().find(|answer| *answer != Release::Released).unwrap_or(Release::Released))
    }

    async fn give_one_back(&self, name: &LockName, holding: &Holding) -> Result<Release, Error> {
        let key = self.room.keys.lock(name);
        if let Some(removal) = self.scriptless.removal(&key, &holding.owner) {
            match self.room.nodes.ask(&key, &removal).await {
                Ok(Value::Int(1)) => return Ok(Release::Released),
                Err(failure) if failure.kind == ErrorKind::Unavailable => {
                    return Err(failure.error(Operation::Release, Some(name)));
                }
                Ok(_) | Err(_) => {} // somebody waits, or it is not ours any more: the script knows
            }
        }
        let unqueued = format!("{}{}", record::UNQUEUED, holding.owner);
        let answer = self.room.nodes.call(&self.room.scripts.release, &self.room.keys.all(name), &[&unqueued]).await;
        let answer = answer.and_then(|value| match value {
            Value::Int(1) => Ok(Release::Released),
            Value::Int(0) => Ok(Release::AlreadyExpired),
            Value::Int(-1) => Ok(Release::HeldByOther),
            _ => Err(Failure::puzzling()),
        });
        answer.map_err(|failure| failure.error(Operation::Release, Some(name)))
    }

    pub(crate) async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Error> {
        if if_fence.is_some() {
            return Ok(Forced::OtherFence(None)); // no grant of Redis has a fence
        }
        let keys = self.room.keys.all(name);
        // Not repeated: by then a waiter may hold it, who would lose it too.
        let answer = self.room.nodes.call_unrepeated(&self.room.scripts.force, &keys, &[""; 0]).await;
        let answer = answer.and_then(|value| match &value {
            Value::Array(parts) => match &parts[..] {
                [free] if text(free) == Some("free") => Ok(Forced::NotHeld),
                [broken, value, left] if text(broken) == Some("broken") => {
                    Ok(Forced::Broken(Some(holder(value, left).ok_or_else(Failure::puzzling)?)))
                }
                _ => Err(Failure::puzzling()),
            },
            _ => Err(Failure::puzzling()),
        });
        answer.map_err(|failure| failure.error(Operation::Force, Some(name)))
    }
}
