//! What is stored, as text that people can read in `redis-cli`. The layout is described in `scripts/record.lua`;
//! `scripts/queue.lua` writes most of it.

use std::time::Duration;

use fencepost_core::{
    claim::{Claimant, Holder, Mode, Waiter},
    limits::Ttl,
    owner::Owner,
};
use serde::{Deserialize, Serialize};

/// Where the JSON begins in a lock.
const HEADER: usize = 81;

/// How a lock begins that nobody waits for; the owner value follows.
pub(crate) const UNQUEUED: &str = "1-";

/// The holder's or waiter's particulars.
#[derive(Debug, Serialize, Deserialize)]
struct Particulars<C> {
    /// Where its client hears messages.
    channel: String,
    /// Of one that gathers votes: its mode and its ticket, so that it can get its place back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vote: Option<String>,
    #[serde(flatten)]
    claimant: C,
}

/// The particulars as they are stored.
pub(crate) fn json(claimant: &Claimant, channel: &str) -> String {
    json_with_vote(claimant, channel, None)
}

/// The same for one that gathers votes.
pub(crate) fn json_with_vote(claimant: &Claimant, channel: &str, vote: Option<String>) -> String {
    let particulars = Particulars { channel: channel.to_owned(), vote, claimant };
    // Strings, a number and a list of strings always serialize.
    serde_json::to_string(&particulars).unwrap_or_else(|_| "{}".to_owned())
}

/// A lock that nobody waits for, as the plain `SET NX` writes it.
pub(crate) fn unqueued(owner: &str, ttl: Ttl, since_unix_ms: u64, json: &str) -> String {
    let mut value = String::with_capacity(HEADER + json.len());
    value.push_str(UNQUEUED);
    value.push_str(owner);
    push_number(&mut value, 0, 14);
    push_number(&mut value, ttl.millis(), 11);
    push_number(&mut value, since_unix_ms, 14);
    value.push_str(json);
    value
}

/// With leading zeros, at least `width` digits.
fn push_number(text: &mut String, mut number: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len();
    while number > 0 {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    let first = first.min(digits.len() - width);
    text.extend(digits[first..].iter().map(|digit| char::from(*digit)));
}

/// A lock as it is stored.
#[derive(Debug)]
pub(crate) struct LockRecord<'a> {
    owner: Owner,
    /// When the lease ends, in ms since 1970 on the server's clock; `None` when the key's expiry tells.
    ends_unix_ms: Option<u64>,
    since_unix_ms: u64,
    json: &'a str,
    /// Of one that holds beside others.
    beside: Option<Beside<'a>>,
}

/// How one holds that does not hold alone.
#[derive(Clone, Copy, Debug)]
enum Beside<'a> {
    Reader,
    /// The slots, as in `0,1`.
    Permits(&'a str),
}

impl<'a> LockRecord<'a> {
    /// `None` when it is not ours.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let value = std::str::from_utf8(value).ok()?;
        let json = value.get(HEADER..).filter(|json| json.starts_with('{'))?;
        let (json, beside) = match value.get(..2)? {
            UNQUEUED | "1q" => (json, None),
            "1r" => (json, Some(Beside::Reader)),
            "1p" => json.split_once('\n').map(|(json, slots)| (json, Some(Beside::Permits(slots))))?,
            _ => return None,
        };
        let ends_unix_ms = value.get(42..56)?.parse().ok()?;
        Some(Self {
            owner: value.get(2..42)?.parse().ok()?,
            ends_unix_ms: (!value.starts_with(UNQUEUED)).then_some(ends_unix_ms),
            since_unix_ms: value.get(67..HEADER)?.parse().ok()?,
            json,
            beside,
        })
    }

    /// What is left of the lease, given the server's clock and what is left of the key. `None` when it is over,
    /// or the lock is free and only kept for its queue.
    pub(crate) fn left(&self, now_unix_ms: u64, key_left: Option<Duration>) -> Option<Duration> {
        if self.owner == Owner::from_bytes(Default::default()) {
            return None;
        }
        match self.ends_unix_ms {
            Some(ends) => ends.checked_sub(now_unix_ms).filter(|ms| *ms > 0).map(Duration::from_millis),
            None => key_left,
        }
    }

    /// The holder, with what is left of its lease. Of permits, `limit` is how many there are, where that is known.
    pub(crate) fn holder(&self, left: Option<Duration>, limit: Option<u32>) -> Holder {
        let slots: Box<[u32]> = match self.beside {
            Some(Beside::Permits(text)) => slots(text).collect(),
            Some(Beside::Reader) | None => Box::default(),
        };
        let count = slots.len() as u32; // of u32 slots, none twice
        let mode = match self.beside {
            None => Mode::Exclusive,
            Some(Beside::Reader) => Mode::Shared,
            Some(Beside::Permits(_)) => Mode::Permits { count, of: limit.unwrap_or(count) },
        };
        Holder {
            claimant: claimant(self.json),
            owner: Some(self.owner),
            mode,
            slots,
            fence: None,
            since_unix_ms: Some(self.since_unix_ms),
            expires_in: left,
        }
    }
}

