use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fencepost_core::{capabilities::Capabilities, name::LockName, store::BoxFuture, url::StoreUrl};
use fencepost_postgres::PostgresConfig;
use fencepost_servers::{Network, PostgresServer, Rows};
use tokio::sync::Mutex;

use crate::{
    rules,
    site::{DoesNotApply, Server, Site, Tampering, Verdict},
};

/// A database of its own, and a network in front of it for those who ask for one. Rules that stop the server have one of
/// their own; the others share one.
#[derive(Debug)]
pub struct PostgresSite {
    server: Arc<PostgresServer>,
    database: String,
    network: Network,
    scheme: &'static str,
}

/// A fresh database with Fencepost's tables, for leases.
pub async fn postgres() -> PostgresSite {
    site("postgres").await
}

/// The same, for locks that are held as long as a session lives.
pub async fn postgres_session() -> PostgresSite {
    site("postgres+session").await
}

async fn site(scheme: &'static str) -> PostgresSite {
    let server = if rules::runs_one_that_stops_the_server() { fresh().await } else { shared().await };
    static DATABASES: AtomicU32 = AtomicU32::new(0);
    let database = format!("site_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    server.sql("postgres", &format!("CREATE DATABASE {database} TEMPLATE migrated"));
    let network = Network::before(server.address()).await.expect("a free port");
    PostgresSite { server, database, network, scheme }
}

/// The server of all sites that are alive; it ends with the last one.
async fn shared() -> Arc<PostgresServer> {
    static SHARED: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = fresh().await;
    *shared = Arc::downgrade(&server);
    server
}

async fn fresh() -> Arc<PostgresServer> {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE DATABASE migrated");
    server.sql("postgres", "CREATE ROLE mallory LOGIN");
    let url = StoreUrl::parse(&server.url("migrated")).expect("a URL");
    let config = PostgresConfig::from_url(url).expect("a URL");
    fencepost_postgres::migrate(&config).await.expect("the tables");
    Arc::new(server)
}

impl PostgresSite {
    fn url_at(&self, login: &str, address: SocketAddr) -> String {
        format!("{}://{login}@{address}/{}", self.scheme, self.database)
    }

    fn sql(&self, text: &str) -> Rows {
        self.server.sql(&self.database, text)
    }
}

impl Drop for PostgresSite {
    fn drop(&mut self) {
        // Space; a server that was stopped has none left to give back.
        let _ = self.server.try_sql("postgres", &format!("DROP DATABASE {} WITH (FORCE)", self.database));
    }
}

impl Site for PostgresSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of(self.scheme)
    }

    fn url(&self) -> String {
        self.url_at("postgres", self.server.address())
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let of = |name: &LockName| format!("WHERE name = '{name}'");
            match how {
                Tampering::Delete(name) => drop(self.sql(&format!("DELETE FROM fencepost.locks {}", of(name)))),
                Tampering::MakePermanent(_) if self.scheme != "postgres" => {
                    return Err(DoesNotApply("grants do not expire on this store"));
                }
                Tampering::MakePermanent(name) => {
                    self.sql(&format!("UPDATE fencepost.locks SET expires_at = 'infinity' {}", of(name)));
                }
                Tampering::CorruptFence(name) => {
                    self.sql("ALTER TABLE fencepost.locks ALTER fence DROP NOT NULL");
                    self.sql(&format!("UPDATE fencepost.locks SET fence = NULL {}", of(name)));
                }
                // Who listens is known by its advisory lock.
                Tampering::CutMessages => {
                    let listening = "classid = 'fencepost.locks'::regclass AND objsubid = 2 AND database = \
                                     (SELECT oid FROM pg_database WHERE datname = current_database())";
                    let cut = format!("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {listening}");
                    // A waiter has its place before its connection for messages is there.
                    while self.sql(&cut).is_empty() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                Tampering::PlantForeign(_) => {
                    let foreign = "INSERT INTO fencepost.locks (namespace, name, fence, owner, ttl, expires_at) \
                                   VALUES ('conformance', 'foreign', 1, '\\x00', 1, 'infinity')";
                    self.server.try_sql(&self.database, foreign).expect_err("the table's constraints refuse it");
                    return Err(DoesNotApply("the table's constraints refuse what is no record"));
                }
                Tampering::PlantWrongType(_) => return Err(DoesNotApply("columns have one type of content")),
                Tampering::FlushScripts => return Err(DoesNotApply("the store's functions are part of its schema")),
            }
            Ok(())
        })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let rows = self.sql(
                "SELECT name || ' is held' FROM fencepost.locks AS l WHERE fencepost.is_held(l) \
                 UNION ALL SELECT name || ' is waited for' FROM fencepost.claims",
            );
            rows.into_iter().flatten().flatten().collect()
        })
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        Ok(self.url_at("postgres", self.network.address))
    }

    fn server(&self) -> Verdict<&dyn Server> {
        Ok(self)
    }

    fn forbidden_url(&self) -> Verdict<String> {
        Ok(self.url_at("mallory:wrong-password", self.server.address()))
    }
}

impl Server for PostgresSite {
    fn kill(&self) {
        self.server.kill();
    }

    fn start(&self) {
        self.server.launch();
    }

    fn connections(&self) -> usize {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND application_name LIKE 'fencepost %'";
        self.server.value(&self.database, count).parse().expect("a number")
    }
}
