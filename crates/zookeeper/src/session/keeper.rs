//! The task behind a session. It owns the connection; everything else talks to it by orders.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{self, Clock, Moment, Sent},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot, watch},
};

use crate::{
    failure::Failure,
    heartbeat::Heartbeat,
    servers::{Connection, Servers, Wanted},
    session::{End, Order, State, Watcher},
    wire::{Answer, Code, Event, Reader, Request, XID_EVENT, XID_LOGIN},
};

/// Bytes that wait for the socket before more orders are taken.
const UNSENT: usize = 256 * 1024;

pub(super) struct Keeper {
    pub(super) servers: Servers,
    pub(super) clock: Arc<dyn Clock>,
    /// A connection on which an answer takes longer leads nowhere.
    pub(super) answer_within: Duration,
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    pub(super) timeout: Duration,
    /// The latest transaction that an answer was about: what was seen is never unseen on another server.
    pub(super) last_seen: i64,
    pub(super) last_xid: i32,
    /// When the last answer came: a connection that makes progress is alive, however slow.
    pub(super) heard: Moment,
    pub(super) heart: Heartbeat,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) state: watch::Sender<State>,
    /// Sent and not yet answered, in order.
    pub(super) under_way: VecDeque<UnderWay>,
    pub(super) watchers: HashMap<String, Vec<Watcher>>,
}

pub(super) struct UnderWay {
    xid: i32,
    sent: Sent,
    sender: Sender,
    /// The node that was to be watched, and is not where it does not exist.
    watched: Option<String>,
}

/// Who wants to know the answer.
enum Sender {
    Caller(oneshot::Sender<Result<Vec<u8>, Failure>>),
    /// As a caller; the answer ends the session.
    Closing(oneshot::Sender<Result<Vec<u8>, Failure>>),
    Synchronizing,
    Committing,
}

/// Why a connection is of no more use.
enum Ended {
    /// Another may be.
    Connection(&'static str),
    /// The session is over as well.
    Session(End),
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        Ended::Session(end)
    }
}

impl Keeper {
    pub(super) async fn keep(mut self, mut connection: Connection) {
        let end = loop {
            let ended = self.serve(&mut connection).await;
            self.forget_connection();
            match ended {
                Ended::Session(end) => break end,
                Ended::Connection(why) => {
                    tracing::debug!(session = self.id, why, "a connection to ZooKeeper is given up")
                }
            }
            match self.reconnect().await {
                Ok(made) => connection = made,
                Err(end) => break end,
            }
        };
        tracing::debug!(session = self.id, ?end, "a session in ZooKeeper is over");
        // Told before the queue of orders closes, so that a refused order finds the reason.
        self.state.send_modify(|state| state.over = Some(end.clone()));
        self.orders.close();
        if matches!(end, End::OutOfTime) {
            // Still alive there, perhaps; its nodes would stand in the way for as long.
            let close = Request::close_session().numbered(i32::MAX);
            let closing = async {
                connection.writer.write_all(&close).await?;
                connection.writer.flush().await
            };
            let _ = tokio::time::timeout(self.answer_within, closing).await;
        }
        while self.orders.recv().await.is_some() {} // whoever waits finds his answer dropped
    }

