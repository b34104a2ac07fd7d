//! A store that is ready to be used and to be broken.

mod cluster;
mod etcd;
mod etcd_cluster;
mod file;
mod pgbouncer;
mod postgres;
mod postgres_standby;
mod redis;
mod redis_errands;
mod redlock;
mod sentinel;
mod zookeeper;
mod zookeeper_ensemble;

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use fencepost::{
    Error, LockName, Namespace,
    claim::Forced,
    clock::{BootClock, Clock},
    registry,
    store::Store,
};
use fencepost_servers::{Lan, Namespaces, Network, Place, RedisServer, Shore, SmallDisk, WallClock};
use tokio::runtime::Handle;

use crate::{
    scenario::Stop,
    stage::{no_cut, nothing_to_cut, reaches},
    subject::StoreKind,
};

/// Something that can be done to a store's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// Stops the server where it stands (SIGSTOP).
    Freeze,
    /// Lets it run on (SIGCONT).
    Thaw,
    /// Kills it (SIGKILL) and starts it again with the data that it had.
    Restart,
    /// Kills it and starts it again with nothing; where there are several, one of them.
    RestartEmpty,
    /// Moves its wall clock forward by an hour.
    JumpClock,
    /// Sets its wall clock back by [`BACK`] seconds.
    SetClockBack,
    /// Replicas take nothing from their master any more.
    HoldReplication,
    /// The replica that would be promoted takes nothing any more; the others do.
    HoldTheHeir,
    /// Somebody cancels the statements that wait for a replica.
    CancelWaits,
    /// Stops the one that leads where it stands, and waits until another leads.
    FreezeLeader,
    /// Cuts the one that leads off from the others, and waits until another leads; clients still reach it.
    CutOffLeader,
    /// Makes the leader's disk take seconds for each write that must be on it.
    SlowDisk,
    /// Leaves no room for another write: memory, or the quota of the disk.
    Fill,
    /// Makes room again.
    Clear,
    /// Kills the one that leads, and waits until another does.
    CrashMaster,
    /// Keeps a copy of all that the store has.
    Snapshot,
    /// Brings back what it had then, as a backup does.
    Restore,
    /// An administrator makes another server the master; the old one lives on.
    FailOver,
    /// An administrator ends the sessions of those who hold.
    EndSessions,
    /// An administrator takes the lock of this name from whoever holds it.
    Break(&'static str),
}

impl ServerFault {
    /// How the history calls it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ServerFault::Freeze | ServerFault::Thaw => "frozen (SIGSTOP)",
            ServerFault::Restart => "killed and restarted",
            ServerFault::RestartEmpty => "killed and restarted without data",
            ServerFault::JumpClock => "wall clock + 1 h",
            ServerFault::SetClockBack => "wall clock - 6 s",
            ServerFault::HoldReplication => "replication held back",
            ServerFault::HoldTheHeir => "replication to one replica held back",
            ServerFault::CancelWaits => "the wait for the standby cancelled",
            ServerFault::FreezeLeader => "leader frozen (SIGSTOP), another leads",
            ServerFault::CutOffLeader => "leader cut off, another leads",
            ServerFault::SlowDisk => "leader's disk slow (fdatasync + 2.5 s)",
            ServerFault::Fill | ServerFault::Clear => "full",
            ServerFault::CrashMaster => "leader killed, another leads",
            ServerFault::Snapshot => "snapshot taken",
            ServerFault::Restore => "snapshot restored",
            ServerFault::FailOver => "planned failover",
            ServerFault::EndSessions => "sessions ended by an administrator",
            ServerFault::Break(_) => "lock broken by force",
        }
    }
}

/// By how many seconds a server's clock is set back: longer than any lease lives on without that.
pub(crate) const BACK: i64 = 6;

/// A side of a partition. Both reach the server in the middle, and neither reaches those of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// What a Redlock's URL says where servers that were just started shall count.
pub(crate) const UNGUARDED: &str = "&restart_guard=0";

/// A network before a store. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) network: Network,
    /// Who takes it.
    pub(crate) url: String,
    /// Leads clients there that ask for the way.
    _sign: Option<RedisServer>,
}

impl Way {
    /// To a store that is one server, by a URL that names its address. Blocks.
    fn to_one(url: &str, server: SocketAddr) -> Result<Self, Stop> {
        let network = Handle::current().block_on(Network::before(server))?;
        let url = url.replace(&server.to_string(), &network.address.to_string());
        Ok(Self { network, url, _sign: None })
    }
}

/// The servers of a store, or its directory. Ended when dropped.
pub(crate) trait Stand: fmt::Debug + Send + Sync {
    /// Its URL for clients.
    fn url(&self) -> String;

    /// Where its one server listens, where there is one.
    fn address(&self) -> Option<SocketAddr> {
        None
    }

    /// A way to it of its own for one client, which can be disturbed. Blocks.
    ///
    /// # Errors
    /// [`Stop::NotInstalled`] where no network lies between.
    fn way(&self) -> Result<Way, Stop> {
        Err(Stop::NotInstalled("there is no network before this store".into()))
    }

