//! One session for each TTL, shared by every lock of the client that asks for it.
//!
//! The TTL belongs to the session, so another TTL means another session and another connection.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{Clock, Moment},
    limits::Ttl,
};
use tokio::sync::watch;

use crate::{
    failure::Failure,
    servers::Servers,
    session::{End, Session},
};

/// For how long a session without claims is kept open, unless it is the only one.
const IDLE: Duration = Duration::from_secs(30);

pub(crate) struct Sessions {
    servers: Servers,
    answer_within: Duration,
    clock: Arc<dyn Clock>,
    slots: Mutex<Slots>,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct Slots {
    by_ttl: BTreeMap<Ttl, Slot>,
    closed: bool,
}

enum Slot {
    /// One task opens it for all who ask (single flight).
    Opening(watch::Receiver<Option<Opened>>, Backoff),
    Open {
        session: Arc<Session>,
        idle_since: Option<Moment>,
    },
    /// Whoever asks before `until` is told at once.
    Resting {
        until: Moment,
        failure: Failure,
        backoff: Backoff,
    },
}

type Opened = Result<Arc<Session>, Failure>;

/// Told of each session that has ended.
pub(crate) type OnEnd = Arc<dyn Fn(i64, End) + Send + Sync>;

impl Sessions {
    pub(crate) fn new(servers: Servers, answer_within: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { servers, answer_within, clock, slots: Mutex::default(), closed: watch::Sender::new(false) }
    }

    /// The session for this TTL, opened if need be. Dropped, it goes on opening for whoever asks next (C1).
    pub(crate) async fn get(self: &Arc<Self>, ttl: Ttl, on_end: &OnEnd) -> Opened {
        let mut opening = match self.look_up(ttl, on_end) {
            Ok(known) => return known,
            Err(opening) => opening,
        };
        match opening.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(opened)) => opened.clone(),
            _ => Err(Failure::closed()), // the runtime ends
        }
    }

    fn look_up(self: &Arc<Self>, ttl: Ttl, on_end: &OnEnd) -> Result<Opened, watch::Receiver<Option<Opened>>> {
        let mut slots = self.lock();
        if slots.closed {
            return Ok(Err(Failure::closed()));
        }
        let fresh = || Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let backoff = match slots.by_ttl.get_mut(&ttl) {
            Some(Slot::Open { session, idle_since }) if !session.is_over() => {
                *idle_since = None;
                return Ok(Ok(session.clone()));
            }
            Some(Slot::Opening(opening, _)) => return Err(opening.clone()),
            Some(Slot::Resting { until, failure, .. }) if self.clock.now() < *until => return Ok(Err(failure.clone())),
            Some(Slot::Resting { backoff, .. }) => backoff.clone(),
            _ => fresh(),
        };
        let (tell, opening) = watch::channel(None);
        slots.by_ttl.insert(ttl, Slot::Opening(opening.clone(), backoff));
        tokio::spawn(self.clone().open(ttl, tell, on_end.clone()));
        Err(opening)
    }

    async fn open(self: Arc<Self>, ttl: Ttl, tell: watch::Sender<Option<Opened>>, on_end: OnEnd) {
        let opened = Session::open(self.servers.clone(), ttl, self.answer_within, self.clock.clone()).await;
        let opened = opened.map(Arc::new);
        if let Ok(session) = &opened {
            let (id, over) = (session.id, session.over());
            tokio::spawn(async move { on_end(id, over.await) });
        }
        {
            let mut slots = self.lock();
            let slot = match (&opened, slots.by_ttl.remove(&ttl)) {
                (Ok(session), _) => Slot::Open { session: session.clone(), idle_since: None },
                (Err(failure), Some(Slot::Opening(_, mut backoff))) => {
                    let until = self.clock.now().after(backoff.pause());
                    Slot::Resting { until, failure: failure.clone(), backoff }
                }
                // Closed meanwhile.
                (Err(_), _) => return,
            };
            if !slots.closed {
                slots.by_ttl.insert(ttl, slot);
            }
        }
        tell.send_replace(Some(opened));
    }

    /// Any session that lives, for what needs no grant.
    pub(crate) fn any(&self) -> Option<Arc<Session>> {
        let slots = self.lock();
        slots.by_ttl.values().find_map(|slot| match slot {
            Slot::Open { session, .. } if !session.is_over() => Some(session.clone()),
            _ => None,
        })
    }

    /// Ends sessions that nobody uses: each is a connection.
    pub(crate) fn drop_idle(&self) {
        let now = self.clock.now();
        let mut slots = self.lock();
        let mut spare = slots.by_ttl.len().saturating_sub(1);
        let mut ended = Vec::new();
        slots.by_ttl.retain(|_, slot| {
            let Slot::Open { session, idle_since } = slot else { return true };
            let used = Arc::strong_count(session) > 1;
            let since = *idle_since.get_or_insert(now);
            if used {
                *idle_since = None;
            }
            let over = session.is_over() || !used && spare > 0 && now.since(since) >= IDLE;
            if over {
                spare = spare.saturating_sub(1);
                ended.push(session.clone());
            }
            !over
        });
        drop(slots);
        for session in ended {
            tokio::spawn(async move { session.close().await });
        }
    }

    /// Completes when none is opened any more. Cancel safe.
    pub(crate) async fn closed(&self) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Takes all sessions out; none is opened any more.
    pub(crate) fn close(&self) -> Vec<Arc<Session>> {
        self.closed.send_replace(true);
        let mut slots = self.lock();
        slots.closed = true;
        let all = std::mem::take(&mut slots.by_ttl);
        all.into_values()
            .filter_map(|slot| if let Slot::Open { session, .. } = slot { Some(session) } else { None })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // Nothing in here can panic half way.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
