//! Where the server is and how to talk to it.

use std::{collections::HashSet, fmt, path::PathBuf, time::Duration};

use fencepost_core::{
    error::Error,
    url::{
        StoreUrl,
        settings::{client_certificate, exactly_one, invalid, limit, password_from},
    },
};
use redis::{Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::{replicas::Replicas, tls::Tls};

pub(crate) const DEFAULT_PORT: u16 = 6379;
/// Many times what a replica on the same continent needs.
const REPLICAS_WITHIN: Duration = Duration::from_secs(1);

/// How to reach one Redis server. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// The host's name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The database's number.
    pub database: u32,
    /// The ACL user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// TLS; `None` for a plain connection.
    pub tls: Option<Tls>,
    /// The limit for the answer to one command.
    pub timeout: Duration,
    /// The limit for one try to connect, login included.
    pub connect_timeout: Duration,
    /// How many replicas must have a grant before it counts; `None` for the master alone.
    pub replicas: Option<Replicas>,
}

impl RedisConfig {
    /// A plain connection to database 0, with limits of 2 s for an answer and 5 s for connecting.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            database: 0,
            user: None,
            password: None,
            tls: None,
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            replicas: None,
        }
    }

    /// Reads `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]` or the same with `rediss:` for TLS. Options: `user`,
    /// `password_file`, `timeout`, `connect_timeout`, `replicas`, `replicas_timeout`, and with TLS `ca`, `cert`, `key`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        let (host, port) = match url.hosts() {
            [] => ("127.0.0.1".to_owned(), DEFAULT_PORT),
            [host] => host_and_port(host, DEFAULT_PORT)?,
            _ => {
                return Err(invalid(format!("`{}:` names one server, and this URL names several", url.scheme()))
                    .advise("Sentinel, Cluster and Redlock are schemes of their own"));
            }
        };
        let mut config = Self::new(host, port);
        config.database = database(url.path())?;
        config.take_options(&mut url)?;
        url.finish(&options_of(config.tls.is_some()))?;
        Ok(config)
    }

    /// The login, the limits and TLS, which every scheme of Redis has in common.
    pub(crate) fn take_options(&mut self, url: &mut StoreUrl) -> Result<(), Error> {
        self.user = exactly_one("user", url.user().map(str::to_owned), url.take("user"))?;
        let from_file = url.take("password_file").map(password_from).transpose()?;
        self.password = exactly_one("password", url.password().map(str::to_owned), from_file)?;
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid("the URL names a user without a password")
                .advise("write redis://USER:PASSWORD@HOST or give `password_file`"));
        }
        self.timeout = limit(url, "timeout", self.timeout)?;
        self.connect_timeout = limit(url, "connect_timeout", self.connect_timeout)?;
        self.replicas = replicas(url)?;
        if url.scheme().starts_with("rediss") {
            self.tls = Some(tls_options(url)?);
        }
        Ok(())
    }

    /// The same login and limits at another place.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port, ..self.clone() }
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> String {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    pub(crate) fn client(&self) -> Result<Client, Error> {
        self.client_speaking(ProtocolVersion::RESP2)
    }

    /// For connections on which messages arrive between answers.
    pub(crate) fn pushing_client(&self) -> Result<Client, Error> {
        self.client_speaking(ProtocolVersion::RESP3)
    }

    fn client_speaking(&self, protocol: ProtocolVersion) -> Result<Client, Error> {
        let mut login = RedisConnectionInfo::default().set_db(self.database.into()).set_protocol(protocol);
        login = match self.tls {
            None => login.set_skip_set_lib_name(),
            // A server that misses the client's certificate says so after the first command only. Telling our name
            // (who has no right to is not refused) makes that command a part of connecting, where the reason is kept.
            Some(_) => login.set_lib_name("fencepost", env!("CARGO_PKG_VERSION")),
        };
        if let Some(user) = &self.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        let (host, port) = (self.host.clone(), self.port);
        let address = match self.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let refused = |source: redis::RedisError| invalid("the connection cannot be set up so").caused_by(source);
        let info = address.into_connection_info().map_err(refused)?.set_redis_settings(login);
        match &self.tls {
            None => Client::open(info).map_err(refused),
            Some(tls) => Client::build_with_tls(info, tls.certificates()?).map_err(refused),
        }
    }
}

