//! One PostgreSQL server, with Fencepost's tables.

use std::{net::SocketAddr, path::Path, sync::Arc};

use fencepost_core::url::StoreUrl;
use fencepost_postgres::PostgresConfig;
use fencepost_servers::PostgresServer;

use super::{ServerFault, Stand, not_possible};
use crate::scenario::Stop;

pub(super) const DATABASE: &str = "postgres";

#[derive(Debug)]
pub(super) struct Server(PostgresServer);

impl Server {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        Ok(Arc::new(Self(migrated()?)))
    }
}

/// A server with Fencepost's tables.
pub(super) fn migrated() -> Result<PostgresServer, Stop> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    if !installed.map(|version| version.path().join("bin/initdb")).any(|initdb| Path::exists(&initdb)) {
        return Err(Stop::Missing("PostgreSQL is not installed: install the package postgresql".into()));
    }
    let server = PostgresServer::start();
    let failed = |error: fencepost::Error| Stop::Failed(error.to_string());
    let config = StoreUrl::parse(&server.url(DATABASE)).and_then(PostgresConfig::from_url).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fencepost_postgres::migrate(&config)).map_err(failed)?;
    Ok(server)
}

impl Stand for Server {
    fn url(&self) -> String {
        self.0.url(DATABASE)
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.0.address())
    }

    fn url_through(&self, relay: SocketAddr) -> Option<String> {
        Some(self.url().replace(&self.0.address().to_string(), &relay.to_string()))
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("postgres".to_owned(), self.0.log())]
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Restart => {
                self.0.kill();
                self.0.launch();
                Ok(())
            }
            other => Err(not_possible(other, "a PostgreSQL server")),
        }
    }
}
