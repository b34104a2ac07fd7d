//! The room's task: it hears messages, makes the connection anew when it breaks, looks and settles.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fencepost_core::{backoff::Backoff, claim::LossReason, clock::Moment, name::LockName, owner::Owner};
use tokio::{sync::mpsc, task::JoinSet};

use super::{BRIDGED, Hearing, LOOK_EVERY, POLL_EVERY, Room, drawn_number};
use crate::{
    answers::only,
    failure::Failure,
    session::{Message, Parameter, Session},
};

/// Claims in one look.
const CHUNK: usize = 500;
/// Locks settled at once.
const SETTLING: usize = 16;

/// After what time a waiter that does not hear yet asks for the first time.
const ASK_FIRST: Duration = Duration::from_micros(500);

type Claims = [(Owner, LockName)];

/// Runs until the room is closed.
pub(super) async fn listen(room: Arc<Room>) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let mut deaf_since = None;
    while !room.lock().closed {
        let (to, messages) = mpsc::unbounded_channel();
        match asking_meanwhile(&room, connect(&room, to)).await {
            Ok(Some(session)) => {
                deaf_since = None;
                backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
                let session = Arc::new(session);
                room.session_began(&session);
                if let Err(failure) = attend(&room, &session, messages).await {
                    tracing::debug!(?failure, "the connection for messages is made anew");
                }
                room.session_ended();
            }
            Ok(None) => {
                tracing::warn!(
                    "a pooler lies before PostgreSQL, and messages do not come through it: waiters ask every {:?} \
                     instead; connect without the pooler to be woken at once",
                    POLL_EVERY
                );
                room.hearing.send_replace(Hearing::Polling);
                poll(&room).await;
            }
            Err(failure) => {
                let now = room.clock.now();
                if now.since(*deaf_since.get_or_insert(now)) >= BRIDGED {
                    // Their claims meet the same failure and can tell their callers, who decide how long to go on.
                    room.ring_all();
                }
                tracing::debug!(?failure, "no connection for messages");
                room.lock().deaf_because = Some(failure);
                asking_meanwhile(&room, room.rest(backoff.pause())).await;
            }
        }
    }
}

/// Nobody tells a waiter of its turn before there is a connection for messages. Until then it is asked for, so that a lock
/// which is handed over in these milliseconds, or while there is no room for such a connection, is not lost on it.
async fn asking_meanwhile<T>(room: &Room, work: impl Future<Output = T>) -> T {
    let asking = async {
        let mut backoff = Backoff::new(ASK_FIRST, POLL_EVERY);
        loop {
            room.rest(backoff.pause()).await;
            if room.queued_ones().is_empty() {
                continue;
            }
            if let Ok(session) = room.link.session().await
                && let Err(failure) = look_at_waiters(room, &session).await
            {
                tracing::debug!(?failure, "a look failed");
            }
        }
    };
    tokio::select! {
        done = work => done,
        never = asking => never,
    }
}

/// Listens on the client's own channel; `None` behind a pooler. An advisory lock shows that the channel has a listener for
/// as long as the connection lives, which is how a release finds out whom to pass over.
async fn connect(room: &Room, to: mpsc::UnboundedSender<Message>) -> Result<Option<Session>, Failure> {
    let session = room.link.messages(to).await?;
    if session.pooled {
        return Ok(None);
    }
    let mut number = room.number.load(Relaxed);
    loop {
        if room.in_session {
            // Never one that was there before: grants of a former session must not come to life again.
            // It is written, so that it can have to wait for others and for a standby.
            number = only(&room.link.in_time(session.query(&room.link.statements.number, &[])).await?)?;
        }
        if only(&room.link.in_time(session.query(&room.link.statements.live, &[&number])).await?)? {
            session.script(&format!("SET fencepost_session.client = {number}; LISTEN fencepost_{number}")).await?;
            room.number.store(number, Relaxed);
            return Ok(Some(session));
        }
        // Another's, or still our own: a connection that broke without the server's notice.
        number = drawn_number();
    }
}

/// Hears messages until the connection breaks or the room is closed. The regular look goes over this connection, which
/// also shows whether it leads anywhere.
async fn attend(
    room: &Arc<Room>,
    session: &Arc<Session>,
    mut messages: mpsc::UnboundedReceiver<Message>,
) -> Result<(), Failure> {
    let mut settling = JoinSet::new();
    room.announce_all_again();
    // What was lost while there was no connection.
    look_at_holders(room, session).await?;
    let mut looked_at = room.clock.now();
    while !room.lock().closed {
        let unannounced = room.take_unannounced();
        if !unannounced.is_empty() {
            announce(room, session, &unannounced).await?;
            // Their turn may have come before anybody could tell.
            look_at_waiters(room, session).await?;
        }
        settle_ended(room, &mut settling).await;
        tokio::select! {
            message = messages.recv() => match message {
                Some((_, payload)) => room.heard(&payload),
                None => return Ok(()),
            },
            () = room.changed.notified() => {}
            () = room.until(room.next_end()) => {}
            () = room.until(looked_at.after(pause(room))) => {
                look_at_waiters(room, session).await?;
                looked_at = room.clock.now();
            }
        }
    }
    Ok(())
}

