//! What changed between two looks at a lock.

use std::fmt;

use fencepost::{
    claim::{Claimant, Holder, LockState, Waiter},
    clock::{self, BootClock},
};
use serde::Serialize;

use super::view::Party;
use crate::when;

/// One change.
#[derive(Debug, Serialize)]
pub(crate) struct Change<'a> {
    at_unix_ms: u64,
    event: &'static str,
    name: &'a str,
    #[serde(flatten)]
    party: Party<'a>,
    #[serde(skip)]
    claimant: &'a Claimant,
}

/// What happened from `before` to `after`, in the order in which it can have happened.
pub(crate) fn between<'a>(before: &'a LockState, after: &'a LockState) -> Vec<Change<'a>> {
    let change = |event, claimant, party| Change {
        at_unix_ms: clock::wall_unix_ms(&BootClock),
        event,
        name: after.name.as_str(),
        party,
        claimant,
    };
    let holding = |event, holder: &'a Holder| change(event, &holder.claimant, Party::holding(holder));
    let waiting = |event, waiter: &'a Waiter| change(event, &waiter.claimant, Party::waiting(waiter));
    let kept = |all: &[Holder], one: &Holder| all.iter().any(|other| same_grant(other, one));
    let mut changes = Vec::new();
    changes.extend(before.holders.iter().filter(|holder| !kept(&after.holders, holder)).map(|h| holding("freed", h)));
    changes.extend(before.waiters.iter().filter(|waiter| !after.waiters.contains(waiter)).map(|w| waiting("left", w)));
    changes.extend(after.holders.iter().filter(|holder| !kept(&before.holders, holder)).map(|h| holding("held", h)));
    changes
        .extend(after.waiters.iter().filter(|waiter| !before.waiters.contains(waiter)).map(|w| waiting("waiting", w)));
    changes
}

/// A renewal changes when a grant expires, not which grant it is.
fn same_grant(a: &Holder, b: &Holder) -> bool {
    (&a.claimant, a.owner, a.fence, a.since_unix_ms) == (&b.claimant, b.owner, b.fence, b.since_unix_ms)
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", when::instant(self.at_unix_ms), self.name, self.event, when::claimant(self.claimant))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost::LockName;

    use super::*;

    fn holder(pid: u32, expires_in: u64) -> Holder {
        let claimant = Claimant { pid, ..Claimant::default() };
        Holder { claimant, expires_in: Some(Duration::from_secs(expires_in)), ..Holder::default() }
    }

    fn state(holders: Vec<Holder>, waiters: Vec<u32>) -> LockState {
        let waiters = waiters.into_iter().map(|pid| Claimant { pid, ..Claimant::default() });
        let waiters = waiters
            .map(|claimant| Waiter { claimant, mode: fencepost::claim::Mode::Exclusive, since_unix_ms: None })
            .collect();
        LockState { name: LockName::new("a").unwrap(), holders, waiters }
    }

    #[test]
    fn a_hand_over_is_told_and_a_renewal_is_not() {
        let before = state(vec![holder(1, 10)], vec![2]);
        let renewed = state(vec![holder(1, 30)], vec![2]);
        assert!(between(&before, &renewed).is_empty());
        let handed_over = state(vec![holder(2, 30)], vec![]);
        let changes = between(&renewed, &handed_over);
        let told: Vec<_> = changes.iter().map(|change| (change.event, change.claimant.pid)).collect();
        assert_eq!(told, [("freed", 1), ("left", 2), ("held", 2)]);
    }
}