    /// Its URL for clients that know one server and nothing of the others.
    fn url_of_one(&self) -> String {
        self.url()
    }

    /// Where a replica can be reached past the rest.
    ///
    /// # Errors
    /// [`Stop::NotInstalled`] where there is none.
    fn url_of_replica(&self) -> Result<String, Stop> {
        Err(Stop::NotInstalled("there is no replica here".into()))
    }

    /// Its URL for clients on one side of a partition. Blocks.
    ///
    /// # Errors
    /// [`Stop::NotInstalled`] where no partition is possible.
    fn url_from(&self, side: Side) -> Result<String, Stop> {
        Err(Stop::NotInstalled(format!("no partition is possible here, so that there is no {side:?} side")))
    }

    /// What its servers said, each under a name.
    fn logs(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What can be seen of a fault: something else before than after. `None` where there is nothing to see. Blocks.
    ///
    /// # Errors
    /// When nobody can look.
    fn shows(&self, _fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(None)
    }

    /// Does something to it. Blocks.
    ///
    /// # Errors
    /// [`Stop::NotInstalled`] when that is not possible here.
    fn inflict(&self, fault: ServerFault) -> Result<(), Stop>;
}

/// The logs of several servers of a kind, numbered.
fn numbered(kind: &str, logs: impl Iterator<Item = String>) -> Vec<(String, String)> {
    (1..).zip(logs).map(|(number, log)| (format!("{kind}-{number}"), log)).collect()
}

/// Starts a store. Blocks.
///
/// # Errors
/// [`Stop::Missing`] names the package that has to be installed.
pub(crate) fn start(kind: StoreKind, ground: &Ground) -> Result<Arc<dyn Stand>, Stop> {
    let lan = ground.lan.as_ref();
    match kind {
        StoreKind::File => file::Directory::start(ground),
        StoreKind::Postgres => postgres::Server::of_leases(ground),
        StoreKind::PostgresSession => postgres::Server::of_sessions(),
        StoreKind::PostgresStandby => postgres_standby::Pair::asynchronous(lan),
        StoreKind::PostgresSynchronous => postgres_standby::Pair::synchronous(lan),
        StoreKind::PgBouncer => pgbouncer::Pooled::start(),
        StoreKind::Etcd => etcd::Member::start(lan),
        StoreKind::EtcdCluster => etcd_cluster::Members::start(lan),
        StoreKind::ZooKeeper => zookeeper::Server::start(ground),
        StoreKind::ZooKeeperEnsemble => zookeeper_ensemble::Servers::start(lan),
        StoreKind::Redis => redis::Server::start(lan),
        StoreKind::Sentinel => sentinel::Set::start(),
        StoreKind::Cluster => cluster::Cluster::start(),
        StoreKind::Redlock => redlock::Servers::start(),
    }
}

/// What a store is put on, where that is not the machine itself.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    /// A network whose hosts its servers are.
    pub(crate) lan: Option<Lan>,
    /// Where a small disk for its data can be mounted.
    pub(crate) small_disk: Option<Namespaces>,
}

impl Ground {
    /// A disk of so many bytes, where one is wanted.
    fn disk(&self, bytes: u64) -> Result<Option<Arc<SmallDisk>>, Stop> {
        let disk = self.small_disk.map(|within| SmallDisk::new(within, bytes)).transpose();
        Ok(disk.map_err(Stop::NotInstalled)?.map(Arc::new))
    }
}

/// Leaves no room on a small disk.
fn fill(disk: Option<&Arc<SmallDisk>>) -> Result<(), Stop> {
    on(disk)?.fill().map_err(Stop::NotInstalled)
}

/// Makes room again.
fn clear(disk: Option<&Arc<SmallDisk>>) -> Result<(), Stop> {
    on(disk)?.clear().map_err(Stop::NotInstalled)
}

/// Whether there is any.
fn shows_room(disk: Option<&Arc<SmallDisk>>) -> Option<String> {
    disk.map(|disk| format!("the disk is full: {}", disk.is_full()))
}

fn on(disk: Option<&Arc<SmallDisk>>) -> Result<&Arc<SmallDisk>, Stop> {
    disk.ok_or_else(|| Stop::NotInstalled("its data are on no small disk".to_owned()))
}

/// Whether the servers of a store can be put on hosts of their own, on a network that is given to [`start`].
pub(crate) fn on_hosts(kind: StoreKind) -> bool {
    use StoreKind::{
        Etcd, EtcdCluster, Postgres, PostgresStandby, PostgresSynchronous, Redis, ZooKeeper, ZooKeeperEnsemble,
    };
    let some = [Etcd, EtcdCluster, Postgres, PostgresStandby, PostgresSynchronous, Redis, ZooKeeper, ZooKeeperEnsemble];
    some.contains(&kind)
}

/// A host for one server; this machine where there is no network of hosts.
fn place(lan: Option<&Lan>) -> Result<Place, Stop> {
    let host = lan.map(Lan::host).transpose().map_err(Stop::NotInstalled)?;
    Ok(host.map_or_else(Place::default, |host| Place::on(Arc::new(host))))
}

