//! One session: a task that owns the connection, keeps it alive, and makes it anew; and the handle to it.

mod keeper;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use fencepost_core::{
    clock::{Clock, Moment, Sent},
    limits::Ttl,
    owner::Owner,
};
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    failure::Failure,
    heartbeat::Heartbeat,
    servers::{Servers, Wanted},
    session::keeper::Keeper,
    wire::{Answer, Change, Children, Code, Node, Reader, Request, Stat},
};

/// Requests that wait to be sent before their senders stand in line.
const QUEUE: usize = 256;

/// A session's timeout as the servers granted it, and the session.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its number in the ensemble: the owner of its nodes.
    pub(crate) id: i64,
    /// Its timeout as it was granted.
    pub(crate) timeout: Duration,
    answer_within: Duration,
    orders: mpsc::Sender<Order>,
    state: watch::Receiver<State>,
}

/// What is known of a session.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// It lasts a timeout from here (T1).
    pub(crate) proven: Sent,
    /// Rises with each new connection: watches do not outlive one.
    pub(crate) connection: u64,
    /// Why it is over, once it is.
    pub(crate) over: Option<End>,
}

/// How a session ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The servers said so.
    Expired,
    /// By our own clock, before the servers could hand its locks on; they were not asked.
    OutOfTime,
    /// We ended it.
    Closed,
    /// The servers do not talk to us any more, and say why.
    Refused(Failure),
}

/// Whom to tell of a watched node's next change. Dropped untold when the connection is lost.
#[derive(Debug)]
pub(crate) enum Watcher {
    /// A waiter, until it goes away.
    Waiter(oneshot::Sender<Change>),
    /// The node of a grant.
    Grant(Owner, mpsc::UnboundedSender<(Owner, Change)>),
}

impl Watcher {
    fn tell(self, change: Change) {
        // Whoever has gone does not want to know.
        match self {
            Self::Waiter(waiter) => drop(waiter.send(change)),
            Self::Grant(owner, losses) => drop(losses.send((owner, change))),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self, Self::Waiter(waiter) if waiter.is_closed())
    }
}

/// Requests that are sent next to each other.
struct Order(Vec<Asked>);

struct Asked {
    request: Request,
    watcher: Option<(String, Watcher)>,
    answer: oneshot::Sender<Result<Vec<u8>, Failure>>,
    /// Whether its answer is the last of the session.
    last: bool,
}

impl Session {
    /// Opens a session. It lives until it is closed, or a timeout after the handle was dropped.
    pub(crate) async fn open(
        servers: Servers,
        ttl: Ttl,
        answer_within: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let asked_ms = i32::try_from(ttl.millis()).unwrap_or(i32::MAX);
        let wanted = Wanted { timeout_ms: asked_ms, last_seen: 0, session: 0, password: &[0; 16] };
        let greeted = servers.connect(wanted, answer_within, &*clock).await?;
        let (greeting, now) = (greeted.greeting, clock.now());
        let timeout_ms = u64::try_from(greeting.timeout_ms).ok().filter(|ms| *ms > 0 && greeting.session != 0);
        let timeout = Duration::from_millis(timeout_ms.ok_or_else(Failure::puzzling)?);
        if greeting.timeout_ms != asked_ms {
            tracing::warn!(asked_ms, granted_ms = greeting.timeout_ms, "ZooKeeper grants another session timeout");
        }
        let took = now.since(greeted.sent.moment());
        if took >= timeout {
            let said = format!("opening a session took {took:?} and it lasts {timeout:?}: it was over on arrival");
            return Err(Failure::late(said));
        }
        let (orders, to_do) = mpsc::channel(QUEUE);
        let (tell, state) = watch::channel(State { proven: greeted.sent, connection: 0, over: None });
        let keeper = Keeper {
            servers,
            clock,
            answer_within: answer_within.min(timeout / 3),
            id: greeting.session,
            password: greeting.password,
            timeout,
            last_seen: 0,
            last_xid: 0,
            heard: now,
            heart: Heartbeat::of_a_new_session(timeout, greeted.sent, now),
            orders: to_do,
            state: tell,
            under_way: VecDeque::new(),
            watchers: Default::default(),
        };
        tokio::spawn(keeper.keep(greeted.connection));
        Ok(Self { id: greeting.session, timeout, answer_within, orders, state })
    }

