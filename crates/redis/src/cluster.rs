//! The masters of a cluster: which of them has a key's slot now, and how a command finds it while slots move and masters
//! are replaced.

mod config;
mod shards;
mod slots;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::{Backoff, jitter},
    clock::{self, Clock, Moment},
    error::{Applied, ErrorKind},
};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use redis::{Cmd, Pipeline, RedisError, ServerErrorKind, Value, aio::PubSub, cmd};

pub use self::config::ClusterConfig;
pub(crate) use self::{shards::Heard, slots::slot};
use tokio::sync::watch;

use self::{
    shards::Shards,
    slots::{Range, SLOTS},
};
use crate::{
    config::RedisConfig,
    connection::Link,
    failure::Failure,
    replicas::{Kept, Trouble},
    route::{Fixed, Server},
    scripts::Script,
};

/// How often one command is sent elsewhere before it is told as a failure. While slots move, an answer may send it to
/// and fro a few times.
const REDIRECTIONS: usize = 8;
/// The map is not asked for more often than this, however many commands found it outdated.
const MAP_PAUSE: Duration = Duration::from_millis(50);
/// Nodes that are asked for the map at once. The first answer counts.
const ASKED_AT_ONCE: usize = 3;
/// Commands of one pipeline.
const PIPELINE: usize = 100;

#[derive(Debug)]
pub(crate) struct Cluster {
    /// Those that the user named.
    seeds: Vec<(String, u16)>,
    /// Login and limits for every node.
    node: RedisConfig,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Held by the one task that asks for the map; when it was asked for last.
    asking: tokio::sync::Mutex<Option<(Moment, Result<(), Failure>)>>,
    shards: Arc<Shards>,
    /// Counts masters that were replaced.
    replaced: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    map: Arc<Map>,
    /// To the nodes that were of use, by their addresses.
    links: HashMap<String, Arc<Link>>,
    /// The nodes that the user named and those of the map: one of them will know the next map.
    known: BTreeSet<(String, u16)>,
    closed: bool,
}

/// Which master has which slot.
#[derive(Debug, Default)]
struct Map {
    /// An index into the masters; empty before the map is known.
    owners: Vec<Option<u16>>,
    masters: Vec<Arc<Link>>,
}

/// Places in a list of calls, by the master that each belongs to as far as is known.
type ByMaster = HashMap<Option<usize>, (Option<Arc<Link>>, Vec<usize>)>;

/// What is sent to where a key lives.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Cmd),
    Script { script: &'a Script, keys: &'a [String], arguments: &'a [&'a [u8]] },
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// It must not be sent again when its outcome is unknown.
    Once,
    /// It can be repeated.
    Repeat,
    /// It can be repeated, and counts only once enough replicas have it.
    Keep,
}

impl Cluster {
    /// Connects to one of the nodes and learns the map.
    pub(crate) async fn open(config: &ClusterConfig, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let seeds: Vec<_> = config.nodes.iter().map(|node| (node.host.clone(), node.port)).collect();
        let known = seeds.iter().cloned().collect();
        let state = State { map: Arc::default(), links: HashMap::new(), known, closed: false };
        let Some(node) = config.nodes.first().cloned() else {
            return Err(Failure::new(ErrorKind::InvalidInput, Applied::No, "no node of the cluster is named"));
        };
        let cluster = Self {
            seeds,
            node,
            clock,
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
            shards: Shards::new(),
            replaced: watch::Sender::new(0),
        };
        cluster.learn(None).await?;
        Ok(cluster)
    }

