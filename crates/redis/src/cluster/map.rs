//! Which master has which slot: asked for, shared by all who wait for it, and replaced as a whole.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use fencepost_core::{
    backoff::jitter,
    error::{Applied, ErrorKind},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{RedisError, cmd};

use super::{
    Care, Cluster, Request,
    redirection::failure_of,
    slots::{self, Range, SLOTS},
};
use crate::{connection::Link, failure::Failure, replicas::Trouble, route::Fixed};

/// The map is not asked for more often than this, however many commands found it outdated.
const MAP_PAUSE: Duration = Duration::from_millis(50);
/// Nodes that are asked for the map at once. The first answer counts.
const ASKED_AT_ONCE: usize = 3;

/// Which master has which slot.
#[derive(Debug, Default)]
pub(super) struct Map {
    /// An index into the masters; empty before the map is known.
    owners: Vec<Option<u16>>,
    pub(super) masters: Vec<Arc<Link>>,
}

impl Map {
    pub(super) fn master_of(&self, slot: u16) -> Option<Arc<Link>> {
        let place = (*self.owners.get(usize::from(slot))?)?;
        self.masters.get(usize::from(place)).cloned()
    }
}

impl Cluster {
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
    pub(super) fn link_to(&self, address: &str, from: &Link) -> Result<Arc<Link>, Failure> {
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
}

/// A single server, or a sentinel.
fn is_no_node(error: &RedisError) -> bool {
    let text = error.to_string();
    text.contains("cluster support disabled") || text.contains("unknown command")
}
