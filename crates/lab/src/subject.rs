//! Whom a scenario is tried on: a store, and a client of it.

use std::fmt;

use crate::{
    agent::Client,
    scenario::{Expected, NotPlayed},
};

/// A store that the laboratory can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StoreKind {
    /// A directory of this host.
    File,
    /// One PostgreSQL server.
    Postgres,
    /// The same, with locks that live as long as their connection.
    PostgresSession,
    /// A PostgreSQL server with a standby that takes what comes when it comes.
    PostgresStandby,
    /// A PostgreSQL server whose commits wait for its standby.
    PostgresSynchronous,
    /// A PostgreSQL server behind a PgBouncer in transaction mode with one connection to it.
    PgBouncer,
    /// One etcd member.
    Etcd,
    /// Three etcd members.
    EtcdCluster,
    /// One ZooKeeper server.
    ZooKeeper,
    /// Three ZooKeeper servers.
    ZooKeeperEnsemble,
    /// One Redis server that keeps an append-only file.
    Redis,
    /// A Redis master with two replicas, watched by three sentinels.
    Sentinel,
    /// A Redis Cluster of three masters with a replica each.
    Cluster,
    /// Five independent Redis servers that keep append-only files.
    Redlock,
}

/// A store and a client: a column of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The store.
    pub store: StoreKind,
    /// The client.
    pub client: Client,
}

/// All of them, in the order of the matrix.
pub const SUBJECTS: &[Subject] = &[
    Subject { store: StoreKind::File, client: Client::Library },
    Subject { store: StoreKind::Postgres, client: Client::Library },
    Subject { store: StoreKind::PostgresSession, client: Client::Library },
    Subject { store: StoreKind::Etcd, client: Client::Library },
    Subject { store: StoreKind::ZooKeeper, client: Client::Library },
    Subject { store: StoreKind::Redis, client: Client::Library },
    Subject { store: StoreKind::Sentinel, client: Client::Library },
    Subject { store: StoreKind::Cluster, client: Client::Library },
    Subject { store: StoreKind::Redlock, client: Client::Library },
    Subject { store: StoreKind::Redis, client: Client::RedisPy },
    Subject { store: StoreKind::Redis, client: Client::Naive },
    Subject { store: StoreKind::Etcd, client: Client::Etcdctl },
    Subject { store: StoreKind::Etcd, client: Client::Naive },
    Subject { store: StoreKind::ZooKeeper, client: Client::Kazoo },
    Subject { store: StoreKind::ZooKeeper, client: Client::Naive },
    Subject { store: StoreKind::File, client: Client::Naive },
    Subject { store: StoreKind::Redis, client: Client::Monotonic },
    Subject { store: StoreKind::Sentinel, client: Client::Counter },
    Subject { store: StoreKind::EtcdCluster, client: Client::Library },
    Subject { store: StoreKind::ZooKeeperEnsemble, client: Client::Library },
    Subject { store: StoreKind::PostgresStandby, client: Client::Library },
    Subject { store: StoreKind::PostgresStandby, client: Client::Advisory },
    Subject { store: StoreKind::PostgresSynchronous, client: Client::Library },
    Subject { store: StoreKind::PgBouncer, client: Client::Library },
    Subject { store: StoreKind::PgBouncer, client: Client::Advisory },
];

impl StoreKind {
    /// The word for `--store`.
    pub fn word(self) -> &'static str {
        match self {
            StoreKind::File => "file",
            StoreKind::Postgres => "postgres",
            StoreKind::PostgresSession => "postgres-session",
            StoreKind::PostgresStandby => "postgres-standby",
            StoreKind::PostgresSynchronous => "postgres-synchronous",
            StoreKind::PgBouncer => "pgbouncer",
            StoreKind::Etcd => "etcd",
            StoreKind::EtcdCluster => "etcd-cluster",
            StoreKind::ZooKeeper => "zookeeper",
            StoreKind::ZooKeeperEnsemble => "zookeeper-ensemble",
            StoreKind::Redis => "redis",
            StoreKind::Sentinel => "sentinel",
            StoreKind::Cluster => "cluster",
            StoreKind::Redlock => "redlock",
        }
    }

    /// As a heading.
    pub fn title(self) -> &'static str {
        match self {
            StoreKind::File => "directory",
            StoreKind::Postgres => "PostgreSQL",
            StoreKind::PostgresSession => "PostgreSQL, mode=session",
            StoreKind::PostgresStandby => "PostgreSQL with a standby",
            StoreKind::PostgresSynchronous => "PostgreSQL with a synchronous standby",
            StoreKind::PgBouncer => "PostgreSQL behind PgBouncer",
            StoreKind::Etcd => "etcd",
            StoreKind::EtcdCluster => "etcd, three members",
            StoreKind::ZooKeeper => "ZooKeeper",
            StoreKind::ZooKeeperEnsemble => "ZooKeeper, three servers",
            StoreKind::Redis => "Redis",
            StoreKind::Sentinel => "Redis Sentinel",
            StoreKind::Cluster => "Redis Cluster",
            StoreKind::Redlock => "Redlock",
        }
    }

    /// Whether a network lies between it and its clients.
    pub fn has_a_network(self) -> bool {
        self != StoreKind::File
    }

    /// Whether there is one server among several that can die and be replaced.
    pub(crate) fn has_a_leader(self) -> bool {
        use StoreKind::{EtcdCluster, PostgresSynchronous, Redlock, Sentinel, ZooKeeperEnsemble};
        matches!(self, Sentinel | Redlock | PostgresSynchronous | EtcdCluster | ZooKeeperEnsemble)
    }

    /// Whether its grants carry a fence.
    pub fn issues_fences(self) -> bool {
        !matches!(self, StoreKind::Redis | StoreKind::Sentinel | StoreKind::Cluster | StoreKind::Redlock)
    }
}