/// The options that every scheme of Redis knows, for messages.
pub(crate) fn options_of(tls: bool) -> String {
    let tls = if tls { ", ca, cert, key" } else { " (and with `rediss` in the scheme: ca, cert, key)" };
    format!("user, password_file, timeout, connect_timeout, replicas, replicas_timeout{tls}")
}

pub(crate) fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), Error> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| invalid("the IPv6 address lacks its `]`"))?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")))
        }
        None => text.split_once(':').map_or((text, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some("") => Some(default_port),
        Some(port) => port.parse().ok(),
        None => None,
    };
    match port {
        Some(port) if !host.is_empty() && port > 0 => Ok((host.to_owned(), port)),
        _ => Err(invalid("the URL's host is not HOST or HOST:PORT")),
    }
}

/// A server that is named twice would have two voices.
pub(crate) fn refuse_twice<'a>(servers: impl Iterator<Item = &'a RedisConfig>) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for address in servers.map(RedisConfig::address) {
        if !seen.insert(address.clone()) {
            return Err(invalid(format!("the URL names {address} twice")));
        }
    }
    Ok(())
}

pub(crate) fn database(path: &str) -> Result<u32, Error> {
    match path.strip_prefix('/').unwrap_or(path) {
        "" => Ok(0),
        number => number.parse().map_err(|_| invalid("the URL's path is the database's number, as in redis://h/0")),
    }
}

fn replicas(url: &mut StoreUrl) -> Result<Option<Replicas>, Error> {
    let count = url.take("replicas").map(|count| count.parse::<u32>().ok().filter(|count| *count <= 100));
    let within = url.take_span("replicas_timeout")?;
    match (count, within) {
        (None | Some(Some(0)), None) => Ok(None),
        (Some(None), _) => Err(invalid("`replicas` is a number, and not of hundreds")),
        (None | Some(Some(0)), Some(_)) => Err(invalid("`replicas_timeout` without `replicas`")),
        // Zero would mean no limit at all.
        (_, Some(within)) if within < Duration::from_millis(1) => {
            Err(invalid("`replicas_timeout` must be at least a millisecond"))
        }
        (Some(Some(count)), within) => Ok(Some(Replicas { count, within: within.unwrap_or(REPLICAS_WITHIN) })),
    }
}

pub(crate) fn tls_options(url: &mut StoreUrl) -> Result<Tls, Error> {
    let client = client_certificate(url)?;
    Ok(Tls { ca: url.take("ca").map(PathBuf::from), client })
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("database", &self.database)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::error::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<RedisConfig, Error> {
        RedisConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_one_server() {
        let config = read("redis://bob:s%40crt@db.example:7000/3?timeout=150ms&connect_timeout=1s").unwrap();
        assert_eq!((&*config.host, config.port, config.database), ("db.example", 7000, 3));
        assert_eq!((config.user.as_deref(), config.password.as_deref()), (Some("bob"), Some("s@crt")));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_millis()), (150, 1000));
        assert_eq!(read("redis://").unwrap(), RedisConfig::new("127.0.0.1", 6379));
        assert_eq!(read("redis://[::1]:7000").unwrap(), RedisConfig::new("::1", 7000));
        assert_eq!(read("rediss://h?ca=/a&cert=/b&key=/c").unwrap().tls.unwrap().ca, Some("/a".into()));
    }

    #[test]
    fn what_is_not_known_is_refused_without_repeating_a_secret() {
        for bad in [
            "redis://a,b",
            "redis://h:x",
            "redis://h:0",
            "redis://[::1",
            "redis://h/x",
            "redis://h?tiemout=1s",
            "redis://h?timeout=0",
            "redis://h?replicas=x",
            "redis://h?replicas_timeout=1s",
            "redis://h?replicas=1&replicas_timeout=0",
            "redis://h?ca=/x",
            "rediss://h?cert=/x",
            "redis://bob@h",
            "redis://bob:hunter2@h?user=alice",
            "redis://bob:hunter2@h?password_file=/nowhere",
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", read("redis://bob:hunter2@h").unwrap()).contains("hunter2"));
    }
}
