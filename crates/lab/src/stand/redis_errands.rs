//! What an administrator does to Redis servers, one or several.

use std::{sync::OnceLock, thread, time::Duration};

use fencepost_servers::{RedisServer, Reply};
use tempfile::TempDir;

use super::no_snapshot;
use crate::scenario::Stop;

/// A copy of the data of each, in the order of the servers.
#[derive(Debug, Default)]
pub(super) struct Copies(OnceLock<Vec<TempDir>>);

impl Copies {
    pub(super) fn take(&self, servers: &[RedisServer]) -> Result<(), Stop> {
        let copies = servers.iter().map(RedisServer::snapshot).collect::<Result<Vec<_>, _>>()?;
        self.0.get_or_init(|| copies);
        Ok(())
    }

    /// Ends all of them before the first one comes back: it would hear of what it has forgotten from the others.
    pub(super) fn put_back(&self, servers: &[RedisServer]) -> Result<(), Stop> {
        let copies = self.0.get().ok_or_else(no_snapshot)?;
        servers.iter().for_each(RedisServer::kill);
        servers.iter().zip(copies).try_for_each(|(server, copy)| {
            server.restore(copy.path())?;
            server.launch();
            Ok(())
        })
    }
}

/// Ends a server and starts it again, with its data or without.
pub(super) fn restart(server: &RedisServer, with_data: bool) {
    server.kill();
    if !with_data {
        server.forget();
    }
    server.launch();
}

/// A replica takes no writes: what its master sends lies in front of it.
pub(super) fn takes_nothing(replica: &RedisServer) -> Result<(), Stop> {
    said(replica, &["CLIENT", "PAUSE", "60000", "WRITE"])
}

/// It takes writes again once it has noticed that its master is gone, and with it what lay in front of it.
pub(super) fn forgets_its_master(replica: &RedisServer) -> Result<(), Stop> {
    for _ in 0..1000 {
        if let Ok(Reply::Text(info)) = replica.try_command(&["INFO", "replication"])
            && !info.contains("master_link_status:up")
        {
            return said(replica, &["CLIENT", "UNPAUSE"]);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(Stop::NotInstalled("a replica does not notice that its master is gone".into()))
}

pub(super) fn said(server: &RedisServer, words: &[&str]) -> Result<(), Stop> {
    match server.try_command(words)? {
        Reply::Refused(why) => Err(Stop::NotInstalled(why)),
        _ => Ok(()),
    }
}
