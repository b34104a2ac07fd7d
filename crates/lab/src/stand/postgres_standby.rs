//! A PostgreSQL server with Fencepost's tables, and a standby of it.

use std::{sync::Arc, time::Duration};

use fencepost_servers::{Lan, Place, PostgresServer};

use super::{ServerFault, Side, Stand, move_away, not_possible, place, postgres, split};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
    /// What joins them, and where the primary is, where the kernel can cut it.
    lan: Option<(Lan, Place)>,
}

impl Pair {
    /// The standby takes what comes when it comes.
    pub(super) fn asynchronous(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        Ok(Arc::new(Self::start(lan)?))
    }

    /// Commits wait for the standby.
    pub(super) fn synchronous(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        let pair = Self::start(lan)?;
        pair.primary.sql(postgres::DATABASE, "ALTER SYSTEM SET synchronous_standby_names = 'heir'");
        pair.primary.sql(postgres::DATABASE, "SELECT pg_reload_conf()");
        pair.primary.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        Ok(Arc::new(pair))
    }

    fn start(lan: Option<&Lan>) -> Result<Self, Stop> {
        let of_primary = place(lan)?;
        let primary = postgres::migrated(|| PostgresServer::start_in(&of_primary))?;
        let standby = primary.standby_in("heir", &place(lan)?);
        move_away(&of_primary)?;
        Ok(Self { primary, standby, lan: lan.cloned().map(|lan| (lan, of_primary)) })
    }

    fn hold_replication(&self) {
        self.standby.sql(postgres::DATABASE, "ALTER SYSTEM SET primary_conninfo = ''");
        self.standby.sql(postgres::DATABASE, "SELECT pg_reload_conf()");
        self.standby.wait_for("SELECT count(*) = 0 FROM pg_stat_wal_receiver");
    }

    fn cancel_waits(&self) {
        let waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        self.primary.wait_for(&format!("SELECT count(*) > 0 {waiting}"));
        self.primary.sql(postgres::DATABASE, &format!("SELECT pg_cancel_backend(pid) {waiting}"));
    }

    /// The standby gets all that the primary wrote before it is promoted.
    fn switch_over(&self) {
        let written = self.primary.value(postgres::DATABASE, "SELECT pg_current_wal_lsn()");
        self.standby.wait_for(&format!("SELECT pg_last_wal_replay_lsn() >= '{written}'"));
        self.crash();
    }

    /// Clients still reach the primary, and it does not know.
    fn cut_off(&self) -> Result<(), Stop> {
        let promote = || {
            self.standby.promote();
            Ok(())
        };
        match &self.lan {
            Some((lan, primary)) => split(lan, primary, self.standby.address(), promote),
            None => {
                self.hold_replication();
                promote()
            }
        }
    }

    fn crash(&self) {
        self.primary.kill();
        self.standby.promote();
    }
}

impl Stand for Pair {
    fn url(&self) -> String {
        let (primary, standby) = (self.primary.address(), self.standby.address());
        format!("postgres://postgres@{primary},{standby}/{}", postgres::DATABASE)
    }

    fn url_of_one(&self) -> String {
        self.primary.url(postgres::DATABASE)
    }

    fn url_of_replica(&self) -> Result<String, Stop> {
        Ok(self.standby.url(postgres::DATABASE))
    }

    /// On the left the primary is all there is.
    fn url_from(&self, side: Side) -> Result<String, Stop> {
        Ok(match side {
            Side::Left => self.primary.url(postgres::DATABASE),
            Side::Right => self.standby.url(postgres::DATABASE),
        })
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("primary".to_owned(), self.primary.log()), ("standby".to_owned(), self.standby.log())]
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        let says =
            |server: &PostgresServer, text: &str| Some(format!("{text}: {}", server.value(postgres::DATABASE, text)));
        Ok(match fault {
            ServerFault::HoldReplication => says(&self.standby, "SELECT count(*) FROM pg_stat_wal_receiver"),
            ServerFault::FailOver | ServerFault::CrashMaster | ServerFault::CutOffLeader => {
                says(&self.standby, "SELECT pg_is_in_recovery()")
            }
            // Whoever is to be cancelled may come to wait a moment later.
            ServerFault::CancelWaits => {
                let who = "SELECT coalesce(string_agg(pid || ' since ' || query_start, ', ' ORDER BY pid), '') \
                           FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
                let waits = || self.primary.value(postgres::DATABASE, who);
                let comes = (0..50).map(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    waits()
                });
                Some(format!(
                    "these wait for the standby: {}",
                    comes.into_iter().find(|who| !who.is_empty()).unwrap_or_default()
                ))
            }
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::HoldReplication => self.hold_replication(),
            ServerFault::CancelWaits => self.cancel_waits(),
            ServerFault::FailOver => self.switch_over(),
            ServerFault::CrashMaster => self.crash(),
            ServerFault::CutOffLeader => self.cut_off()?,
            other => return Err(not_possible(other, "PostgreSQL with a standby")),
        }
        Ok(())
    }
}
