//! The room's task: it hears messages, makes the connection anew when it breaks, looks and settles.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff, claim::LossReason, clock::Moment, error::ErrorKind, name::LockName, owner::Owner,
};
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
/// So many answers in a row that did not come end a session that something is held by. Where nothing is, the first one does.
const SILENT: u32 = 3;

/// After what time a waiter that does not hear yet asks for the first time.
const ASK_FIRST: Duration = Duration::from_micros(500);

type Claims = [(Owner, LockName)];

/// Runs until the room is closed, which ends it whatever it awaits.
pub(super) async fn listen(room: Arc<Room>) {
    tokio::select! {
        () = room.closed() => room.session_ended(),
        never = hear(&room) => never,
    }
}

async fn hear(room: &Arc<Room>) {
    let mut outage = Outage::none();
    loop {
        let (to, messages) = mpsc::unbounded_channel();
        let heard = match asking_meanwhile(room, connect(room, to)).await {
            Ok(Some(session)) => {
                let session = Arc::new(session);
                room.session_began(&session);
                let heard = attend(room, &session, messages, &mut outage).await;
                room.session_ended();
                heard
            }
            Ok(None) => {
                tracing::warn!(
                    "a pooler lies before PostgreSQL, and messages do not come through it: waiters ask every {:?} \
                     instead; connect without the pooler to be woken at once",
                    POLL_EVERY
                );
                room.hearing.send_replace(Hearing::Polling);
                poll(room).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = heard {
            tracing::debug!(?failure, "the connection for messages is made anew");
            room.lock().deaf_because = Some(failure);
        }
        let pause = outage.pause(room);
        asking_meanwhile(room, room.rest(pause)).await;
    }
}

/// A time in which nothing is heard, or looks fail. Only a look that went well ends it: a server that lets us connect may refuse
/// all else.
struct Outage {
    since: Option<Moment>,
    backoff: Backoff,
}

impl Outage {
    fn none() -> Self {
        Self { since: None, backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)) }
    }

    /// How long to rest before the next try.
    fn pause(&mut self, room: &Room) -> Duration {
        let now = room.clock.now();
        if now.since(*self.since.get_or_insert(now)) >= BRIDGED {
            // Their claims meet the same failure and can tell their callers, who decide how long to go on.
            room.ring_all();
        }
        self.backoff.pause()
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

/// Hears messages until the connection breaks. The regular look goes over this connection, which also shows whether it leads
/// anywhere.
async fn attend(
    room: &Arc<Room>,
    session: &Arc<Session>,
    mut messages: mpsc::UnboundedReceiver<Message>,
    outage: &mut Outage,
) -> Result<(), Failure> {
    let mut settling = JoinSet::new();
    let (mut looked_at, mut rests_until) = (None, room.clock.now());
    room.announce_all_again();
    loop {
        if rests_until <= room.clock.now() {
            match tend(room, session, &mut looked_at).await {
                Ok(true) => *outage = Outage::none(),
                Ok(false) => {}
                Err(failure) if outlasts(room, session, &failure) => {
                    tracing::debug!(?failure, "a look failed");
                    room.announce_all_again();
                    rests_until = room.clock.now().after(outage.pause(room));
                }
                Err(failure) => return Err(failure),
            }
        }
        settle_ended(room, &mut settling).await;
        let look_at = looked_at.map_or(rests_until, |at: Moment| at.after(pause(room)).max(rests_until));
        tokio::select! {
            message = messages.recv() => match message {
                Some((_, payload)) => room.heard(&payload),
                None => return Ok(()),
            },
            () = room.changed.notified() => {}
            () = room.until(room.next_end()) => {}
            () = room.until(look_at) => {}
        }
    }
}

/// Announces whom the store does not know yet, and looks when it is time to. Answers whether there was a look.
async fn tend(room: &Room, session: &Arc<Session>, looked_at: &mut Option<Moment>) -> Result<bool, Failure> {
    let is_due = looked_at.is_none_or(|at| at.after(pause(room)) <= room.clock.now());
    let unannounced = room.take_unannounced();
    if !is_due && unannounced.is_empty() {
        return Ok(false);
    }
    if looked_at.is_none() {
        // What was lost while there was no connection.
        look_at_holders(room, session).await?;
    }
    announce(room, session, &unannounced).await?;
    // The turn of those that were announced may have come before anybody could tell.
    look_at_waiters(room, session).await?;
    *looked_at = Some(room.clock.now());
    Ok(true)
}

/// Whether a session goes on after a look that failed. A statement that was cancelled, or waited for somebody's transaction too
/// long, says nothing of the connection; and what is held as long as this lives is lost by its end alone.
fn outlasts(room: &Room, session: &Session, failure: &Failure) -> bool {
    let holds = room.holds_by_session();
    let silent = if holds { SILENT } else { 1 };
    !session.is_closed() && session.timeouts.load(Relaxed) < silent && (holds || failure.kind == ErrorKind::Unavailable)
}

fn pause(room: &Room) -> Duration {
    if room.brisk.load(Relaxed) { POLL_EVERY } else { LOOK_EVERY }
}

/// Does without messages for good.
async fn poll(room: &Arc<Room>) -> ! {
    let mut settling = JoinSet::new();
    let mut announce_at = Moment::default();
    // Who queued while there were messages is recorded as hearing them: claiming again corrects that.
    room.ring_all();
    loop {
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
