//! What the functions in the database answer, read.

use fencepost_core::{
    claim::{Busy, Forced, Holder, LockState, Mode, Waiter},
    name::LockName,
};
use serde::Deserialize;
use tokio_postgres::{Row, types::FromSql};

use crate::{failure::Failure, record};

/// The one column of the one row of an answer.
pub(crate) fn only<'a, T: FromSql<'a>>(rows: &'a [Row]) -> Result<T, Failure> {
    rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(Failure::puzzling)
}

/// What `claim.sql` and `several.sql` answer.
#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum ClaimAnswer {
    Granted { issued: i64, slots: Option<Vec<u32>> },
    Busy(InTheWay),
    Queued(InTheWay),
    Refused { limit: Option<u32>, nth: Option<usize> },
}

/// Who holds.
#[derive(Deserialize)]
pub(crate) struct InTheWay {
    holder: Option<String>,
    holder_fence: Option<i64>,
    since_ms: Option<i64>,
    left_ms: Option<i64>,
    ahead: Option<i64>,
    /// Which of several locks it is, counted from 1 in the order of their names.
    pub(crate) nth: Option<usize>,
}

impl ClaimAnswer {
    pub(crate) fn read(rows: &[Row]) -> Option<Self> {
        serde_json::from_str(rows.first()?.try_get(0).ok()?).ok()
    }
}

impl InTheWay {
    pub(crate) fn busy(&self) -> Busy {
        let holder = record::holder(self.holder.as_deref(), self.holder_fence, self.since_ms, self.left_ms);
        record::busy(holder, self.ahead)
    }
}

/// One row of the listing.
pub(crate) struct Seen {
    pub(crate) name: LockName,
    waits: bool,
    holder: Holder,
}

impl Seen {
    pub(crate) fn read(row: &Row) -> Option<Self> {
        let name = LockName::new(row.try_get::<_, &str>(0).ok()?).ok()?;
        let json: Option<&str> = row.try_get(3).ok()?;
        let mut holder = record::holder(
            Some(json.unwrap_or("{}")),
            row.try_get(4).ok()?,
            row.try_get(5).ok()?,
            row.try_get(6).ok()?,
        )?;
        holder.owner = row.try_get::<_, Option<&[u8]>>(2).ok()?.and_then(record::owner);
        let number = |place: usize| {
            let number: Option<i32> = row.try_get(place).ok()?;
            Some(number.and_then(|number| u32::try_from(number).ok()))
        };
        holder.mode = match (row.try_get(7).ok()?, number(8)?, number(9)?) {
            (true, _, _) => Mode::Shared,
            (false, Some(count), of) => Mode::Permits { count, of: of.unwrap_or(count) },
            (false, None, _) => Mode::Exclusive,
        };
        let slots: Option<Vec<i32>> = row.try_get(10).ok()?;
        holder.slots = slots.into_iter().flatten().filter_map(|slot| u32::try_from(slot).ok()).collect();
        Some(Self { name, waits: row.try_get(1).ok()?, holder })
    }

    pub(crate) fn add_to(self, state: &mut LockState) {
        if self.waits {
            let Holder { claimant, mode, since_unix_ms, .. } = self.holder;
            state.waiters.push(Waiter { claimant, mode, since_unix_ms });
        } else {
            state.holders.push(self.holder);
        }
    }
}

pub(crate) fn forced(row: &Row) -> Option<Forced> {
    let fence: Option<i64> = row.try_get(2).ok()?;
    match row.try_get::<_, Option<&str>>(0).ok()?? {
        "free" => Some(Forced::NotHeld),
        "fence" => Some(Forced::OtherFence(fence.and_then(record::fence_of))),
        "broken" => {
            let holder = record::holder(row.try_get(1).ok()?, fence, row.try_get(3).ok()?, row.try_get(4).ok()?);
            Some(Forced::Broken(holder))
        }
        _ => None,
    }
}