    /// Sends, receives and keeps alive until the connection or the session ends.
    async fn serve(&mut self, connection: &mut Connection) -> Ended {
        let (mut unsent, mut unflushed) = (Vec::new(), false);
        if self.state.borrow().connection > 0 {
            self.send(Request::empty_transaction(), Sender::Committing, &mut unsent);
        }
        let rhythm = (self.timeout / 16).min(Duration::from_millis(250)).max(Duration::from_millis(1));
        let mut tick = clock::sleep(&*self.clock, rhythm);
        loop {
            tokio::select! {
                // What has arrived is looked at before the time: a process that was stopped is not a server that was.
                biased;
                read = connection.frames.read() => {
                    if read.is_err() {
                        return Ended::Connection("it was closed");
                    }
                    loop {
                        match connection.frames.next() {
                            Ok(None) => break,
                            Ok(Some(frame)) => {
                                if let Err(ended) = self.take(&frame, &mut unsent) {
                                    return ended;
                                }
                            }
                            Err(_) => return Ended::Connection("it carried garbage"),
                        }
                    }
                }
                pushed = push(&mut connection.writer, &unsent), if unflushed || !unsent.is_empty() => match pushed {
                    Ok(0) if unsent.is_empty() => unflushed = false,
                    Ok(count @ 1..) => {
                        unsent.drain(..count);
                        unflushed = true;
                    }
                    _ => return Ended::Connection("it was closed"),
                },
                order = self.orders.recv(), if unsent.len() < UNSENT => match order {
                    Some(order) => {
                        self.obey(order, &mut unsent);
                        while unsent.len() < UNSENT && let Ok(order) = self.orders.try_recv() {
                            self.obey(order, &mut unsent);
                        }
                    }
                    // Nobody has the handle any more. Its grants end with the session, a timeout later.
                    None => return End::Closed.into(),
                },
                () = &mut tick => {
                    if let Err(ended) = self.look_at_the_clock(&mut unsent) {
                        return ended;
                    }
                    tick = clock::sleep(&*self.clock, rhythm);
                }
            }
        }
    }

    fn obey(&mut self, order: Order, unsent: &mut Vec<u8>) {
        for asked in order.0 {
            // A caller that has given up must not have a node made for it later.
            if asked.answer.is_closed() {
                continue;
            }
            let watched = asked.watcher.map(|(path, watcher)| {
                let watchers = self.watchers.entry(path.clone()).or_default();
                watchers.retain(|watcher| !watcher.is_gone());
                watchers.push(watcher);
                path
            });
            let watched = watched.filter(|_| !asked.request.watches_what_is_absent());
            let sender = if asked.last { Sender::Closing(asked.answer) } else { Sender::Caller(asked.answer) };
            self.send(asked.request, sender, unsent);
            if let Some(sent) = self.under_way.back_mut() {
                sent.watched = watched;
            }
        }
    }

    fn send(&mut self, request: Request, sender: Sender, unsent: &mut Vec<u8>) {
        self.last_xid = if self.last_xid == i32::MAX - 1 { 1 } else { self.last_xid + 1 };
        let (xid, sent) = (self.last_xid, Sent::now(&*self.clock));
        self.under_way.push_back(UnderWay { xid, sent, sender, watched: None });
        unsent.extend(request.numbered(xid));
    }

    fn take(&mut self, frame: &[u8], unsent: &mut Vec<u8>) -> Result<(), Ended> {
        self.heard = self.clock.now();
        const GARBAGE: Ended = Ended::Connection("it carried garbage");
        let mut reader = Reader::new(frame);
        let (Some(xid), Some(zxid), Some(code)) = (reader.int(), reader.long(), reader.int()) else {
            return Err(GARBAGE);
        };
        let code = Code(code);
        match xid {
            XID_EVENT => {
                let event = Event::read(&mut reader).ok_or(GARBAGE)?;
                for watcher in self.watchers.remove(&event.path).unwrap_or_default() {
                    watcher.tell(event.change);
                }
                return Ok(());
            }
            XID_LOGIN if code == Code(0) => return Ok(()),
            XID_LOGIN => return Err(End::Refused(Failure::refused(Code::AUTH_FAILED)).into()),
            _ => {}
        }
        let Some(answered) = self.under_way.pop_front().filter(|first| first.xid == xid) else {
            return Err(Ended::Connection("an answer came out of turn"));
        };
        self.last_seen = self.last_seen.max(zxid);
        if code == Code::NO_NODE
            && let Some(path) = answered.watched
        {
            self.watchers.remove(&path); // the server watches only what is there
        }
        let body = || if code == Code(0) { Ok(reader.rest().to_vec()) } else { Err(Failure::refused(code)) };
        match answered.sender {
            // Whoever has gone does not want to know.
            Sender::Caller(caller) => drop(caller.send(body())),
            Sender::Closing(caller) => {
                let _ = caller.send(body());
                return Err(End::Closed.into());
            }
            _ if code != Code(0) => return Err(Ended::Connection("a heartbeat was refused")),
            Sender::Synchronizing => {
                self.heart.synchronized(Sent::now(&*self.clock));
                self.send(Request::empty_transaction(), Sender::Committing, unsent);
            }
            Sender::Committing => {
                if let Some(proven) = self.heart.committed(self.clock.now()) {
                    self.state.send_modify(|state| state.proven = state.proven.max(proven));
                }
            }
        }
        match code {
            Code::SESSION_EXPIRED => Err(End::Expired.into()),
            Code::SESSION_MOVED => Err(Ended::Connection("the session has another one")),
            Code::AUTH_FAILED | Code::SASL_REQUIRED => Err(End::Refused(Failure::refused(code)).into()),
            _ => Ok(()),
        }
    }

