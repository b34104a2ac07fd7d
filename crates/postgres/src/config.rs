//! Where the server is and how to talk to it.

use std::{fmt, path::PathBuf, time::Duration};

use fencepost_core::{
    error::Error,
    url::{
        StoreUrl,
        settings::{client_certificate, exactly_one, invalid, limit, password_from},
    },
};

use crate::tls::Tls;

const DEFAULT_PORT: u16 = 5432;
const KNOWN: &str =
    "mode, user, password_file, host, target_session_attrs, schema, timeout, connect_timeout, sslmode, ca, cert, key";

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A host's name or address, and a port.
    Tcp(String, u16),
    /// The directory of a local socket, and the port that its name ends with.
    Socket(PathBuf, u16),
}

/// For how long a grant lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// For its TTL, unless renewed.
    #[default]
    Lease,
    /// For as long as the client's connection lives; the server frees it at once when that ends.
    Session,
}

/// How to reach one PostgreSQL database. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    /// The servers of one cluster; the one that takes writes is looked for.
    pub hosts: Vec<Host>,
    /// The database's name.
    pub database: String,
    /// The role.
    pub user: String,
    /// Its password.
    pub password: Option<String>,
    /// TLS; `None` for plain connections.
    pub tls: Option<Tls>,
    /// For how long grants last.
    pub mode: Mode,
    /// The schema with Fencepost's tables.
    pub schema: String,
    /// The limit for the answer to one statement.
    pub timeout: Duration,
    /// The limit for connecting, all hosts and the login included.
    pub connect_timeout: Duration,
}

impl PostgresConfig {
    /// Plain connections to one server, with limits of 3 s for an answer and 5 s for connecting.
    pub fn new(host: Host, user: impl Into<String>, database: impl Into<String>) -> Self {
        Self {
            hosts: vec![host],
            database: database.into(),
            user: user.into(),
            password: None,
            tls: None,
            mode: Mode::Lease,
            schema: "fencepost".to_owned(),
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
        }
    }

    /// Reads `postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/DATABASE]`. Options: see the crate's page.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        let mode = match url.take("mode").as_deref() {
            None | Some("lease") => Mode::Lease,
            Some("session") => Mode::Session,
            Some(_) => {
                return Err(invalid("`mode` is lease or session")
                    .advise("for locks inside your own transaction see the documentation of `fencepost-postgres`"));
            }
        };
        let user = exactly_one("user", url.user().map(str::to_owned), url.take("user"))?;
        let user = user.or_else(|| std::env::var("PGUSER").ok()).or_else(|| std::env::var("USER").ok());
        let user =
            user.ok_or_else(|| invalid("the URL names no user").advise("write postgres://USER@HOST/DATABASE"))?;
        let database = match url.path().trim_start_matches('/') {
            "" => user.clone(),
            database => database.to_owned(),
        };
        let mut config = Self::new(Host::Tcp("127.0.0.1".into(), DEFAULT_PORT), user, database);
        config.mode = mode;
        config.hosts = hosts(&mut url)?;
        // What it would ask for is what we do in any case; the rest of its values would allow a standby.
        if url.take("target_session_attrs").is_some_and(|wanted| wanted != "read-write" && wanted != "primary") {
            return Err(invalid("`target_session_attrs` is read-write: a standby grants no locks"));
        }
        let from_file = url.take("password_file").map(password_from).transpose()?;
        config.password = exactly_one("password", url.password().map(str::to_owned), from_file)?;
        config.timeout = limit(&mut url, "timeout", config.timeout)?;
        config.connect_timeout = limit(&mut url, "connect_timeout", config.connect_timeout)?;
        if let Some(schema) = url.take("schema") {
            config.schema = checked_schema(schema)?;
        }
        config.tls = tls_options(&mut url)?;
        url.finish(KNOWN)?;
        Ok(config)
    }

    /// Refuses a schema's name that would need quotes. It stands in statements as it is.
    pub(crate) fn check(&self) -> Result<(), Error> {
        checked_schema(self.schema.clone())?;
        if self.hosts.is_empty() { Err(invalid("no host is named")) } else { Ok(()) }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Host::Tcp(host, port) => write!(f, "{host}:{port}"),
            Host::Socket(directory, port) => write!(f, "{}/.s.PGSQL.{port}", directory.display()),
        }
    }
}

fn hosts(url: &mut StoreUrl) -> Result<Vec<Host>, Error> {
    let option = url.take("host");
    match (option, url.hosts()) {
        (Some(_), [_, ..]) => Err(invalid("the URL gives the host twice")),
        (Some(directory), []) if directory.starts_with('/') => Ok(vec![Host::Socket(directory.into(), DEFAULT_PORT)]),
        (Some(host), []) => Ok(vec![host_and_port(&host)?]),
        (None, []) => Ok(vec![Host::Tcp("127.0.0.1".into(), DEFAULT_PORT)]),
        (None, hosts) => hosts.iter().map(|host| host_and_port(host)).collect(),
    }
}

