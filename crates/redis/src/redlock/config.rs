//! Which servers, and how carefully.

use std::time::Duration;

use fencepost_core::{
    error::Error,
    quorum::{Drift, Quorum},
    url::{
        StoreUrl, parse_span,
        settings::{exactly_one, invalid, limit, password_from},
    },
};

use crate::config::{DEFAULT_PORT, RedisConfig, database, host_and_port, tls_options};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// More servers than anybody runs; each one is asked for every lock.
const MOST: usize = 32;

/// The servers of a Redlock and its limits. `Debug` shows no secret.
#[derive(Clone, Debug, PartialEq)]
pub struct RedlockConfig {
    /// How to reach each server.
    pub nodes: Vec<RedisConfig>,
    /// Each server's limit for the answer to any verb.
    pub node_limit: Duration,
    /// What is given up of a TTL.
    pub drift: Drift,
    /// For how long a server that restarted is not counted.
    pub restart_guard: RestartGuard,
}

/// For how long a server that restarted is not counted: it may have forgotten what it promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartGuard {
    /// For the TTL of the claim that wants its vote.
    #[default]
    Ttl,
    /// For so long, or for the claim's TTL where that is longer: for locks that are claimed with different TTLs.
    AtLeast(Duration),
    /// Not at all: the servers lose nothing when they restart (`appendfsync always`).
    Off,
}

impl RestartGuard {
    /// How long a server must have been up for a claim of `ttl`.
    pub(super) fn span(self, ttl: Duration) -> Duration {
        match self {
            Self::Ttl => ttl,
            Self::AtLeast(span) => span.max(ttl),
            Self::Off => Duration::ZERO,
        }
    }
}

impl RedlockConfig {
    /// Reads `redlock://[USER:PASSWORD@]HOST[:PORT],…[/DATABASE]`, or the same with `redlocks:` for TLS. One login before all
    /// hosts is for all of them; where several hosts have one of their own, each has its own. Options: `user`,
    /// `password_file`, `node_timeout`, `connect_timeout`, `drift`, `restart_guard`, and with TLS `ca`, `cert`, `key`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known, and for a server that is named twice.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        if url.hosts().is_empty() || url.hosts().len() > MOST {
            return Err(invalid(format!("`{}:` names 1 to {MOST} servers, separated by commas", url.scheme()))
                .advise("three or five independent masters are usual"));
        }
        let (option, file) = (url.take("user"), url.take("password_file").map(password_from).transpose()?);
        let node_limit = limit(&mut url, "node_timeout", Quorum::NODE_LIMIT)?;
        let connect_timeout = limit(&mut url, "connect_timeout", CONNECT_TIMEOUT)?;
        let (drift, restart_guard) = (drift(&mut url)?, restart_guard(&mut url)?);
        let tls = (url.scheme() == "redlocks").then(|| tls_options(&mut url)).transpose()?;
        let mut nodes: Vec<RedisConfig> = Vec::new();
        for (place, text) in url.hosts().iter().enumerate() {
            let (host, port) = host_and_port(text, DEFAULT_PORT)?;
            if nodes.iter().any(|node| node.host.eq_ignore_ascii_case(&host) && node.port == port) {
                return Err(invalid(format!("the server {text} is named twice"))
                    .advise("each server has one vote: name different ones"));
            }
            let (user, password) = url.login_of(place);
            nodes.push(RedisConfig {
                database: database(url.path())?,
                user: exactly_one("user", user.map(str::to_owned), option.clone())?,
                // A login of its own comes before the one for all.
                password: password.map(str::to_owned).or_else(|| file.clone()),
                tls: tls.clone(),
                timeout: node_limit,
                connect_timeout,
                ..RedisConfig::new(host, port)
            });
        }
        if nodes.iter().any(|node| node.user.is_some() && node.password.is_none()) {
            return Err(invalid("the URL names a user without a password")
                .advise("write USER:PASSWORD@HOST or give `password_file`"));
        }
        url.finish(
            "user, password_file, node_timeout, connect_timeout, drift, restart_guard (and `redlocks:` knows ca, cert, \
             key)",
        )?;
        Ok(Self { nodes, node_limit, drift, restart_guard })
    }

    /// The rules of its rounds.
    pub(super) fn quorum(&self) -> Result<Quorum, Error> {
        let mut quorum = Quorum::of(self.nodes.len()).ok_or_else(|| invalid("no server is named"))?;
        (quorum.node_limit, quorum.drift) = (self.node_limit, self.drift);
        Ok(quorum)
    }
}

fn drift(url: &mut StoreUrl) -> Result<Drift, Error> {
    let Some(text) = url.take("drift") else { return Ok(Drift::default()) };
    text.parse().ok().and_then(Drift::percent).ok_or_else(|| {
        let (least, most) = (Drift::LEAST, Drift::MOST);
        invalid(format!("`drift` is hundredths of the TTL, from {least} to {most}, as in drift=2.5"))
    })
}

fn restart_guard(url: &mut StoreUrl) -> Result<RestartGuard, Error> {
    match url.take("restart_guard").map(|text| parse_span(&text)) {
        None => Ok(RestartGuard::Ttl),
        Some(Some(Duration::ZERO)) => Ok(RestartGuard::Off),
        Some(Some(span)) => Ok(RestartGuard::AtLeast(span)),
        Some(None) => Err(invalid("`restart_guard` is a time span such as 1m, or 0 for servers that lose nothing")),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::error::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<RedlockConfig, Error> {
        RedlockConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_several_servers() {
        let url = "redlock://:a@h1:7001,bob:b@h2,h3:7003/2?node_timeout=80ms&drift=2.5&restart_guard=1m";
        let config = read(url).unwrap();
        let nodes: Vec<_> =
            config.nodes.iter().map(|node| (&*node.host, node.port, node.password.as_deref())).collect();
        assert_eq!(nodes, [("h1", 7001, Some("a")), ("h2", 6379, Some("b")), ("h3", 7003, None)]);
        assert_eq!(config.nodes[1].user.as_deref(), Some("bob"));
        assert!(config.nodes.iter().all(|node| node.database == 2 && node.timeout == Duration::from_millis(80)));
        assert_eq!(config.restart_guard, RestartGuard::AtLeast(Duration::from_secs(60)));
        assert_eq!(config.drift, Drift::percent(2.5).unwrap());
        assert!(!format!("{config:?}").contains("\"a\""));
        let plain = read("redlock://bob:x@h1,h2,h3").unwrap();
        assert!(plain.nodes.iter().all(|node| node.user.as_deref() == Some("bob") && node.tls.is_none()));
        assert_eq!((plain.node_limit, plain.restart_guard), (Duration::from_millis(50), RestartGuard::Ttl));
        assert_eq!(read("redlock://h?restart_guard=0").unwrap().restart_guard, RestartGuard::Off);
        assert!(read("redlocks://h1,h2,h3?ca=/a").unwrap().nodes.iter().all(|node| node.tls.is_some()));
    }

    #[test]
    fn what_is_not_known_is_refused_without_repeating_a_secret() {
        for bad in [
            "redlock://",
            "redlock://h1,h2,H1:6379",
            "redlock://h1,h2,h3:0",
            "redlock://h1,h2?drift=0.5",
            "redlock://h1,h2?drift=NaN",
            "redlock://h1,h2?drift=x",
            "redlock://h1,h2?restart_guard=soon",
            "redlock://h1,h2?node_timeout=0",
            "redlock://h1,h2?timeout=1s",
            "redlock://h1,h2?ca=/x",
            "redlock://bob@h1,h2",
            "redlock://bob:hunter2@h1,h2?user=alice",
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