fn pause(room: &Room) -> Duration {
    if room.brisk.load(Relaxed) { POLL_EVERY } else { LOOK_EVERY }
}

/// Does without messages until the room is closed.
async fn poll(room: &Arc<Room>) {
    let mut settling = JoinSet::new();
    let mut announce_at = Moment::default();
    // Who queued while there were messages is recorded as hearing them: claiming again corrects that.
    room.ring_all();
    while !room.lock().closed {
        if let Ok(session) = room.link.session().await {
            if announce_at <= room.clock.now() && announce(room, &session, &room.queued_ones()).await.is_ok() {
                announce_at = room.clock.now().after(LOOK_EVERY);
            }
            let looked = async {
                look_at_waiters(room, &session).await?;
                look_at_holders(room, &session).await
            };
            if let Err(failure) = looked.await {
                tracing::debug!(?failure, "a look failed");
            }
        }
        settle_ended(room, &mut settling).await;
        room.rest(POLL_EVERY).await;
    }
}

async fn settle_ended(room: &Arc<Room>, settling: &mut JoinSet<()>) {
    while settling.try_join_next().is_some() {}
    for name in room.take_ended() {
        if settling.len() >= SETTLING {
            settling.join_next().await;
        }
        settling.spawn(room.clone().settle(name));
    }
}

/// Tells where our waiters hear of their turn, and that they are alive.
async fn announce(room: &Room, session: &Arc<Session>, waiting: &Claims) -> Result<(), Failure> {
    for some in waiting.chunks(CHUNK) {
        let (names, owners) = columns(some);
        let (namespace, number) = (room.namespace.as_str(), room.number());
        let with: [Parameter<'_>; 4] = [&namespace, &names, &owners, &number];
        room.link.send(session, &room.link.statements.announce, &with).await?;
    }
    Ok(())
}

/// Rings who was handed the lock, or lost the place, without a message having come.
async fn look_at_waiters(room: &Room, session: &Arc<Session>) -> Result<(), Failure> {
    let waiting = room.queued_ones();
    if waiting.is_empty() {
        room.brisk.store(false, Relaxed);
        // The connection's pulse.
        return look(room, session, &[]).await.map(|_| ());
    }
    let mut behind_a_session = false;
    for some in waiting.chunks(CHUNK) {
        for (place, became, left) in look(room, session, some).await? {
            let Some((owner, name)) = some.get(place) else { continue };
            match &*became {
                "queued" => {
                    behind_a_session |= left.is_none();
                    room.ends_in(name, left);
                }
                // Whoever should have handed it on did not.
                "free" => room.ends_in(name, Some(Duration::ZERO)),
                // Handed over, or the place is gone.
                _ => room.ring(owner),
            }
        }
    }
    room.brisk.store(behind_a_session, Relaxed);
    Ok(())
}

/// Reports what was taken from its holder while nobody listened.
async fn look_at_holders(room: &Room, session: &Arc<Session>) -> Result<(), Failure> {
    for some in room.held_ones().chunks(CHUNK) {
        for (place, became, _) in look(room, session, some).await? {
            let Some((owner, _)) = some.get(place) else { continue };
            match &*became {
                "taken" => room.lost(*owner, LossReason::TakenOver),
                "gone" => room.lost(*owner, LossReason::Deleted),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn look(
    room: &Room,
    session: &Arc<Session>,
    claims: &Claims,
) -> Result<Vec<(usize, String, Option<Duration>)>, Failure> {
    let (names, owners) = columns(claims);
    let namespace = room.namespace.as_str();
    let with: [Parameter<'_>; 3] = [&namespace, &names, &owners];
    let rows = room.link.send(session, &room.link.statements.look, &with).await?;
    let read = |row: &tokio_postgres::Row| {
        let place = usize::try_from(row.try_get::<_, i64>(0).ok()? - 1).ok()?;
        let left: Option<i64> = row.try_get(2).ok()?;
        Some((place, row.try_get::<_, Option<String>>(1).ok()??, left.map(crate::record::millis)))
    };
    rows.iter().map(read).collect::<Option<_>>().ok_or_else(Failure::puzzling)
}

fn columns(claims: &Claims) -> (Vec<&str>, Vec<&[u8]>) {
    claims.iter().map(|(owner, name)| (name.as_str(), owner.as_bytes().as_slice())).unzip()
}