    /// Sends a request to the master of `key`, and after it when that changes.
    pub(crate) async fn exchange(&self, key: &str, request: Request<'_>, care: Care) -> Result<Kept, Failure> {
        let slot = slot(key);
        let until = self.clock.now().after(self.node.timeout);
        let mut pause = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
        let mut sent_to: Option<(Arc<Link>, Asking)> = None;
        let (mut redirections, mut may_reconnect) = (0, true);
        loop {
            let (link, asking) = match sent_to.take() {
                Some(there) => there,
                None => (self.master_of(slot).await?, Asking::No),
            };
            let trouble = match link.exchange(request, care, asking == Asking::Yes).await {
                Ok(kept) => return Ok(kept),
                Err(trouble) => trouble,
            };
            let failure = match Redirection::of(&trouble) {
                Redirection::To(address, asking) => {
                    let there = self.link_to(&address, &link)?;
                    if asking == Asking::No {
                        self.learn(Some(&there)).await?;
                    }
                    sent_to = Some((there, asking));
                    redirections += 1;
                    failure_of(trouble)
                }
                Redirection::Wait => {
                    clock::sleep(&*self.clock, pause.pause()).await;
                    failure_of(trouble)
                }
                Redirection::Perhaps { sent, reconnect } => {
                    let failure = failure_of(trouble);
                    if sent && care == Care::Once {
                        return Err(failure);
                    }
                    let learned = self.learn(None).await;
                    // Sent again only where that can help: to another master, or once over a connection made anew.
                    let same = learned.is_err() || Arc::ptr_eq(&self.master_of(slot).await?, &link);
                    if same && !(reconnect && std::mem::take(&mut may_reconnect)) {
                        return Err(failure);
                    }
                    failure
                }
                Redirection::None => return Err(failure_of(trouble)),
            };
            if redirections > REDIRECTIONS || self.clock.now() >= until {
                return Err(failure);
            }
        }
    }

    /// Calls a script where its keys live, which all have one slot.
    pub(crate) async fn call(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
        care: Care,
    ) -> Result<Kept, Failure> {
        let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        self.exchange(&keys[0], Request::Script { script, keys, arguments: &arguments }, care).await
    }

    /// Sends reads to the master of `key`. While its slot moves, one that was sent elsewhere has its error among the
    /// answers, and all are read again.
    pub(crate) async fn read(&self, key: &str, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        let mut pause = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
        let until = self.clock.now().after(self.node.timeout);
        loop {
            let answers = self.master_of(slot(key)).await?.read(reads).await;
            let moved = |answer: &Value| {
                let Value::ServerError(error) = answer else { return None };
                cluster_failure(&error.clone().into())
            };
            let failure = match answers {
                Ok(answers) => match answers.iter().find_map(moved) {
                    None => return Ok(answers),
                    Some(failure) => failure,
                },
                Err(failure) if failure.kind == ErrorKind::Unavailable => failure,
                Err(failure) => return Err(failure),
            };
            if self.clock.now() >= until {
                return Err(failure);
            }
            clock::sleep(&*self.clock, pause.pause()).await;
            self.learn(None).await?;
        }
    }

    /// Calls a script many times, in one pipeline after another to each master. All answers are there `within` this time:
    /// a master that is silent must not keep the answers of the others from whoever waits for all (R1).
    pub(crate) async fn call_many(
        &self,
        script: &Script,
        calls: &[(Vec<String>, Vec<String>)],
        within: Duration,
    ) -> Vec<Result<Kept, Failure>> {
        let mut by_master = ByMaster::new();
        for (place, (keys, _)) in calls.iter().enumerate() {
            let link = self.state().map.master_of(slot(&keys[0]));
            let master = link.as_ref().map(|link| Arc::as_ptr(link) as usize);
            by_master.entry(master).or_insert((link, Vec::new())).1.push(place);
        }
        let batches =
            by_master.values().flat_map(|(link, places)| places.chunks(PIPELINE).map(move |chunk| (link, chunk)));
        let answered = join_all(batches.map(|(link, places)| async move {
            let batch = places.iter().map(|place| &calls[*place]).collect();
            let limited = tokio::time::timeout(within, self.call_batch(link.as_ref(), script, batch)).await;
            let late = || {
                Err(Failure::new(ErrorKind::Unavailable, Applied::Unknown, "the key's master did not answer in time"))
            };
            places.iter().copied().zip(limited.unwrap_or_else(|_| places.iter().map(|_| late()).collect()))
        }));
        let mut answers: Vec<_> = answered.await.into_iter().flatten().collect();
        answers.sort_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// One pipeline. What it cannot do, a script that the node does not know or a slot that moved, is done one by one.
    async fn call_batch(
        &self,
        link: Option<&Arc<Link>>,
        script: &Script,
        batch: Vec<&(Vec<String>, Vec<String>)>,
    ) -> Vec<Result<Kept, Failure>> {
        let sent = match link {
            Some(link) => {
                let commands = batch.iter().map(|(keys, arguments)| script.by_hash(keys, arguments));
                link.send_all(commands.collect(), Care::Keep).await.ok()
            }
            None => None,
        };
        let (values, short) = sent.unwrap_or_default();
        let mut values = values.into_iter();
        let each = batch.into_iter().map(|(keys, arguments)| (values.next(), short.clone(), keys, arguments));
        let each = each.map(|(value, short, keys, arguments)| async move {
            match value {
                Some(value) if !matches!(value, Value::ServerError(_)) => Ok(Kept { value, short }),
                _ => self.call(script, keys, arguments, Care::Keep).await,
            }
        });
        join_all(each).await
    }

    /// Listens to the messages of a channel within its slot; `false` where the cluster does not know such.
    pub(crate) async fn hear(&self, channel: &str) -> Result<bool, Failure> {
        self.shards.hear(self, channel).await
    }

    /// Stops listening to a channel.
    pub(crate) fn unhear(&self, channel: &str) {
        self.shards.unhear(channel);
    }

    /// What arrives on the channels that are listened to. Cancel safe.
    pub(crate) async fn heard(&self) -> Heard {
        self.shards.heard().await
    }

    /// Completes when a master was replaced, whose successor may not have everything. Cancel safe.
    pub(crate) async fn replaced(&self) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.replaced.subscribe().changed().await;
    }

