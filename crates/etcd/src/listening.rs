//! The task that has the stream of watches.
//!
//! Streams do not heal: when one breaks, or its connection is given up, a new one watches on from the revision that was last
//! seen, so that no deletion in between is missed. Where that revision has been compacted away, the key is read anew.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    claim::LossReason,
    clock::{self, Clock, Moment},
    error::Applied,
};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::{
    api::{
        EventType, FilterType, KeyValue, RequestUnion, WatchCancelRequest, WatchClient, WatchCreateRequest,
        WatchRequest, WatchResponse, end_of, exactly, revision,
    },
    ears::{Command, Event, LATE, Listener},
    failure::{Failure, Sort},
    late::Late,
    ledger::{Ledger, ToWatch},
    link::{Connection, Link, MAX_ANSWER},
};

/// The pause before a holder's key is read whose watch could not go on.
const AGAIN: Duration = Duration::from_millis(200);

/// The task's own.
pub(crate) struct Listening {
    link: Arc<Link>,
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    back: mpsc::WeakUnboundedSender<Command>,
    watches: HashMap<u64, Watch>,
    late: Arc<Late>,
    /// When to look among the late ones, while there are any.
    next_look: Option<Moment>,
    next_holder: u64,
    stream: Option<Stream>,
}

struct Watch {
    /// The next revision to be told.
    from: i64,
    listener: Listener,
    /// Its number on the current stream.
    number: Option<i64>,
}

struct Stream {
    requests: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    generation: u64,
    /// Asked for and not numbered yet: the server answers in the order in which it was asked.
    asked: VecDeque<u64>,
    numbers: HashMap<i64, u64>,
}

impl Watch {
    /// `None` for a claim that is here no more.
    fn create(&self, ledger: &Ledger) -> Option<WatchRequest> {
        let (key, event) = match &self.listener {
            Listener::Waiter(waiter) => (waiter.key.clone(), waiter.event),
            // It wants to see writes to its key as well: one without its lease makes the claim permanent.
            Listener::Holder { owner, lock } => (ledger.key_of(owner, usize::from(*lock))?, Event::Change),
        };
        let (filters, range_end) = match event {
            Event::Deletion => (vec![FilterType::Noput.into()], Vec::new()),
            Event::ChangeBelow => (Vec::new(), end_of(&key)),
            Event::Change => (Vec::new(), Vec::new()),
        };
        let create = WatchCreateRequest { key, range_end, start_revision: self.from, filters, ..Default::default() };
        Some(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) })
    }
}

impl Stream {
    fn cancel(&mut self, number: i64) {
        self.numbers.remove(&number);
        let cancel = RequestUnion::CancelRequest(WatchCancelRequest { watch_id: number });
        // A stream that has ended is noticed where answers are read.
        let _ = self.requests.send(WatchRequest { request_union: Some(cancel) });
    }
}

enum Heard {
    Command(Option<Command>),
    Answer(Result<Option<WatchResponse>, Status>),
    LinkLeft,
    /// There are late ones now.
    Late,
    Due,
}

