//! Databases of one PostgreSQL server, which the tests of this program share: making one takes seconds.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU32, Ordering},
};

use fencepost::url::StoreUrl;
use fencepost_postgres::PostgresConfig;
use fencepost_servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

static SERVER: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// A database of a test's own. The server ends with the last of them.
pub(crate) struct Database {
    server: Arc<PostgresServer>,
    name: String,
}

impl Database {
    pub(crate) fn new() -> Self {
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| Arc::new(PostgresServer::start()));
        *shared = Arc::downgrade(&server);
        drop(shared);
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        server.sql("postgres", &format!("CREATE DATABASE {name}"));
        Self { server, name }
    }

    /// One that keeps locks and cells.
    pub(crate) async fn of_locks() -> Self {
        let database = Self::new();
        let config = PostgresConfig::from_url(StoreUrl::parse(&database.url()).unwrap()).unwrap();
        fencepost_postgres::migrate(&config).await.unwrap();
        database
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub(crate) fn sql(&self, text: &str) -> Vec<Vec<Option<String>>> {
        self.server.sql(&self.name, text)
    }

    pub(crate) fn value(&self, text: &str) -> String {
        self.server.value(&self.name, text)
    }
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