    fn look_at_the_clock(&mut self, unsent: &mut Vec<u8>) -> Result<(), Ended> {
        let now = self.clock.now();
        if now >= self.state.borrow().ends(self.timeout) {
            return Err(End::OutOfTime.into());
        }
        let oldest = self.under_way.front().map(|oldest| oldest.sent.moment().max(self.heard));
        if oldest.is_some_and(|oldest| now.since(oldest) >= self.answer_within) {
            return Err(Ended::Connection("no answer came"));
        }
        if self.heart.begin(now) {
            self.send(Request::sync("/"), Sender::Synchronizing, unsent);
        }
        Ok(())
    }

    /// What was under way may have been applied or not; watches are gone, and their watchers look again.
    fn forget_connection(&mut self) {
        for lost in self.under_way.drain(..) {
            if let Sender::Caller(caller) | Sender::Closing(caller) = lost.sender {
                let _ = caller.send(Err(Failure::broken()));
            }
        }
        self.watchers.clear();
    }

    /// Until a server takes the session up again, the servers say that it is over, or our own clock does.
    async fn reconnect(&mut self) -> Result<Connection, End> {
        let mut backoff = Backoff::new(Duration::from_millis(10), (self.timeout / 8).min(Duration::from_secs(1)));
        loop {
            let ends = self.state.borrow().ends(self.timeout);
            if self.orders.is_closed() {
                return Err(End::Closed);
            }
            let wanted = Wanted {
                timeout_ms: i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX),
                last_seen: self.last_seen,
                session: self.id,
                password: &self.password,
            };
            let greeted = tokio::select! {
                greeted = self.servers.connect(wanted, self.answer_within, &*self.clock) => greeted,
                () = self.clock.sleep_until(ends) => return Err(End::OutOfTime),
            };
            match greeted {
                Ok(greeted) if greeted.greeting.session != self.id => return Err(End::Expired),
                // A server with other limits: what was told to holders does not hold any more.
                Ok(greeted) if i128::from(greeted.greeting.timeout_ms) < self.timeout.as_millis() as i128 => {
                    return Err(End::OutOfTime);
                }
                Ok(greeted) => {
                    self.heart.reconnected(greeted.sent, Sent::now(&*self.clock));
                    self.state.send_modify(|state| state.connection += 1);
                    return Ok(greeted.connection);
                }
                Err(failure) => {
                    tracing::debug!(session = self.id, ?failure, "no connection to ZooKeeper yet");
                    let pause = self.clock.now().after(backoff.pause()).min(ends);
                    self.clock.sleep_until(pause).await;
                    if self.clock.now() >= ends {
                        return Err(End::OutOfTime);
                    }
                }
            }
        }
    }
}

/// Writes, or sees to it that what was written leaves. Answers how much was written. Cancel safe.
async fn push(writer: &mut (impl AsyncWrite + Unpin), unsent: &[u8]) -> std::io::Result<usize> {
    if unsent.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    writer.write(unsent).await
}
