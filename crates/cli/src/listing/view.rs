//! What a listing shows of a lock: as JSON and as a table. Never the owner value.

use std::collections::BTreeMap;

use fencepost::claim::{Claimant, Holder, LockState, Waiter};
use serde::Serialize;

use crate::when;

/// A lock as programs see it.
#[derive(Debug, Serialize)]
pub(crate) struct Lock<'a> {
    name: &'a str,
    holders: Vec<Party<'a>>,
    waiters: Vec<Party<'a>>,
}

/// A holder or waiter as programs see it.
#[derive(Debug, Serialize)]
pub(crate) struct Party<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u128>,
}

impl<'a> Lock<'a> {
    pub(crate) fn of(state: &'a LockState) -> Self {
        Self {
            name: state.name.as_str(),
            holders: state.holders.iter().map(Party::holding).collect(),
            waiters: state.waiters.iter().map(Party::waiting).collect(),
        }
    }
}

impl<'a> Party<'a> {
    pub(crate) fn holding(holder: &'a Holder) -> Self {
        Self {
            fence: holder.fence.map(|fence| fence.get()),
            expires_in_ms: holder.expires_in.map(|left| left.as_millis()),
            ..Self::of(&holder.claimant, holder.since_unix_ms)
        }
    }

    pub(crate) fn waiting(waiter: &'a Waiter) -> Self {
        Self::of(&waiter.claimant, waiter.since_unix_ms)
    }

    fn of(claimant: &'a Claimant, since_unix_ms: Option<u64>) -> Self {
        let labels = claimant.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let (host, user) = (claimant.host.as_str(), claimant.user.as_str());
        Self { host, pid: claimant.pid, user, labels, fence: None, since_unix_ms, expires_in_ms: None }
    }
}

/// One line for each holder and waiter.
pub(crate) fn table(states: &[LockState]) -> String {
    let mut rows = vec![["LOCK", "STATE", "FENCE", "FOR", "EXPIRES IN", "WHO"].map(str::to_owned)];
    for state in states {
        let name = when::harmless(state.name.as_str());
        for holder in &state.holders {
            let fence = holder.fence.map_or_else(dash, |fence| fence.to_string());
            let left = holder.expires_in.map_or_else(dash, when::span);
            rows.push([
                name.clone(),
                "held".into(),
                fence,
                lasted(holder.since_unix_ms),
                left,
                when::claimant(&holder.claimant),
            ]);
        }
        for waiter in &state.waiters {
            rows.push([
                name.clone(),
                "waiting".into(),
                dash(),
                lasted(waiter.since_unix_ms),
                dash(),
                when::claimant(&waiter.claimant),
            ]);
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