    /// What is known of it now.
    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.borrow().over.is_some()
    }

    /// Completes with the reason when it is over. Keeps nothing alive.
    pub(crate) fn over(&self) -> impl Future<Output = End> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            let over = state.wait_for(|state| state.over.is_some()).await.ok().and_then(|state| state.over.clone());
            over.unwrap_or(End::Closed) // the runtime ends
        }
    }

    /// Completes when something else is known of it; at once when that is so since `seen`.
    pub(crate) async fn changed_since(&self, seen: impl Fn(&State) -> bool) -> State {
        let mut state = self.state.clone();
        // The task ends only after it told that the session is over.
        let found = state.wait_for(|state| state.over.is_some() || seen(state)).await.map(|state| state.clone());
        found.unwrap_or_else(|_| self.state())
    }

    /// Sends one request.
    pub(crate) async fn ask<A: Answer>(&self, request: Request) -> Result<A, Failure> {
        self.ask_so(request, None, false).await
    }

    /// Reads a node and has its next change told to `watcher`. Nothing is told of a node that is not there.
    pub(crate) async fn watch(&self, path: &str, watcher: Watcher) -> Result<Node, Failure> {
        self.ask_so(Request::get(path, true), Some((path.to_owned(), watcher)), false).await
    }

    /// Has the next change of a node told to `watcher`, its creation where it is not there.
    pub(crate) async fn watch_for(&self, path: &str, watcher: Watcher) -> Result<Option<Stat>, Failure> {
        let watched = Some((path.to_owned(), watcher));
        match self.ask_so(Request::appears(path), watched, false).await {
            Ok(stat) => Ok(Some(stat)),
            Err(failure) if failure.is(Code::NO_NODE) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Lists a node's children and has the next coming or going there told to `watcher`. Nothing is told of a node that is not
    /// there.
    pub(crate) async fn watch_children(&self, path: &str, watcher: Watcher) -> Result<Children, Failure> {
        self.ask_so(Request::children(path, true), Some((path.to_owned(), watcher)), false).await
    }

    /// Ends the session in the ensemble, and every node of it.
    pub(crate) async fn close(&self) {
        let _: Result<(), _> = self.ask_so(Request::close_session(), None, true).await;
    }

    /// Sends two requests in one go.
    pub(crate) async fn ask_both<A: Answer, B: Answer>(
        &self,
        first: Request,
        second: Request,
    ) -> Result<(Result<A, Failure>, Result<B, Failure>), Failure> {
        let ((first, a), (second, b)) = (asked(first), asked(second));
        self.within(async {
            self.order(vec![first, second]).await?;
            Ok((self.read(a.await), self.read(b.await)))
        })
        .await
    }

    /// Sends requests in one go, however many; their answers in the same order.
    pub(crate) async fn ask_all<A: Answer>(&self, requests: Vec<Request>) -> Vec<Result<A, Failure>> {
        let count = requests.len();
        let (all, answers): (Vec<_>, Vec<_>) = requests.into_iter().map(asked).unzip();
        let got = self
            .within(async {
                self.order(all).await?;
                Ok(join_all(answers.into_iter().map(async |answer| self.read(answer.await))).await)
            })
            .await;
        got.unwrap_or_else(|failure| std::iter::repeat_with(|| Err(failure.clone())).take(count).collect())
    }

    async fn ask_so<A: Answer>(
        &self,
        request: Request,
        watcher: Option<(String, Watcher)>,
        last: bool,
    ) -> Result<A, Failure> {
        let (asked, answer) = asked(request);
        let asked = Asked { watcher, last, ..asked };
        self.within(async {
            self.order(vec![asked]).await?;
            self.read(answer.await)
        })
        .await
    }

    async fn order(&self, all: Vec<Asked>) -> Result<(), Failure> {
        self.orders.send(Order(all)).await.map_err(|_| self.why_over())
    }

    fn read<A: Answer>(&self, answer: Answered) -> Result<A, Failure> {
        let body = answer.unwrap_or_else(|_| Err(self.why_over()))?;
        A::read(&mut Reader::new(&body)).ok_or_else(Failure::puzzling)
    }

    fn why_over(&self) -> Failure {
        match &self.state.borrow().over {
            Some(End::Refused(failure)) => failure.clone(),
            Some(End::Closed) => Failure::closed(),
            _ => Failure::session_over(),
        }
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::time::timeout(self.answer_within, work).await.unwrap_or_else(|_| Err(Failure::no_answer()))
    }
}

impl State {
    /// When the session may end, by what is proven.
    pub(crate) fn ends(&self, timeout: Duration) -> Moment {
        self.proven.moment().after(timeout)
    }
}

type Answered = Result<Result<Vec<u8>, Failure>, oneshot::error::RecvError>;

fn asked(request: Request) -> (Asked, oneshot::Receiver<Result<Vec<u8>, Failure>>) {
    let (answer, to_come) = oneshot::channel();
    (Asked { request, watcher: None, answer, last: false }, to_come)
}
