//! What a listing shows of a lock, and of the group of the same name: as JSON and as a table. Never the owner value.

use std::{collections::BTreeMap, fmt};

use fencepost::{
    Group, GroupMember,
    claim::{Claimant, Holder, LockState, Mode, Waiter},
};
use serde::Serialize;

use crate::when;

/// What goes by one name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named<'a> {
    name: &'a str,
    holders: &'a [Holder],
    waiters: &'a [Waiter],
    members: &'a [GroupMember],
}

impl<'a> Named<'a> {
    /// All names of a store, sorted.
    pub(crate) fn all(states: &'a [LockState], groups: &'a [Group]) -> Vec<Self> {
        let mut all: BTreeMap<&str, Self> = BTreeMap::new();
        for LockState { name, holders, waiters } in states {
            let named = all.entry(name.as_str()).or_default();
            (named.holders, named.waiters) = (holders, waiters);
        }
        for Group { name, members } in groups {
            all.entry(name).or_default().members = members;
        }
        all.into_iter().map(|(name, named)| Self { name, ..named }).collect()
    }

    pub(crate) fn one(state: &'a LockState, members: &'a [GroupMember]) -> Self {
        Self { name: state.name.as_str(), holders: &state.holders, waiters: &state.waiters, members }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.members.is_empty()
    }
}

/// A lock as programs see it.
#[derive(Debug, Serialize)]
pub(crate) struct Lock<'a> {
    name: &'a str,
    holders: Vec<Party<'a>>,
    waiters: Vec<Party<'a>>,
    /// Those of the group of that name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<Member<'a>>,
}

/// A member of a group as programs see it.
#[derive(Debug, Serialize)]
struct Member<'a> {
    id: &'a str,
    #[serde(flatten)]
    who: Person<'a>,
    /// It is taken for dead when it has shown no sign of life for so long.
    ttl_ms: u128,
}

/// A holder or waiter as programs see it.
#[derive(Debug, Serialize)]
pub(crate) struct Party<'a> {
    #[serde(flatten)]
    who: Person<'a>,
    #[serde(flatten)]
    how: How<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u128>,
}

/// Somebody as programs see it.
#[derive(Debug, Serialize)]
pub(crate) struct Person<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
}

/// How a lock is held or wanted.
#[derive(Debug, Serialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
enum How<'a> {
    Exclusive,
    Shared,
    Permits {
        permits: u32,
        of: u32,
        /// Those that are held.
        #[serde(skip_serializing_if = "<[u32]>::is_empty")]
        slots: &'a [u32],
    },
}

impl<'a> Lock<'a> {
    pub(crate) fn of(named: &Named<'a>) -> Self {
        Self {
            name: named.name,
            holders: named.holders.iter().map(Party::holding).collect(),
            waiters: named.waiters.iter().map(Party::waiting).collect(),
            members: named.members.iter().map(Member::of).collect(),
        }
    }
}

impl<'a> Member<'a> {
    fn of(member: &'a GroupMember) -> Self {
        Self { id: &member.id, who: Person::of(&member.claimant), ttl_ms: member.ttl.as_millis() }
    }
}

impl<'a> Party<'a> {
    pub(crate) fn holding(holder: &'a Holder) -> Self {
        Self {
            who: Person::of(&holder.claimant),
            how: How::of(holder.mode, &holder.slots),
            fence: holder.fence.map(|fence| fence.get()),
            since_unix_ms: holder.since_unix_ms,
            expires_in_ms: holder.expires_in.map(|left| left.as_millis()),
        }
    }

    pub(crate) fn waiting(waiter: &'a Waiter) -> Self {
        Self {
            who: Person::of(&waiter.claimant),
            how: How::of(waiter.mode, &[]),
            fence: None,
            since_unix_ms: waiter.since_unix_ms,
            expires_in_ms: None,
        }
    }
}

impl<'a> Person<'a> {
    pub(crate) fn of(claimant: &'a Claimant) -> Self {
        let labels = claimant.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        Self { host: claimant.host.as_str(), pid: claimant.pid, user: claimant.user.as_str(), labels }
    }
}

impl<'a> How<'a> {
    fn of(mode: Mode, slots: &'a [u32]) -> Self {
        match mode {
            Mode::Exclusive => How::Exclusive,
            Mode::Shared => How::Shared,
            Mode::Permits { count, of } => How::Permits { permits: count, of, slots },
        }
    }
}

impl fmt::Display for How<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Exclusive => f.write_str("exclusive"),
            How::Shared => f.write_str("shared"),
            How::Permits { permits, of, slots: [] } => write!(f, "{permits} of {of}"),
            How::Permits { permits, of, slots } => {
                let slots: Vec<_> = slots.iter().map(u32::to_string).collect();
                write!(f, "{permits} of {of}: {}", slots.join(","))
            }
        }
    }
}

/// One line for each holder, waiter and member.
pub(crate) fn table(all: &[Named<'_>]) -> String {
    let mut rows = vec![["LOCK", "STATE", "MODE", "FENCE", "FOR", "EXPIRES IN", "WHO"].map(str::to_owned)];
    for named in all {
        let name = when::harmless(named.name);
        for holder in named.holders {
            let fence = holder.fence.map_or_else(dash, |fence| fence.to_string());
            let left = holder.expires_in.map_or_else(dash, when::span);
            rows.push([
                name.clone(),
                "held".into(),
                How::of(holder.mode, &holder.slots).to_string(),
                fence,
                lasted(holder.since_unix_ms),
                left,
                when::claimant(&holder.claimant),
            ]);
        }
        for waiter in named.waiters {
            rows.push([
                name.clone(),
                "waiting".into(),
                How::of(waiter.mode, &[]).to_string(),
                dash(),
                lasted(waiter.since_unix_ms),
                dash(),
                when::claimant(&waiter.claimant),
            ]);
        }
        for member in named.members {
            let (id, who) = (when::harmless(&member.id), when::claimant(&member.claimant));
            rows.push([name.clone(), "member".into(), id, dash(), dash(), dash(), who]);
        }
    }
    aligned(&rows)
}

fn lasted(since: Option<u64>) -> String {
    since.map_or_else(dash, when::age)
}

fn dash() -> String {
    "-".into()
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
