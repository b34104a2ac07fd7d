//! What the table keeps of a claimant, and how holders are shown.

use std::time::Duration;

use fencepost_core::{
    claim::{Busy, Claimant, Holder, Mode},
    fence::Fence,
    limits::Ttl,
    owner::{OWNER_BYTES, Owner},
};

/// The claimant as the table keeps it.
pub(crate) fn json(claimant: &Claimant) -> String {
    // Strings and numbers: nothing in it can fail to be written.
    serde_json::to_string(claimant).unwrap_or_else(|_| "{}".to_owned())
}

/// A claimant of a newer version may have more to say; one that cannot be read at all is shown as nobody.
pub(crate) fn claimant(json: &str) -> Claimant {
    serde_json::from_str(json).unwrap_or_default()
}

/// The holder in the way, from the columns of an answer.
pub(crate) fn holder(json: Option<&str>, fence: Option<i64>, since: Option<i64>, left: Option<i64>) -> Option<Holder> {
    Some(Holder {
        claimant: claimant(json?),
        owner: None,
        mode: Mode::Exclusive,
        slots: Box::default(),
        fence: fence.and_then(fence_of),
        since_unix_ms: since.and_then(|ms| u64::try_from(ms).ok()),
        expires_in: left.map(millis),
    })
}

pub(crate) fn busy(holder: Option<Holder>, ahead: Option<i64>) -> Busy {
    Busy { holder, ahead: ahead.and_then(|ahead| u64::try_from(ahead).ok()), ..Busy::default() }
}

pub(crate) fn fence_of(number: i64) -> Option<Fence> {
    u64::try_from(number).ok().and_then(Fence::new)
}

pub(crate) fn owner(bytes: &[u8]) -> Option<Owner> {
    <[u8; OWNER_BYTES]>::try_from(bytes).ok().map(Owner::from_bytes)
}

/// A TTL as a parameter: at most a year, which fits.
pub(crate) fn ttl(ttl: Ttl) -> i64 {
    ttl.millis() as i64
}

pub(crate) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}