    fn config_of(&self, address: &str) -> Result<RedisConfig, Failure> {
        let (host, port) = address.rsplit_once(':').ok_or_else(Failure::puzzling)?;
        let port = port.parse().map_err(|_| Failure::puzzling())?;
        Ok(self.node.at(host.trim_start_matches('[').trim_end_matches(']'), port))
    }

    /// A connection of its own for messages, to any node: they go to all of them.
    pub(crate) async fn messages(&self) -> Result<(PubSub, Arc<Server>), Failure> {
        let masters = self.masters().await?;
        let turn = (jitter() * masters.len() as f64) as usize;
        let mut last = None;
        for link in masters.iter().cycle().skip(turn).take(masters.len()) {
            match link.messages().await {
                Ok(connected) => return Ok(connected),
                Err(failure) => last = Some(failure),
            }
        }
        // The map may be of a time before they were replaced.
        self.learn(None).await?;
        Err(last.unwrap_or_else(Failure::closed))
    }

    /// Every master that has slots.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Link>>, Failure> {
        if self.state().map.masters.is_empty() {
            self.learn(None).await?;
        }
        Ok(self.state().map.masters.clone())
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.node.connect_timeout
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.map = Arc::default();
        state.links.drain().for_each(|(_, link)| link.close());
        self.shards.close();
    }

    /// The master of a slot as far as is known.
    pub(crate) async fn master_of(&self, slot: u16) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.known_master_of(slot)? {
            return Ok(link);
        }
        self.learn(None).await?;
        self.known_master_of(slot)?.ok_or_else(|| {
            Failure::new(ErrorKind::Unavailable, Applied::No, format!("no node of the cluster has the slot {slot}"))
        })
    }

    /// `None` when the map does not say. A closed cluster has no map, and that is not the nodes' fault.
    fn known_master_of(&self, slot: u16) -> Result<Option<Arc<Link>>, Failure> {
        let state = self.state();
        if state.closed { Err(Failure::closed()) } else { Ok(state.map.master_of(slot)) }
    }

    /// Asks for the map, `first` before others. Whoever comes while it is asked for waits for that answer.
    pub(crate) async fn learn(&self, first: Option<&Arc<Link>>) -> Result<(), Failure> {
        let came = self.clock.now();
        let mut last = self.asking.lock().await;
        // Also a failure is shared: a crowd that asked one after another would wait for as many time limits.
        if let Some((at, outcome)) = &*last
            && (*at > came || came.since(*at) < MAP_PAUSE)
        {
            return outcome.clone();
        }
        let asked = tokio::time::timeout(self.node.connect_timeout, self.ask_for_maps(first)).await;
        let silent = || Failure::new(ErrorKind::Unavailable, Applied::No, "no node of the cluster answers");
        let outcome = asked.unwrap_or_else(|_| Err(silent())).and_then(|ranges| self.adopt(ranges));
        *last = Some((self.clock.now(), outcome.clone()));
        outcome
    }

    async fn ask_for_maps(&self, first: Option<&Arc<Link>>) -> Result<Vec<Range>, Failure> {
        if let Some(link) = first
            && let Ok(ranges) = self.ask_for_map(link).await
        {
            return Ok(ranges);
        }
        self.ask_anybody().await
    }

    async fn ask_anybody(&self) -> Result<Vec<Range>, Failure> {
        let mut waiting = {
            let state = self.state();
            if state.closed {
                return Err(Failure::closed());
            }
            state.known.iter().cloned().collect::<Vec<_>>()
        };
        // Not always the same ones first: they may be the ones that are down.
        let turn = (jitter() * waiting.len() as f64) as usize;
        waiting.rotate_left(turn);
        let links = waiting.into_iter().map(|(host, port)| self.link_at(&host, port)).collect::<Result<Vec<_>, _>>()?;
        let mut asked = FuturesUnordered::new();
        let mut links = links.iter();
        let mut failures = Vec::new();
        asked.extend(links.by_ref().take(ASKED_AT_ONCE).map(|link| self.ask_for_map(link)));
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(ranges) => return Ok(ranges),
                Err(failure) => failures.push(failure),
            }
            asked.extend(links.next().map(|link| self.ask_for_map(link)));
        }
        let kind = failures.iter().map(|failure| failure.kind).find(|kind| *kind != ErrorKind::Unavailable);
        let told: BTreeSet<_> = failures.iter().map(Failure::message).collect();
        let said = format!("no node of the cluster tells where its keys are: {}", Vec::from_iter(told).join("; "));
        let failure = Failure::new(kind.unwrap_or(ErrorKind::Unavailable), Applied::No, said);
        Err(match failure.kind {
            ErrorKind::Misconfigured => {
                failure.advise("a single server is opened by redis:, one behind sentinels by redis+sentinel:")
            }
            _ => failure,
        })
    }

    async fn ask_for_map(&self, link: &Arc<Link>) -> Result<Vec<Range>, Failure> {
        let mut question = cmd("CLUSTER");
        question.arg("SLOTS");
        let mut answer = link.exchange(Request::Command(&question), Care::Repeat, false).await;
        if matches!(&answer, Err(Trouble::Answered(error)) if error.is_connection_dropped()) {
            answer = link.exchange(Request::Command(&question), Care::Repeat, false).await;
        }
        let address = link.destination();
        match answer {
            Ok(kept) => slots::read(kept.value, address.rsplit_once(':').map_or(&*address, |(host, _)| host)),
            Err(Trouble::Answered(error)) if is_no_node(&error) => {
                let said = format!("{address} is no node of a cluster");
                Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said))
            }
            Err(trouble) => Err(failure_of(trouble)),
        }
    }

    fn adopt(&self, ranges: Vec<Range>) -> Result<(), Failure> {
        let mut map = Map { owners: vec![None; SLOTS], masters: Vec::new() };
        let mut places: HashMap<&(String, u16), u16> = HashMap::new();
        for range in &ranges {
            let place = match places.get(&range.nodes[0]) {
                Some(place) => *place,
                None => {
                    let (host, port) = &range.nodes[0];
                    map.masters.push(self.link_at(host, *port)?);
                    // A cluster has far fewer masters than slots.
                    let place = (map.masters.len() - 1) as u16;
                    places.insert(&range.nodes[0], place);
                    place
                }
            };
            map.owners[usize::from(range.first)..=usize::from(range.last)].fill(Some(place));
        }
        let known: BTreeSet<_> = ranges.into_iter().flat_map(|range| range.nodes).chain(self.seeds.clone()).collect();
        let addresses: HashSet<_> = known.iter().map(|(host, port)| self.node.at(host, *port).address()).collect();
        let mut state = self.state();
        if !state.closed {
            // Slots that merely move leave their masters in place.
            let gone = |old: &Arc<Link>| !map.masters.iter().any(|new| Arc::ptr_eq(new, old));
            if state.map.masters.iter().any(gone) {
                self.replaced.send_modify(|count| *count += 1);
            }
            state.map = Arc::new(map);
            state.known = known;
            // Nodes come and go under new addresses: what nobody names any more is let go.
            state.links.retain(|address, _| addresses.contains(address));
        }
        Ok(())
    }

    /// The link to where an answer of `from` sent us: `HOST:PORT`, or `:PORT` at the same host.
    fn link_to(&self, address: &str, from: &Link) -> Result<Arc<Link>, Failure> {
        let (host, port) = address.rsplit_once(':').ok_or_else(Failure::puzzling)?;
        let port = port.parse().map_err(|_| Failure::puzzling())?;
        let here = from.destination();
        let host = if host.is_empty() { here.rsplit_once(':').map_or("", |(host, _)| host) } else { host };
        self.link_at(host.trim_start_matches('[').trim_end_matches(']'), port)
    }

    fn link_at(&self, host: &str, port: u16) -> Result<Arc<Link>, Failure> {
        let config = self.node.at(host, port);
        let mut state = self.state();
        if state.closed {
            return Err(Failure::closed());
        }
        if let Some(link) = state.links.get(&config.address()) {
            return Ok(link.clone());
        }
        let route = Fixed::new(&config)
            .map_err(|error| Failure::new(ErrorKind::Unavailable, Applied::No, error.to_string()))?;
        let link = Arc::new(Link::new(route, &config, self.clock.clone()));
        state.links.insert(config.address(), link.clone());
        Ok(link)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves it whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
    fn master_of(&self, slot: u16) -> Option<Arc<Link>> {
        let place = (*self.owners.get(usize::from(slot))?)?;
        self.masters.get(usize::from(place)).cloned()
    }
}