/// A host for each of three servers.
fn places(lan: &Lan) -> Result<Vec<Place>, Stop> {
    (0..3).map(|_| place(Some(lan))).collect()
}

/// Takes away what joins the two sides of a network, does what is done then, and looks from one side to the other.
fn split(lan: &Lan, from: &Place, to: SocketAddr, then: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    let host = from.host().ok_or_else(|| Stop::NotInstalled("the server is on no host of its own".to_owned()))?;
    if !reaches(host, to)? {
        return Err(nothing_to_cut());
    }
    lan.split().map_err(Stop::NotInstalled)?;
    then()?;
    if reaches(host, to)? { Err(no_cut()) } else { Ok(()) }
}

/// Puts a server on the far side of its network, where there is one.
fn move_away(place: &Place) -> Result<(), Stop> {
    place.host().map_or(Ok(()), |host| host.stand_on(Shore::Far).map_err(Stop::NotInstalled))
}

/// Why a server on a host or a disk of its own has no clock of its own.
const NO_CLOCK: &str = "on a host or a disk of its own a server runs on the machine's clock";

/// Looks for an executable, so that a missing one is reported and not a failure.
pub(crate) fn needs(executable: &str, package: &str) -> Result<PathBuf, Stop> {
    found(executable)
        .ok_or_else(|| Stop::Missing(format!("{executable} is not installed: install the package {package}")))
}

pub(crate) fn found(executable: &str) -> Option<PathBuf> {
    all_found(executable).next()
}

/// Every one on the path, in its order.
pub(crate) fn all_found(executable: &str) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let files = std::env::split_paths(&path).map(|folder| folder.join(executable));
    files.filter(|file| file.is_file()).collect::<Vec<_>>().into_iter()
}

/// An administrator breaks a lock, as `fencepost break` does.
fn break_by_force(url: &str, lock: &str) -> Result<(), Stop> {
    match at_the_store(url, lock, async |store, lock| store.force(lock, None).await)? {
        Forced::Broken(_) => Ok(()),
        other => Err(Stop::Failed(format!("the lock could not be broken: {other:?}"))),
    }
}

/// Does something with a lock, as a client that comes for that alone. Blocks.
fn at_the_store<A>(
    url: &str,
    lock: &str,
    ask: impl AsyncFnOnce(&dyn Store, &LockName) -> Result<A, Error>,
) -> Result<A, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        let store = registry::open_store(url, Namespace::default(), BootClock::shared()).await?;
        ask(&*store, &LockName::new(lock)?).await
    });
    answer.map_err(|error| Stop::Failed(error.to_string()))
}

/// Moves a server's wall clock, if it has one of its own and reads it, and looks whether it tells another time.
fn jump(
    clock: &Result<Arc<WallClock>, String>,
    server: Option<u32>,
    fault: ServerFault,
    time: impl Fn() -> Option<i64>,
) -> Result<(), Stop> {
    let clock = clock.as_ref().map_err(|why| Stop::NotInstalled(why.clone()))?;
    if !server.is_some_and(|pid| clock.governs(pid)) {
        return Err(Stop::NotInstalled("the server does not read the clock that is to jump".into()));
    }
    let by = if fault == ServerFault::SetClockBack { -BACK } else { 3600 };
    let before = time();
    clock.stand_apart(by).map_err(Stop::NotInstalled)?;
    match (before, time()) {
        // It told the time a moment ago, by the second and perhaps by the day.
        (Some(before), Some(after)) if !(by..by + 60).contains(&apart(before, after)) => {
            Err(Stop::NotInstalled(format!("the server's clock moved by {} s and not by {by} s", apart(before, after))))
        }
        _ => Ok(()),
    }
}

/// How far a server's clock is from the machine's, as far as a difference of a second says nothing.
fn time_of(server: Option<i64>) -> Option<String> {
    let machine = BootClock.wall().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
    let apart = apart(machine.try_into().ok()?, server?);
    Some(format!("its clock is {} s apart from the machine's", (apart + 2).div_euclid(4) * 4))
}

/// Who holds a lock.
fn holders(url: &str, lock: &str) -> Result<String, Stop> {
    let states = at_the_store(url, lock, async |store, lock| store.inspect(Some(lock)).await)?;
    let holders = states.into_iter().flat_map(|state| state.holders);
    Ok(format!("held by {:?}", holders.map(|holder| holder.claimant.labels).collect::<Vec<_>>()))
}

/// By how many seconds one time is later than another, within half a day.
fn apart(before: i64, after: i64) -> i64 {
    (after - before + 43_200).rem_euclid(86_400) - 43_200
}

fn no_snapshot() -> Stop {
    Stop::NotInstalled("there is no snapshot".into())
}

fn not_possible(fault: ServerFault, on: &str) -> Stop {
    Stop::NotInstalled(format!("\"{}\" means nothing on {on}", fault.word()))
}
