//! A PostgreSQL server with Fencepost's tables, behind a PgBouncer.

use std::sync::Arc;

use fencepost_servers::{PgBouncer, PostgresServer};

use super::{ServerFault, Stand, needs, not_possible, postgres};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Pooled {
    pooler: PgBouncer,
    server: PostgresServer,
}

impl Pooled {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("pgbouncer", "pgbouncer").or_else(|missing| {
            match std::path::Path::new("/usr/sbin/pgbouncer").exists() {
                true => Ok("/usr/sbin/pgbouncer".into()), // outside the path of most users
                false => Err(missing),
            }
        })?;
        let server = postgres::migrated(PostgresServer::start)?;
        Ok(Arc::new(Self { pooler: PgBouncer::before(server.address(), 1, &[]), server }))
    }
}

impl Stand for Pooled {
    fn url(&self) -> String {
        self.pooler.url(postgres::DATABASE)
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("pgbouncer".to_owned(), self.pooler.log()), ("postgres".to_owned(), self.server.log())]
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        Err(not_possible(fault, "a pooler"))
    }
}
