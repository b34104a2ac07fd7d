//! The bare store: what each family's own calls cost without Fencepost.

pub(crate) mod directory;
pub(crate) mod etcd;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redlock;
pub(crate) mod zookeeper;

use std::{fmt, future::Future, pin::Pin, process::Command};

use fencepost::{Error, Namespace, clock::Moment, url::StoreUrl};

use crate::{report::Goal, samples::Samples};

/// The future of a measurement. It stays on its thread.
pub(crate) type Measuring<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 'a>>;

/// A family's floor.
pub(crate) trait Floor: fmt::Debug {
    /// The bare equivalents of taking and giving back, the nearest first.
    fn cycles(&self) -> Vec<Measured<'_>>;

    /// The bare equivalent of waking a waiter.
    fn message(&self) -> Measured<'_>;

    /// What the server has done so far, this question left out; `None` where nobody counts, for a [reason](Floor::uncounted).
    fn commands(&self) -> Measuring<'_, Option<Commands>>;

    /// Why there is nothing to count, where there is not.
    fn uncounted(&self) -> &'static str {
        "no commands counted: the server did not tell"
    }

    /// What [`Commands`] counts on this store: what is sent for hand-overs and renewals, and all there is.
    fn counted(&self) -> [&'static str; 2] {
        ["script calls", "commands with those inside"]
    }

    /// What people use instead of `fencepost run NAME -- true` on this store, and by how many ms more ours may take.
    fn beside(&self, name: &str) -> Option<Beside> {
        let _ = name;
        None
    }

    /// Removes what a run leaves behind.
    fn tidy(&self) {}
}

/// Something done again and again.
pub(crate) trait Cycle {
    /// Does it under this name until the moment is there.
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()>;
}

/// A floor and what we want to reach next to it.
pub(crate) struct Measured<'a> {
    pub(crate) what: &'static str,
    pub(crate) cycle: &'a dyn Cycle,
    /// For the time of one at a time.
    pub(crate) time_goal: Option<Goal>,
    /// For the throughput of several at once; `None` when it does one at a time only.
    pub(crate) throughput_goal: Option<Goal>,
    /// Whether it can do several at once.
    pub(crate) at_once: bool,
}

/// A program that takes a lock, runs `true` and gives it back.
pub(crate) struct Beside {
    pub(crate) what: &'static str,
    pub(crate) command: Command,
    pub(crate) goal: Option<Goal>,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commands {
    /// Calls of scripts, which is what hand-overs and renewals are sent as.
    pub(crate) scripts: u64,
    /// All commands, those inside scripts included.
    pub(crate) all: u64,
}

impl Commands {
    pub(crate) fn and(self, others: Commands) -> Commands {
        Commands { scripts: self.scripts + others.scripts, all: self.all + others.all }
    }

    pub(crate) fn since(self, earlier: Commands) -> Commands {
        let all = self.all.saturating_sub(earlier.all);
        Commands { scripts: self.scripts.saturating_sub(earlier.scripts), all }
    }
}

/// The floor of a URL's family, where it has one, and the namespace that the run works in.
pub(crate) async fn of(url: &StoreUrl, namespace: &Namespace) -> Result<(Option<Box<dyn Floor>>, Namespace), Error> {
    match url.scheme() {
        "file" => {
            let floor = directory::DirectoryFloor::new(url.path())?;
            let namespace = floor.namespace().clone();
            Ok((Some(Box::new(floor)), namespace))
        }
        "etcd" => {
            let floor = etcd::EtcdFloor::open(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        "postgres" | "postgresql" | "postgres+session" => {
            let floor = postgres::PostgresFloor::open(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        "redis" => {
            let floor = redis::RedisFloor::open(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        "redis+sentinel" => {
            let floor = redis::RedisFloor::open_watched(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        "redis+cluster" => {
            let floor = redis::RedisFloor::open_cluster(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        "redlock" => {
            let floor = redlock::RedlockFloor::open(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        "zookeeper" => {
            let floor = zookeeper::ZooKeeperFloor::open(url.clone(), namespace).await?;
            Ok((Some(Box::new(floor)), namespace.clone()))
        }
        _ => Ok((None, namespace.clone())),
    }
}