/// The slots of permits, as `0,1`.
pub(crate) fn slots(text: &str) -> impl Iterator<Item = u32> {
    text.split(',').filter_map(|slot| slot.parse().ok())
}

/// What all holders of a hash have in common.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// The limit, of permits.
    pub(crate) limit: Option<u32>,
}

impl Crowd {
    /// The field of the hash that has it.
    pub(crate) const FIELD: &str = "#";

    /// `None` when it is not ours.
    pub(crate) fn parse(head: &str) -> Option<Self> {
        match head.get(..2)? {
            "1r" => Some(Self { limit: None }),
            "1p" => Some(Self { limit: Some(head.get(2..12)?.parse().ok()?) }),
            _ => None,
        }
    }
}

/// How a claim's want is written for the scripts.
pub(crate) fn wanted(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".to_owned(),
        Mode::Shared => "r".to_owned(),
        Mode::Permits { count, of } => format!("{count}/{of}"),
    }
}

fn mode(wanted: &str) -> Option<Mode> {
    match wanted {
        "x" => Some(Mode::Exclusive),
        "r" => Some(Mode::Shared),
        permits => {
            let (count, of) = permits.split_once('/')?;
            Some(Mode::Permits { count: count.parse().ok()?, of: of.parse().ok()? })
        }
    }
}

/// A waiter as it is stored.
#[derive(Debug)]
pub(crate) struct WaiterRecord<'a> {
    since_unix_ms: u64,
    /// The channel of its client.
    pub(crate) channel: &'a str,
    mode: Mode,
    json: &'a str,
}

impl<'a> WaiterRecord<'a> {
    pub(crate) fn parse(record: &'a str) -> Option<Self> {
        let (head, json) = record.split_once('\n')?;
        let channel = head.get(26..)?;
        let (channel, mode) = match channel.split_once(' ') {
            Some((channel, wanted)) => (channel, self::mode(wanted)?),
            None => (channel, Mode::Exclusive),
        };
        Some(Self { since_unix_ms: head.get(12..26)?.parse().ok()?, channel, mode, json })
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter { claimant: claimant(self.json), mode: self.mode, since_unix_ms: Some(self.since_unix_ms) }
    }
}

/// Particulars are for people only: a newer version's, which cannot be read, must not hide the lock.
fn claimant(json: &str) -> Claimant {
    serde_json::from_str::<Particulars<Claimant>>(json).map(|particulars| particulars.claimant).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_nothing_foreign_does() {
        let owner = Owner::random().unwrap();
        let claimant =
            Claimant { host: "h\n\"".into(), pid: 7, user: "이".into(), labels: vec![("a".into(), "b".into())] };
        let value = unqueued(&owner.to_string(), Ttl::DEFAULT, 1_700_000_000_000, &json(&claimant, "ns:wake:1"));
        let record = LockRecord::parse(value.as_bytes()).unwrap();
        assert!(
            value.starts_with(&format!("1-{owner}{:014}{:011}{:014}{{", 0, 30_000, 1_700_000_000_000_u64)),
            "{value}"
        );
        let left = record.left(1_700_000_000_000, Some(Duration::from_secs(3)));
        let holder = record.holder(left, None);
        assert_eq!((holder.owner, holder.claimant), (Some(owner), claimant));
        assert_eq!(holder.since_unix_ms, Some(1_700_000_000_000));
        assert_eq!(holder.expires_in, Some(Duration::from_secs(3)));

        let newer = value.replacen('1', "2", 1);
        for foreign in ["", "1", "x", &"1".repeat(100), &newer, &value[..80], &format!("1-{}", "é".repeat(50))] {
            assert!(LockRecord::parse(foreign.as_bytes()).is_none(), "{foreign}");
        }
        assert!(LockRecord::parse(&[0xff; 100]).is_none());
    }
}
