//! What the scripts answer.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Busy, Claim, Holder, Holding, LossReason, Mode, Renewal, Want},
    clock::Sent,
    error::{Error, Operation},
    name::LockName,
    refusal::Refusal,
};
use redis::{FromRedisValue, Value};

use crate::{
    failure::Failure,
    record::{self, LockRecord},
    replicas::Kept,
};

/// What the scripts answer to a claim.
pub(crate) enum ClaimAnswer {
    Granted(Arc<[u32]>),
    Busy(Busy),
    Queued(Busy),
    Refused(Refusal, LockName),
}

impl ClaimAnswer {
    pub(crate) fn read(holding: &Holding, answer: Value) -> Result<Self, Failure> {
        let Value::Array(parts) = &answer else { return Err(Failure::puzzling()) };
        // Where several are asked for, the last part says which of them it is about, counted from 1.
        let which = |n: &[Value]| match n {
            [] => Some((holding.name(), None)),
            [Value::Int(n)] => {
                let want = holding.wants().get(usize::try_from(*n).ok()?.checked_sub(1)?)?;
                Some((&want.name, Some(want.name.clone())))
            }
            _ => None,
        };
        match &parts[..] {
            [granted, slots] if text(granted) == Some("granted") => {
                Ok(Self::Granted(record::slots(text(slots).unwrap_or_default()).collect()))
            }
            [unlike, Value::Int(limit), n @ ..] if text(unlike) == Some("unlike") => {
                let (name, _) = which(n).ok_or_else(Failure::puzzling)?;
                let limit = u32::try_from(*limit).map_err(|_| Failure::puzzling())?;
                let refusal = if limit == 0 { Refusal::LockInUse } else { Refusal::SemaphoreInUse { of: limit } };
                Ok(Self::Refused(refusal, name.clone()))
            }
            [what, value, left, Value::Int(waiters), n @ ..] => {
                let (_, lock) = which(n).ok_or_else(Failure::puzzling)?;
                let mut holder = holder(value, left).ok_or_else(Failure::foreign)?;
                if let (Mode::Permits { count, .. }, Mode::Permits { of, .. }) = (holder.mode, holding.wants()[0].mode)
                {
                    holder.mode = Mode::Permits { count, of };
                }
                let busy = Busy { lock, holder: Some(holder), ahead: u64::try_from(*waiters).ok() };
                match text(what) {
                    Some("busy") => Ok(Self::Busy(busy)),
                    Some("queued") => Ok(Self::Queued(busy)),
                    _ => Err(Failure::puzzling()),
                }
            }
            _ => Err(Failure::puzzling()),
        }
    }
}

pub(crate) fn holder(value: &Value, left: &Value) -> Option<Holder> {
    let (Value::BulkString(value), Value::Int(left)) = (value, left) else { return None };
    let left = Duration::from_millis(u64::try_from(*left).ok()?);
    Some(LockRecord::parse(value)?.holder(Some(left), None))
}

/// The answers of one call, one for each lock.
pub(crate) fn renewals_of(
    claims: &[(&Claim, &LockName)],
    answer: Result<Kept, Failure>,
    counted_from: Sent,
) -> Vec<Result<Renewal, Error>> {
    let answers = answer.and_then(|kept| {
        let answers = Vec::<String>::from_redis_value(kept.value).map_err(|_| Failure::puzzling())?;
        if answers.len() == claims.len() { Ok((answers, kept.short)) } else { Err(Failure::puzzling()) }
    });
    match answers {
        Ok((answers, short)) => {
            let answers = claims.iter().zip(answers);
            answers.map(|((claim, name), answer)| renewal(claim, name, &answer, counted_from, short.as_ref())).collect()
        }
        Err(failure) => claims.iter().map(|(_, name)| Err(failure.error(Operation::Renew, Some(name)))).collect(),
    }
}

pub(crate) fn renewal(
    claim: &Claim,
    name: &LockName,
    answer: &str,
    counted_from: Sent,
    short: Option<&Failure>,
) -> Result<Renewal, Error> {
    let renewed = match short {
        None => Ok(Renewal::Renewed { counted_from, ttl: claim.ttl.get() }),
        // The replicas may end it earlier: the deadline must not move.
        Some(short) => Err(short.error(Operation::Renew, Some(name))),
    };
    let alone = |want: &Want| want.name == *name && want.mode == Mode::Exclusive;
    match answer {
        "renewed" => renewed,
        "persisted" => {
            tracing::warn!(
                lock = %name,
                "the lock's key had lost its expiry (was PERSIST run on it?); the renewal gave it a new one"
            );
            renewed
        }
        "deleted" => Ok(Renewal::Lost(LossReason::Deleted)),
        "taken" => Ok(Renewal::Lost(LossReason::TakenOver)),
        // Those who hold beside each other are in the way of one that held alone, not of one that was among them.
        "left out" if claim.holding.wants().iter().any(alone) => Ok(Renewal::Lost(LossReason::TakenOver)),
        "left out" => Ok(Renewal::Lost(LossReason::Deleted)),
        "foreign" => Err(Failure::foreign().error(Operation::Renew, Some(name))),
        _ => Err(Failure::puzzling().error(Operation::Renew, Some(name))),
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