fn host_and_port(text: &str) -> Result<Host, Error> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| invalid("the IPv6 address lacks its `]`"))?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")))
        }
        None => text.split_once(':').map_or((text, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some("") => Some(DEFAULT_PORT),
        Some(port) => port.parse().ok(),
        None => None,
    };
    match port {
        Some(port) if !host.is_empty() && port > 0 => Ok(Host::Tcp(host.to_owned(), port)),
        _ => Err(invalid("the URL's host is not HOST or HOST:PORT")),
    }
}

fn checked_schema(schema: String) -> Result<String, Error> {
    let mut bytes = schema.bytes();
    let begins = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    if begins && schema.len() <= 63 && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
        Ok(schema)
    } else {
        Err(invalid("`schema` is a name of small letters, digits and `_`, at most 63 of them"))
    }
}

/// An encrypted connection is always to a server whose certificate was checked: without that, whoever stands between
/// could grant locks.
fn tls_options(url: &mut StoreUrl) -> Result<Option<Tls>, Error> {
    let wanted = match url.take("sslmode").as_deref() {
        None => None,
        Some("disable") => Some(false),
        Some("require" | "verify-full") => Some(true),
        Some("prefer" | "allow" | "verify-ca") => {
            let said = "a connection that may or may not be encrypted, or to whomever, protects nothing";
            return Err(invalid(said).advise("`sslmode` is verify-full or disable"));
        }
        Some(_) => return Err(invalid("`sslmode` is verify-full or disable")),
    };
    let client = client_certificate(url)?;
    let tls = Tls { ca: url.take("ca").map(PathBuf::from), client };
    let files = tls != Tls::default();
    match wanted {
        Some(false) if files => Err(invalid("`ca`, `cert` and `key` need `sslmode=verify-full`")),
        Some(true) => Ok(Some(tls)),
        _ => Ok(files.then_some(tls)),
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("hosts", &self.hosts)
            .field("database", &self.database)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("mode", &self.mode)
            .field("schema", &self.schema)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::error::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<PostgresConfig, Error> {
        PostgresConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_the_servers_of_one_cluster() {
        let config = read("postgres://bob:s%40crt@h1:7000,[::1]:7001,h3/orders?timeout=150ms&schema=locks_2").unwrap();
        let shown: Vec<_> = config.hosts.iter().map(Host::to_string).collect();
        assert_eq!(shown, ["h1:7000", "[::1]:7001", "h3:5432"]);
        assert_eq!((&*config.user, config.password.as_deref(), &*config.database), ("bob", Some("s@crt"), "orders"));
        assert_eq!((config.timeout.as_millis(), &*config.schema, config.tls), (150, "locks_2", None));
        let pasted = read("postgres://bob@h1,h2/orders?target_session_attrs=read-write").unwrap();
        assert_eq!(pasted.hosts.len(), 2);
        assert_eq!(read("postgres://bob@h").unwrap().database, "bob");
        assert_eq!(read("postgres://bob@h?mode=session").unwrap().mode, Mode::Session);
        assert!(read("postgres://bob@h?sslmode=verify-full").unwrap().tls.is_some());
        assert_eq!(read("postgres://bob@h?ca=/a").unwrap().tls.unwrap().ca, Some("/a".into()));
        let socket = read("postgres://bob@/orders?host=/run/postgresql").unwrap();
        assert_eq!(socket.hosts, [Host::Socket("/run/postgresql".into(), 5432)]);
    }

    #[test]
    fn what_is_not_known_is_refused_without_repeating_a_secret() {
        for bad in [
            "postgres://b:hunter2@h:x",
            "postgres://b:hunter2@h:0",
            "postgres://b@[::1",
            "postgres://b@h?tiemout=1s",
            "postgres://b@h?timeout=0",
            "postgres://b@h?mode=none",
            "postgres://b@h?schema=a-b",
            "postgres://b@h?schema=x;drop",
            "postgres://b@h?cert=/x",
            "postgres://b@h?sslmode=prefer",
            "postgres://b@h?sslmode=disable&ca=/x",
            "postgres://b:hunter2@h?user=alice",
            "postgres://b:hunter2@h?password_file=/nowhere",
            "postgres://b@h?host=h2",
            "postgres://b@h?target_session_attrs=any",
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", read("postgres://bob:hunter2@h").unwrap()).contains("hunter2"));
    }
}
