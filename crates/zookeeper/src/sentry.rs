//! Looks after what this client has in the ensemble: watches the nodes of grants (L4), takes claims that nobody awaits any
//! more out of the queue (C1), and frees grants that nobody renews, since a session keeps all its nodes alive alike.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use fencepost_core::{
    claim::LossReason,
    clock::{self, Clock, Moment},
    owner::Owner,
    store::LossReporter,
};
use futures_util::future::join_all;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    layout::Layout,
    places::{Place, Places, Standing},
    session::{End, Watcher},
    sessions::Sessions,
    wire::{Change, Code},
};

/// A grant that is given back sooner is never watched: that costs a request.
const WATCH_AFTER: Duration = Duration::from_millis(50);
/// For how long a claim may stand in the queue with nobody awaiting its turn.
const ALONE: Duration = Duration::from_secs(2);
/// Between two looks, whatever happens.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks, though nothing happens.
const ROUND: Duration = Duration::from_secs(1);
/// Requests in one go.
const BATCH: usize = 500;

#[derive(Debug)]
pub(crate) struct Sentry {
    layout: Layout,
    places: Arc<Places>,
    clock: Arc<dyn Clock>,
    events: mpsc::UnboundedSender<(Owner, Change)>,
    losses: Mutex<Option<LossReporter>>,
}

impl Sentry {
    /// Starts it. It ends when the store is dropped.
    pub(crate) fn start(
        layout: Layout,
        places: Arc<Places>,
        sessions: &Arc<Sessions>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let (events, heard) = mpsc::unbounded_channel();
        let sentry = Arc::new(Self { layout, places, clock, events, losses: Mutex::default() });
        tokio::spawn(listen(Arc::downgrade(&sentry), heard));
        tokio::spawn(patrol(Arc::downgrade(&sentry), Arc::downgrade(sessions)));
        sentry
    }

    pub(crate) fn report_losses(&self, to: LossReporter) {
        *self.losses.lock().unwrap_or_else(PoisonError::into_inner) = Some(to);
    }

    /// Everything on a session that has ended is lost with it.
    pub(crate) fn session_ended(&self, id: i64, end: &End) {
        for (owner, place) in self.places.remove_session(id) {
            // By our own clock, the leases end by theirs at this moment.
            if matches!((end, place.standing), (End::Expired, Standing::Held { .. })) {
                self.report(owner, LossReason::SessionExpired);
            }
        }
    }

    /// Has the nodes of these grants watched, and reports those that are gone. They are marked as watched already, so it is
    /// done to the end, whoever awaits it or does not any more (C1).
    pub(crate) fn watch(self: Arc<Self>, grants: Vec<(Owner, Place)>) -> JoinHandle<()> {
        tokio::spawn(async move {
            for batch in grants.chunks(BATCH) {
                join_all(batch.iter().map(|(owner, place)| self.watch_one(owner, place))).await;
            }
        })
    }

    async fn watch_one(&self, owner: &Owner, place: &Place) {
        let Some(path) = place.path() else { return };
        match place.session.watch(&path, Watcher::Grant(*owner, self.events.clone())).await {
            // A node of another session, or of none, is not ours, whatever its name.
            Ok(node) if node.stat.session != place.session.id => self.lost(owner, LossReason::TakenOver),
            Ok(_) => {}
            Err(failure) if failure.is(Code::NO_NODE) => self.lost(owner, LossReason::Deleted),
            Err(_) => self.places.unwatched(owner), // tried again in the next round
        }
    }

    pub(crate) fn lost(&self, owner: &Owner, reason: LossReason) {
        if let Some(Place { standing: Standing::Held { .. }, .. }) = self.places.remove(owner) {
            self.report(*owner, reason);
        }
    }

    fn report(&self, owner: Owner, reason: LossReason) {
        if let Some(losses) = &*self.losses.lock().unwrap_or_else(PoisonError::into_inner) {
            losses.lost(owner, reason);
        }
    }

    fn look_around(&self) -> Tasks {
        let now = self.clock.now();
        let (mut to_watch, mut to_leave, mut next) = (Vec::new(), Vec::new(), now.after(ROUND));
        let mut wait_until = |moment: Moment| {
            next = next.min(moment);
            now >= moment
        };
        self.places.sift(|owner, place| match place.standing {
            Standing::Coming { alone_since } => {
                let leave = alone_since.is_some_and(|since| wait_until(since.after(ALONE)));
                if leave {
                    to_leave.push((*owner, place.clone()));
                }
                !leave
            }
            Standing::Held { since, told, watched_on } => {
                if wait_until(told.moment().after(place.session.timeout)) {
                    to_leave.push((*owner, place.clone()));
                    return false;
                }
                let connection = Some(place.session.state().connection);
                if watched_on != connection && wait_until(since.after(WATCH_AFTER)) {
                    place.standing = Standing::Held { since, told, watched_on: connection };
                    to_watch.push((*owner, place.clone()));
                }
                true
            }
        });
        Tasks { to_watch, to_leave, next }
    }
}

/// What has to be done now, and when to look again.
struct Tasks {
    to_watch: Vec<(Owner, Place)>,
    to_leave: Vec<(Owner, Place)>,
    next: Moment,
}

/// Removes what nobody stands behind. What cannot be removed now is tried again for as long as its session lives.
async fn leave(layout: Layout, places: Arc<Places>, owner: Owner, place: Place) {
    if let Err(failure) = place.leaving(&owner).leave(&layout).await
        && !place.session.is_over()
    {
        tracing::debug!(lock = %place.lock, ?failure, "a node could not be removed yet");
        places.put_back(owner, place);
    }
    places.settle(&owner);
}

async fn patrol(sentry: Weak<Sentry>, sessions: Weak<Sessions>) {
    loop {
        let Some((clock, places, next)) = round(&sentry, &sessions).await else { return };
        tokio::select! {
            () = places.changed.notified() => {}
            () = clock.sleep_until(next) => {}
        }
        drop(places);
        clock::sleep(&*clock, PAUSE).await;
    }
}

async fn round(sentry: &Weak<Sentry>, sessions: &Weak<Sessions>) -> Option<(Arc<dyn Clock>, Arc<Places>, Moment)> {
    let sentry = sentry.upgrade()?;
    sessions.upgrade()?.drop_idle();
    let Tasks { to_watch, to_leave, next } = sentry.look_around();
    // Each on its own: a session that does not answer holds up nobody else's.
    for (owner, place) in to_leave {
        tokio::spawn(leave(sentry.layout.clone(), sentry.places.clone(), owner, place));
    }
    let known = (sentry.clock.clone(), sentry.places.clone(), next);
    if !to_watch.is_empty() {
        drop(sentry.watch(to_watch));
    }
    Some(known)
}

async fn listen(sentry: Weak<Sentry>, mut events: mpsc::UnboundedReceiver<(Owner, Change)>) {
    while let Some((owner, change)) = events.recv().await {
        let Some(sentry) = sentry.upgrade() else { return };
        match change {
            Change::Deleted => sentry.lost(&owner, LossReason::Deleted),
            Change::Other => sentry.places.unwatched(&owner),
        }
    }
}