impl Subject {
    /// Whether it carries a fence to the resource.
    pub fn fenced(self) -> bool {
        self.client == Client::Library && self.store.issues_fences()
    }

    /// Whether a grant ends by itself.
    pub fn expires(self) -> bool {
        self.client != Client::Library || !matches!(self.store, StoreKind::File | StoreKind::PostgresSession)
    }

    /// Whether it has readers beside readers, and permits.
    pub fn shares(self) -> bool {
        use StoreKind::{Cluster, Etcd, File, Postgres, PostgresSession, Redis, Sentinel, ZooKeeper};
        let stores = [File, Postgres, PostgresSession, Etcd, ZooKeeper, Redis, Sentinel, Cluster];
        self.client == Client::Library && stores.contains(&self.store)
    }

    /// Whether it is played in each scenario that its store knows, and not in those alone that are about it.
    pub fn everywhere(self) -> bool {
        use StoreKind::{EtcdCluster, PgBouncer, PostgresStandby, PostgresSynchronous, ZooKeeperEnsemble};
        let variants = [EtcdCluster, PgBouncer, PostgresStandby, PostgresSynchronous, ZooKeeperEnsemble];
        !variants.contains(&self.store)
            && !matches!(self.client, Client::Monotonic | Client::Counter | Client::Advisory)
    }

    /// In which scenarios a subject is played that stands [apart](NotPlayed::Apart), and what holds of it in the others.
    /// `None` for those of which each scenario says it.
    pub fn apart(self) -> Option<&'static str> {
        use StoreKind::{EtcdCluster, PgBouncer, PostgresStandby, PostgresSynchronous, ZooKeeperEnsemble};
        Some(match (self.store, self.client) {
            (EtcdCluster | ZooKeeperEnsemble, Client::Library) => {
                "played where it matters that there are three servers; elsewhere it is to its clients what one is"
            }
            (PostgresStandby | PostgresSynchronous, Client::Library) => {
                "played where a standby matters; elsewhere it is to its clients what PostgreSQL alone is"
            }
            (PgBouncer, Client::Library) => {
                "played where it matters that sessions are shared; elsewhere it is to its clients what PostgreSQL alone is"
            }
            (_, Client::Library) => return None,
            (_, Client::RedisPy | Client::Kazoo | Client::Etcdctl | Client::Naive) => {
                "there to compare: played where it shows what the row is about, by a mistake or by avoiding one"
            }
            (_, Client::Monotonic) => {
                "differs from the naive client in the clock that it looks at, and in nothing else"
            }
            (_, Client::Counter) => {
                "differs from the naive client in its fence and in whom it asks, which failovers try"
            }
            (_, Client::Advisory) => {
                "stands for one mistake: a lock that belongs to a session, taken where a session is not one client's"
            }
        })
    }

    /// Why a scenario is not played on it, where it does not stand apart anyway.
    pub(crate) fn not_here(self, because: &'static str) -> Result<Expected, NotPlayed> {
        Err(if self.apart().is_some() { NotPlayed::Apart } else { NotPlayed::Because(because) })
    }

    /// Why nothing is played on it in which one server takes over from another.
    pub(crate) fn without_an_heir(self) -> Result<Expected, NotPlayed> {
        self.not_here(match self.store {
            StoreKind::File => "a directory has no servers",
            StoreKind::Postgres => "there is no standby here: the second table has them",
            StoreKind::PostgresSession => {
                "no standby knows of a session: it ends with its server, as in `restart`, whoever comes after that"
            }
            StoreKind::Etcd | StoreKind::ZooKeeper => "there are no other servers here: the second table has three",
            StoreKind::Redis => "there is no replica here: behind sentinels and in a cluster there are",
            StoreKind::Redlock => "none of its servers knows of the others, and none takes over",
            _ => "it is about other servers than these",
        })
    }

    /// As a heading of the matrix.
    pub fn title(self) -> String {
        match self.client {
            Client::Library => self.store.title().to_owned(),
            Client::Naive => format!("{}, naive client", self.store.title()),
            Client::Monotonic => format!("{}, TTL on CLOCK_MONOTONIC", self.store.title()),
            Client::Counter => format!("{}, INCR as the fence", self.store.title()),
            Client::Advisory => format!("{}, advisory lock", self.store.title()),
            Client::RedisPy => format!("{}, redis-py", self.store.title()),
            Client::Kazoo => format!("{}, kazoo", self.store.title()),
            Client::Etcdctl => format!("{}, etcdctl lock", self.store.title()),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = match self.client {
            Client::Library => "",
            Client::Naive => "/naive",
            Client::Monotonic => "/monotonic",
            Client::Counter => "/counter",
            Client::Advisory => "/advisory",
            Client::RedisPy => "/redis-py",
            Client::Kazoo => "/kazoo",
            Client::Etcdctl => "/etcdctl",
        };
        f.pad(&format!("{}{client}", self.store.word()))
    }
}