impl Listening {
    pub(crate) fn new(
        link: Arc<Link>,
        ledger: Arc<Ledger>,
        clock: Arc<dyn Clock>,
        back: mpsc::WeakUnboundedSender<Command>,
        late: Arc<Late>,
    ) -> Self {
        let watches = HashMap::new();
        Self { link, ledger, clock, back, watches, late, next_look: None, next_holder: 1, stream: None }
    }

    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            if self.stream.is_none() && !self.watches.is_empty() {
                match self.open_stream().await {
                    Ok(()) => backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
                    Err(failure) => {
                        tracing::debug!(?failure, "no stream of watches; waiters look for themselves");
                        self.ring_all();
                        let pause = clock::sleep(&*self.clock, backoff.pause());
                        if self.link.is_closed() || !self.obey_until(pause, &mut commands).await {
                            return;
                        }
                        continue;
                    }
                }
            }
            match self.hear(&mut commands).await {
                Heard::Command(None) => return,
                Heard::Command(Some(command)) => self.obey(command),
                Heard::Answer(Ok(Some(answer))) => self.answered(answer),
                Heard::Answer(ended) => self.stream_ended(ended.err()),
                Heard::LinkLeft => self.stream_ended(None),
                Heard::Late => self.next_look = Some(self.clock.now().after(LATE)),
                Heard::Due => self.begin_what_is_due(),
            }
        }
    }

    async fn hear(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) -> Heard {
        let late = async {
            match self.next_look {
                Some(moment) => {
                    self.clock.sleep_until(moment).await;
                    Heard::Due
                }
                None => {
                    self.late.begun().await;
                    Heard::Late
                }
            }
        };
        let Some(stream) = &mut self.stream else {
            return tokio::select! {
                command = commands.recv() => Heard::Command(command),
                heard = late => heard,
            };
        };
        tokio::select! {
            command = commands.recv() => Heard::Command(command),
            answer = stream.answers.message() => Heard::Answer(answer),
            () = self.link.left(stream.generation) => Heard::LinkLeft,
            heard = late => heard,
        }
    }

    /// Goes on obeying until `pause` is over; `false` when there is nobody left to obey.
    async fn obey_until(
        &mut self,
        pause: impl Future<Output = ()>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> bool {
        let mut pause = std::pin::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return false,
                },
            }
        }
    }

    async fn open_stream(&mut self) -> Result<(), Failure> {
        let connection = self.link.connection().await?;
        let (requests, mut queued) = mpsc::unbounded_channel();
        let mut asked = VecDeque::new();
        // The server says nothing before it was asked for the first watch.
        self.watches.retain(|id, watch| {
            let Some(create) = watch.create(&self.ledger) else { return false };
            watch.number = None;
            asked.push_back(*id);
            let _ = requests.send(create); // we have the other end
            true
        });
        let sent = connection.request(futures_util::stream::poll_fn(move |context| queued.poll_recv(context)));
        let Connection { channel, generation, address, .. } = connection;
        let mut client = WatchClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        let failure = match tokio::time::timeout(self.link.timeout, client.watch(sent)).await {
            Ok(Ok(answers)) => {
                let answers = answers.into_inner();
                self.stream = Some(Stream { requests, answers, generation, asked, numbers: HashMap::new() });
                return Ok(());
            }
            Ok(Err(status)) => Failure::answered(&status, &address),
            Err(_) => Failure::no_answer(&address, Applied::No),
        };
        if failure.sort != Sort::Final {
            self.link.leave(generation);
        }
        Err(failure)
    }

    fn stream_ended(&mut self, status: Option<Status>) {
        let Some(stream) = self.stream.take() else { return };
        tracing::debug!(?status, "the stream of watches ended; a new one watches on");
        // A member that ends it has lost its leader, or is going down.
        self.link.leave(stream.generation);
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Watch { id, from, waiter } => {
                self.watch(id, Watch { from, listener: Listener::Waiter(waiter), number: None });
            }
            Command::Forget { ids } => ids.for_each(|id| self.forget(id)),
            Command::Read { id, from: Some(from) } => {
                if let Some(watch) = self.watches.remove(&id) {
                    self.watch(id, Watch { from, ..watch });
                }
            }
            Command::Read { id, from: None } => self.read_soon(id),
        }
    }

    fn watch(&mut self, id: u64, watch: Watch) {
        if let Some(stream) = &mut self.stream {
            let Some(create) = watch.create(&self.ledger) else { return };
            stream.asked.push_back(id);
            let _ = stream.requests.send(create); // noticed where answers are read
        }
        self.watches.insert(id, watch);
    }

    fn forget(&mut self, id: u64) {
        let number = self.watches.remove(&id).and_then(|watch| watch.number);
        if let (Some(stream), Some(number)) = (&mut self.stream, number) {
            stream.cancel(number);
        }
    }

    /// Watches the keys of those who still hold.
    fn begin_what_is_due(&mut self) {
        let now = self.clock.now();
        let due = self.late.due(now);
        self.next_look = due.others.then(|| now.after(LATE));
        for owner in due.holders {
            let first = self.next_holder;
            let Some(ToWatch { seen, locks, before }) = self.ledger.watch(&owner, first) else { continue };
            self.next_holder += locks;
            for (id, lock) in (first..self.next_holder).zip(0..) {
                self.watch(id, Watch { from: seen + 1, listener: Listener::Holder { owner, lock }, number: None });
            }
            if before > 0 {
                (before..before + locks).for_each(|id| self.forget(id));
            }
        }
    }

    fn answered(&mut self, answer: WatchResponse) {
        let Some(stream) = &mut self.stream else { return };
        if answer.created {
            let Some(id) = stream.asked.pop_front() else { return };
            match self.watches.get_mut(&id) {
                Some(watch) if !answer.canceled => {
                    watch.number = Some(answer.watch_id);
                    stream.numbers.insert(answer.watch_id, id);
                }
                Some(_) => self.trouble(id),
                None if answer.canceled => {}
                None => stream.cancel(answer.watch_id), // forgotten meanwhile
            }
            return;
        }
        let Some(id) = stream.numbers.get(&answer.watch_id).copied() else { return };
        if answer.canceled {
            stream.numbers.remove(&answer.watch_id);
            self.trouble(id);
        }
        for event in answer.events {
            if let Some(kv) = event.kv {
                self.happened(id, event.r#type == EventType::Delete as i32, &kv);
            }
        }
    }

    fn happened(&mut self, id: u64, deleted: bool, kv: &KeyValue) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.from = watch.from.max(kv.mod_revision + 1);
        match &watch.listener {
            // A claim that comes has nothing to say to those before it.
            Listener::Waiter(waiter) if deleted || (waiter.event != Event::Deletion && kv.version > 1) => {
                // From now on it has to come and look.
                self.ledger.unattended(&waiter.owner, Some(self.clock.now()));
                waiter.bell.notify_one();
            }
            Listener::Waiter(_) => {}
            Listener::Holder { owner, .. } if deleted => {
                self.ledger.lose(owner, LossReason::Deleted);
                self.forget(id);
            }
            Listener::Holder { owner, .. } => {
                // Written by another: the claim would not end with our session any more.
                let ours = self.ledger.session(owner).is_some_and(|session| session.id == kv.lease);
                if !ours {
                    self.ledger.lose(owner, LossReason::TakenOver);
                }
            }
        }
    }

    /// A watch cannot go on: its revision has been compacted away, or the server refused it.
    fn trouble(&mut self, id: u64) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.number = None;
        match &watch.listener {
            Listener::Waiter(waiter) => waiter.bell.notify_one(),
            Listener::Holder { .. } => self.read_soon(id),
        }
    }

    /// Reads a holder's key, to watch on from there.
    fn read_soon(&mut self, id: u64) {
        let Some(Watch { listener: Listener::Holder { owner, lock }, .. }) = self.watches.get(&id) else { return };
        let (owner, key) = (*owner, self.ledger.key_of(owner, usize::from(*lock)));
        let Some(key) = key else { return self.forget(id) };
        let (link, ledger, clock, back) =
            (self.link.clone(), self.ledger.clone(), self.clock.clone(), self.back.clone());
        tokio::spawn(async move {
            clock::sleep(&*clock, AGAIN).await;
            let from = match link.range(exactly(&key).bare()).await {
                Ok(read) if read.kvs.is_empty() => return ledger.lose(&owner, LossReason::Deleted),
                Ok(read) => Some(revision(&read.header) + 1),
                Err(_) => None,
            };
            if let Some(back) = back.upgrade() {
                let _ = back.send(Command::Read { id, from }); // nobody listens any more
            }
        });
    }

    fn ring_all(&self) {
        for watch in self.watches.values() {
            if let Listener::Waiter(waiter) = &watch.listener {
                waiter.bell.notify_one();
            }
        }
    }
}