/// Whether a command was sent to a node that is only about to get the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Yes,
    No,
}

/// What an answer says of where to go.
enum Redirection {
    /// Nothing was done; do it there.
    To(String, Asking),
    /// Nothing was done; the cluster is not ready for it.
    Wait,
    /// The master may be another one.
    Perhaps {
        /// It may have been done all the same.
        sent: bool,
        /// A new connection to the same one may do.
        reconnect: bool,
    },
    None,
}

impl Redirection {
    fn of(trouble: &Trouble) -> Self {
        use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
        let error = match trouble {
            Trouble::Unsent(failure) if failure.kind == ErrorKind::Unavailable => {
                return Self::Perhaps { sent: false, reconnect: false };
            }
            Trouble::Unsent(_) => return Self::None,
            Trouble::Answered(error) => error,
        };
        match (error.kind(), error.redirect_node()) {
            (redis::ErrorKind::Server(Moved), Some((address, _))) => Self::To(address.to_owned(), Asking::No),
            (redis::ErrorKind::Server(Ask), Some((address, _))) => Self::To(address.to_owned(), Asking::Yes),
            (redis::ErrorKind::Server(TryAgain | ClusterDown), _) => Self::Wait,
            (redis::ErrorKind::Server(ReadOnly | MasterDown), _) => Self::Perhaps { sent: false, reconnect: false },
            _ if error.is_connection_dropped() => Self::Perhaps { sent: true, reconnect: true },
            _ if error.is_timeout() => Self::Perhaps { sent: true, reconnect: false },
            _ => Self::None,
        }
    }
}

fn failure_of(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Unsent(failure) => failure,
        Trouble::Answered(error) => cluster_failure(&error).unwrap_or_else(|| Failure::answered(&error)),
    }
}

/// A single server, or a sentinel.
fn is_no_node(error: &RedisError) -> bool {
    let text = error.to_string();
    text.contains("cluster support disabled") || text.contains("unknown command")
}

/// What a refusal means when it comes from a node of a cluster.
fn cluster_failure(error: &RedisError) -> Option<Failure> {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    let redis::ErrorKind::Server(kind) = error.kind() else { return None };
    let said = match kind {
        Moved | Ask | TryAgain => "the key's slot is being moved to another node of the cluster",
        ClusterDown => "the cluster is down: some of its slots have no master",
        ReadOnly | MasterDown => "the key's master in the cluster is being replaced",
        _ => return None,
    };
    Some(Failure::new(ErrorKind::Unavailable, Applied::No, said))
}
