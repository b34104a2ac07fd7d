//! Gives back what nobody else does.
//!
//! A session is kept alive for all its claims, so a single one that was forgotten would stay for as long as the session.
//! That must not be: a grant that is not renewed ends after its TTL, as on any other store; a waiter that is called and
//! does not come is passed over; and a claim that was given back without the cluster's confirmation is given back again
//! until it is confirmed. Where that has not helped for a whole TTL, the session is ended with all its leases, so that
//! the cluster frees what we cannot.

use std::{
    sync::{Arc, atomic::Ordering::AcqRel, atomic::Ordering::Acquire, atomic::Ordering::Release},
    time::Duration,
};

use fencepost_core::clock::sleep;
use futures_util::future::join_all;

use crate::{
    ledger::{Leaving, Limits},
    session::Sessions,
};

/// How often it looks, while there is anything to look at.
const EVERY: Duration = Duration::from_secs(1);

/// Claims that are given back at once.
const AT_ONCE: usize = 64;

/// A waiter that is called has this long to come.
const UNATTENDED: Duration = Duration::from_secs(3);

/// Sees to it that somebody looks.
pub(crate) fn begin(sessions: &Arc<Sessions>) {
    if sessions.sweeping.load(Acquire) || sessions.sweeping.swap(true, AcqRel) {
        return;
    }
    tokio::spawn(sweep(sessions.clone()));
}

async fn sweep(sessions: Arc<Sessions>) {
    let mut closed = sessions.closed.subscribe();
    // Whoever gives back himself may take two tries of every member.
    let limits = Limits { not_renewed: EVERY / 4, unattended: UNATTENDED, leaving: sessions.link.timeout * 2 };
    loop {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = sleep(&*sessions.clock, EVERY) => {}
        }
        if sessions.ledger.is_empty() {
            sessions.sweeping.store(false, Release);
            // Something may have come in before the line above.
            if sessions.ledger.is_empty() || sessions.sweeping.swap(true, AcqRel) {
                return;
            }
        }
        for some in sessions.ledger.overdue(sessions.clock.now(), &limits).chunks(AT_ONCE) {
            join_all(some.iter().map(|leaving| give_back(&sessions, leaving))).await;
        }
    }
}

async fn give_back(sessions: &Arc<Sessions>, leaving: &Leaving) {
    let failure = match sessions.delete(leaving).await {
        Ok(_) => return sessions.ledger.forget(&leaving.owner),
        Err(failure) => failure,
    };
    let overdue = sessions.clock.now().since(leaving.since);
    if overdue >= leaving.session.granted().1 && !leaving.session.is_lost() {
        tracing::warn!(
            ?failure,
            "a lock could not be given back for a whole TTL: its session is ended, and with it all its leases"
        );
        sessions.lose(&leaving.session);
        sessions.revoke(&leaving.session).await;
    }
}
