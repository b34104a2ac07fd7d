//! A PostgreSQL server with Fencepost's tables, and a standby of it.

use std::sync::Arc;

use fencepost_servers::PostgresServer;

use super::{ServerFault, Side, Stand, not_possible, postgres};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
}

impl Pair {
    /// The standby takes what comes when it comes.
    pub(super) fn asynchronous() -> Result<Arc<dyn Stand>, Stop> {
        Ok(Arc::new(Self::start()?))
    }

    /// Commits wait for the standby.
    pub(super) fn synchronous() -> Result<Arc<dyn Stand>, Stop> {
        let pair = Self::start()?;
        pair.primary.sql(postgres::DATABASE, "ALTER SYSTEM SET synchronous_standby_names = 'heir'");
        pair.primary.sql(postgres::DATABASE, "SELECT pg_reload_conf()");
        pair.primary.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        Ok(Arc::new(pair))
    }

    fn start() -> Result<Self, Stop> {
        let primary = postgres::migrated(PostgresServer::start)?;
        let standby = primary.standby("heir");
        Ok(Self { primary, standby })
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
    fn cut_off(&self) {
        self.hold_replication();
        self.standby.promote();
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

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::HoldReplication => self.hold_replication(),
            ServerFault::CancelWaits => self.cancel_waits(),
            ServerFault::FailOver => self.switch_over(),
            ServerFault::CrashMaster => self.crash(),
            ServerFault::CutOffLeader => self.cut_off(),
            other => return Err(not_possible(other, "PostgreSQL with a standby")),
        }
        Ok(())
    }
}
