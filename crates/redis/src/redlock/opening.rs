//! Getting acquainted with the servers: what each one is, whether two are the same, and whether enough are there.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use fencepost_core::{
    clock::{BootClock, Clock},
    error::{Applied, Error, ErrorKind, Operation},
    name::Namespace,
    quorum::Probation,
};
use futures_util::future::join_all;
use redis::{FromRedisValue, Value, pipe};

use super::{
    RedlockConfig, RedlockStore, STORE,
    crowd::Crowd,
    node::{Node, Standing},
};
use crate::{
    connection::Link, failure::Failure, keys::Keys, nodes::Nodes, room::Room, route::Fixed, store::client_id, survey,
};

impl RedlockStore {
    /// Connects to every server. A minority that is out of reach is warned of (by `tracing`), as is a number of servers
    /// that makes little sense.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when no quorum answers, with the name of each server that does not;
    /// [`ErrorKind::PermissionDenied`] or [`ErrorKind::Misconfigured`] for a single one that refuses us, is a replica, a
    /// node of a cluster, or another of the servers by another name. Within the limits of `config`.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(config: &RedlockConfig, namespace: &Namespace) -> Result<Self, Error> {
        Self::open_with_clock(config, namespace, BootClock::shared()).await
    }

    /// As [`open`](RedlockStore::open), with leases counted on `clock`.
    ///
    /// # Errors
    /// As for [`open`](RedlockStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_with_clock(
        config: &RedlockConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let quorum = config.quorum()?;
        if let Some(objection) = quorum.objection() {
            tracing::warn!(nodes = quorum.nodes(), "{objection}");
        }
        let (client, roster) = (client_id()?, Arc::new(Roster::default()));
        let mut nodes = Vec::new();
        for (index, server) in config.nodes.iter().enumerate() {
            let link = Arc::new(Link::new(Fixed::new(server)?, server, clock.clone()));
            let one = Nodes::One { link: link.clone(), watch: Mutex::default() };
            let room = Room::new(one, Keys::new(namespace), &client, clock.clone());
            let address = server.address();
            nodes.push(Node::new(index, link, room, address, clock.clone(), roster.clone()));
        }
        let within = config.nodes.first().map_or(Duration::ZERO, |server| server.connect_timeout * 2);
        let meetings = join_all(nodes.iter().map(|node| first_meeting(node, within))).await;
        assess(&nodes, meetings, quorum.spare())?;
        Ok(Self {
            nodes,
            quorum,
            guard: config.restart_guard,
            clock,
            capabilities: super::capabilities(),
            last_round: AtomicU64::default(),
            crowd: Crowd::default(),
            renewals: Arc::default(),
            won: Mutex::default(),
            seats: Mutex::default(),
            particulars: Default::default(),
            ears: Mutex::default(),
        })
    }
}

async fn first_meeting(node: &Node, within: Duration) -> Result<(), Failure> {
    let meeting = async {
        survey::greet(&node.link).await?;
        node.meet().await.map(drop)
    };
    tokio::time::timeout(within, meeting).await.unwrap_or_else(|_| {
        let said = format!("{} did not answer within {within:?}", node.address);
        Err(Failure::new(ErrorKind::Unavailable, Applied::No, said))
    })
}

/// Enough servers, and none that is not what it should be.
fn assess(nodes: &[Arc<Node>], meetings: Vec<Result<(), Failure>>, spare: usize) -> Result<(), Error> {
    let mut away = Vec::new();
    for (node, failure) in nodes.iter().zip(meetings).filter_map(|(node, met)| Some((node, met.err()?))) {
        if failure.kind != ErrorKind::Unavailable {
            let said = format!("the Redlock server {} cannot be used", node.address);
            return Err(Error::new(failure.kind, Operation::Open, said)
                .not_applied()
                .in_store(STORE)
                .caused_by(failure.error(Operation::Open, None)));
        }
        away.push(failure.at(&node.address).error(Operation::Open, None).to_string());
    }
    let (missing, all) = (away.len(), nodes.len());
    let said = format!("{missing} of {all} Redlock servers cannot be reached: {}", away.join("; "));
    if missing > spare {
        return Err(Error::new(ErrorKind::Unavailable, Operation::Open, said)
            .not_applied()
            .in_store(STORE)
            .advise(format!("{} of them are needed", all - spare)));
    }
    if missing > 0 {
        tracing::warn!("{said}; the others are a quorum");
    }
    Ok(())
}

/// Who are you, and since when?
pub(super) async fn ask_who(link: &Link) -> Result<Vec<Value>, Failure> {
    let mut questions = pipe();
    questions.cmd("INFO").arg("server").cmd("INFO").arg("replication");
    link.read(&mut questions).await
}

/// Which server is which, so that no server votes twice under two names.
#[derive(Debug, Default)]
pub(super) struct Roster(Mutex<Vec<Member>>);

#[derive(Debug)]
struct Member {
    index: usize,
    address: String,
    run_id: String,
}

impl Roster {
    /// What a server's answers to [`ask_who`] say of it.
    pub(super) fn judge(&self, node: &Node, answers: Vec<Value>) -> Result<Standing, Failure> {
        if let Some(Value::ServerError(error)) = answers.first() {
            let failure = Failure::answered(&error.clone().into());
            if failure.kind != ErrorKind::PermissionDenied {
                return Err(failure);
            }
            tracing::warn!(
                node = %node.address,
                "this user may not ask for INFO: whether the server has just restarted, is a replica, or is another one \
                 of the servers cannot be checked"
            );
            return Ok(Standing::Unasked);
        }
        let texts = answers.into_iter().filter_map(|answer| String::from_redis_value(answer).ok());
        let info = texts.collect::<Vec<_>>().join("\n");
        let field = |name: &str| {
            info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
        };
        let address = &node.address;
        if field("role").as_deref() == Some("slave") {
            return Err(misconfigured(format!("{address} is a replica")).advise("name independent masters"));
        }
        if field("redis_mode").as_deref() == Some("cluster") {
            return Err(misconfigured(format!("{address} is a node of a Redis Cluster")).advise("name single masters"));
        }
        if let Some(run_id) = field("run_id")
            && let Some(twin) = self.enter(node, run_id)
        {
            return Err(misconfigured(format!("{address} and {twin} are one server"))
                .advise("each server has one vote: name different ones"));
        }
        let uptime = field("uptime_in_seconds").and_then(|text| text.parse().ok());
        Ok(match uptime {
            Some(seconds) => Standing::Since(Probation::from_uptime(node.now(), seconds)),
            None => Standing::Unasked,
        })
    }

    /// Notes the server, or answers under which other name it is known.
    fn enter(&self, node: &Node, run_id: String) -> Option<String> {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.index != node.index);
        let twin = members.iter().find(|member| member.run_id == run_id).map(|twin| twin.address.clone());
        if twin.is_none() {
            members.push(Member { index: node.index, address: node.address.clone(), run_id });
        }
        twin
    }
}

fn misconfigured(said: String) -> Failure {
    Failure::new(ErrorKind::Misconfigured, Applied::No, said)
}
