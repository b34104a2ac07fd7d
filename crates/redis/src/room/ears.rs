//! The room's task: it hears messages, makes the connection anew when it breaks, and pokes.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    error::{Applied, ErrorKind},
};
use futures_util::{Stream, StreamExt};
use redis::{
    Msg,
    aio::{PubSubSink, PubSubStream},
    cmd,
};
use tokio::task::JoinSet;

use super::{BRIDGED, Hearing, News, Room, is_forbidden};
use crate::{
    cluster::Heard,
    failure::Failure,
    route::{Server, until_dead},
};

/// Pokes under way at once.
const POKES: usize = 64;

/// Runs until the room is closed, which ends it whatever it awaits.
pub(super) async fn listen(room: Arc<Room>) {
    tokio::select! {
        () = room.closed() => {}
        () = hear(&room) => {}
    }
}

async fn hear(room: &Arc<Room>) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let mut deaf_since = None;
    let mut heard_before = false;
    loop {
        match connect(room).await {
            Ok((sink, stream, server)) => {
                deaf_since = None;
                backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
                room.hearing.send_replace(Hearing::Messages);
                if std::mem::replace(&mut heard_before, true) {
                    room.doubt();
                }
                tokio::select! {
                    () = attend(room, stream) => {}
                    () = until_dead(sink, &*room.clock, room.nodes.connect_timeout()) => {}
                    () = room.nodes.moved_from(&server) => {}
                }
                room.hearing.send_replace(Hearing::Deaf);
            }
            Err(failure) if failure.kind == ErrorKind::PermissionDenied => {
                tracing::warn!(
                    reason = %failure.error(fencepost_core::error::Operation::Wait, None),
                    "Redis forbids messages to this user: waiters ask every {:?} instead; allow SUBSCRIBE, PUBLISH and \
                     the channels of the namespace",
                    super::POLL_EVERY
                );
                room.hearing.send_replace(Hearing::Polling);
                // Who queued while there were messages is recorded as hearing them: claiming again corrects that.
                room.ring_all(News::AskAgain);
                poll(room).await;
            }
            Err(_) => {
                let now = room.clock.now();
                if now.since(*deaf_since.get_or_insert(now)) >= BRIDGED {
                    // Their claims meet the same failure and can tell their callers, who decide how long to go on.
                    room.ring_all(News::AskAgain);
                }
                room.rest(backoff.pause()).await;
            }
        }
    }
}

/// Subscribes, and makes sure that messages may be sent as well: the scripts of this user send them.
async fn connect(room: &Room) -> Result<(PubSubSink, PubSubStream, Arc<Server>), Failure> {
    let (messages, server) = room.nodes.messages().await?;
    let (mut sink, stream) = messages.split();
    match tokio::time::timeout(room.nodes.connect_timeout(), sink.subscribe(&room.channel)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(Failure::answered(&error)),
        Err(_) => return Err(Failure::new(ErrorKind::Unavailable, Applied::No, "Redis did not answer in time")),
    }
    let answer = room.nodes.ask(&room.channel, cmd("PUBLISH").arg(&room.channel).arg("hello")).await;
    if is_forbidden(&answer) {
        answer?;
    }
    Ok((sink, stream, server))
}

/// Hears messages until the connection breaks.
async fn attend(room: &Arc<Room>, mut stream: impl Stream<Item = Msg> + Unpin) {
    let mut pokes = JoinSet::new();
    // A message may have been lost while there was no connection.
    let mut everything = true;
    loop {
        poke_due(room, &mut pokes, everything).await;
        everything = false;
        tokio::select! {
            message = stream.next() => match message {
                Some(message) => room.heard(message.get_payload_bytes()),
                None => return,
            },
            heard = room.nodes.heard() => match heard {
                Heard::Message(message) => room.heard(&message),
                Heard::Missed => everything = true,
            },
            () = room.changed.notified() => {}
            () = room.until(room.next_poke()) => {}
        }
    }
}

/// Does without messages for good.
async fn poll(room: &Arc<Room>) -> ! {
    let mut pokes = JoinSet::new();
    loop {
        poke_due(room, &mut pokes, false).await;
        tokio::select! {
            () = room.changed.notified() => {}
            () = room.until(room.next_poke()) => {}
        }
    }
}

async fn poke_due(room: &Arc<Room>, pokes: &mut JoinSet<()>, everything: bool) {
    while pokes.try_join_next().is_some() {}
    for name in room.take_due(everything) {
        if pokes.len() >= POKES {
            pokes.join_next().await;
        }
        pokes.spawn(room.clone().poke(name));
    }
}
