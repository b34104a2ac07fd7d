//! One PostgreSQL server, with Fencepost's tables.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use fencepost_core::url::StoreUrl;
use fencepost_postgres::PostgresConfig;
use fencepost_servers::{PostgresServer, SmallDisk, WallClock};

use super::{
    Ground, NO_CLOCK, ServerFault, Stand, Way, break_by_force, clear, fill, holders, jump, no_snapshot, not_possible,
    place, shows_room, time_of,
};
use crate::scenario::Stop;

/// Room for a new cluster, and for what is written while it is small.
const SMALL: u64 = 96 << 20;

pub(super) const DATABASE: &str = "postgres";

#[derive(Debug)]
pub(super) struct Server {
    server: PostgresServer,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
    /// What its data are on, where that is no ordinary disk.
    disk: Option<Arc<SmallDisk>>,
    /// What the URL says besides.
    options: &'static str,
    snapshot: OnceLock<PathBuf>,
}

impl Server {
    /// For locks that live as long as they are renewed.
    pub(super) fn of_leases(ground: &Ground) -> Result<Arc<dyn Stand>, Stop> {
        let elsewhere = |server, disk| Self {
            server,
            disk,
            clock: Err(NO_CLOCK.to_owned()),
            options: "",
            snapshot: OnceLock::new(),
        };
        if let Some(disk) = ground.disk(SMALL)? {
            let server = migrated(|| PostgresServer::start_on_disk(&disk))?;
            return Ok(Arc::new(elsewhere(server, Some(disk))));
        }
        if let Some(lan) = &ground.lan {
            let place = place(Some(lan))?;
            return Ok(Arc::new(elsewhere(migrated(|| PostgresServer::start_in(&place))?, None)));
        }
        Self::start("")
    }

    /// For locks that live as long as their connection.
    pub(super) fn of_sessions() -> Result<Arc<dyn Stand>, Stop> {
        Self::start("?mode=session")
    }

    fn start(options: &'static str) -> Result<Arc<dyn Stand>, Stop> {
        let clock = WallClock::new().map(Arc::new);
        let server = migrated(|| clock.as_ref().map_or_else(|_| PostgresServer::start(), PostgresServer::start_on))?;
        Ok(Arc::new(Self { server, clock, disk: None, options, snapshot: OnceLock::new() }))
    }
}

impl Server {
    /// The time by its wall clock.
    fn seconds(&self) -> Option<i64> {
        self.server.value(DATABASE, "SELECT extract(epoch FROM clock_timestamp())::bigint").parse().ok()
    }
}

/// A server with Fencepost's tables.
pub(super) fn migrated(start: impl FnOnce() -> PostgresServer) -> Result<PostgresServer, Stop> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    if !installed.map(|version| version.path().join("bin/initdb")).any(|initdb| Path::exists(&initdb)) {
        return Err(Stop::Missing("PostgreSQL is not installed: install the package postgresql".into()));
    }
    let server = start();
    migrate(&server)?;
    Ok(server)
}

fn migrate(server: &PostgresServer) -> Result<(), Stop> {
    let failed = |error: fencepost::Error| Stop::Failed(error.to_string());
    let config = StoreUrl::parse(&server.url(DATABASE)).and_then(PostgresConfig::from_url).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fencepost_postgres::migrate(&config)).map_err(failed)?;
    Ok(())
}

impl Stand for Server {
    fn url(&self) -> String {
        self.server.url(DATABASE) + self.options
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.server.address())
    }

    fn way(&self) -> Result<Way, Stop> {
        Way::to_one(&self.url(), self.server.address())
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("postgres".to_owned(), self.server.log())]
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(match fault {
            ServerFault::Restart => Some(format!("it is process {:?}", self.server.pid())),
            ServerFault::Fill | ServerFault::Clear => shows_room(self.disk.as_ref()),
            ServerFault::JumpClock | ServerFault::SetClockBack => time_of(self.seconds()),
            ServerFault::Break(lock) => Some(holders(&self.url(), lock)?),
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Freeze => self.server.freeze(),
            ServerFault::Thaw => self.server.thaw(),
            ServerFault::Restart => {
                self.server.kill();
                self.server.launch();
            }
            ServerFault::RestartEmpty => {
                self.server.kill();
                self.server.forget()?;
                self.server.launch();
                migrate(&self.server)?;
            }
            ServerFault::Snapshot => {
                self.snapshot.get_or_init(|| self.server.back_up());
            }
            ServerFault::Restore => {
                let snapshot = self.snapshot.get().ok_or_else(no_snapshot)?;
                self.server.kill();
                self.server.restore(snapshot)?;
                self.server.launch();
            }
            ServerFault::EndSessions => {
                let ends = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted";
                self.server.sql(DATABASE, ends);
            }
            ServerFault::JumpClock | ServerFault::SetClockBack => {
                return jump(&self.clock, self.server.pid(), fault, || self.seconds());
            }
            ServerFault::Fill => {
                fill(self.disk.as_ref())?;
                let more = "CREATE TABLE filling AS SELECT repeat('x', 1000) FROM generate_series(1, 100)";
                return match self.server.try_sql(DATABASE, more) {
                    Err(why) if why.contains("No space left on device") => Ok(()),
                    other => Err(Stop::NotInstalled(format!("the server was to take no more, and said {other:?}"))),
                };
            }
            ServerFault::Clear => return clear(self.disk.as_ref()),
            ServerFault::Break(lock) => return break_by_force(&self.url(), lock),
            other => return Err(not_possible(other, "a PostgreSQL server")),
        }
        Ok(())
    }
}
