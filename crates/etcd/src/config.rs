//! Where the members are and how to talk to them.

use std::{fmt, path::PathBuf, time::Duration};

use fencepost_core::{
    error::Error,
    url::{
        StoreUrl,
        settings::{client_certificate, exactly_one, invalid, limit, password_from},
    },
};

const DEFAULT_PORT: u16 = 2379;

/// How to reach an etcd cluster. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The members' client addresses as `HOST:PORT`, tried in this order from a random start. Never empty.
    pub members: Vec<String>,
    /// The user and the password.
    pub login: Option<(String, String)>,
    /// TLS; `None` for plain connections.
    pub tls: Option<Tls>,
    /// The limit for the answer to one request by one member.
    pub timeout: Duration,
    /// The limit for one try to connect to one member.
    pub connect_timeout: Duration,
    /// How keys are laid out.
    pub recipe: Recipe,
}

/// How a lock's keys are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recipe {
    /// Fencepost's own: names are encoded, strays do not block.
    #[default]
    Fencepost,
    /// That of etcd's own clients: `etcdctl lock NAMESPACE/NAME` and Fencepost exclude each other.
    Etcd,
}

/// The files of a TLS connection, in PEM. Without `ca` the authorities that the system trusts are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities to trust.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key, where the members demand one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name to expect in the members' certificates, when it is not the host's.
    pub server_name: Option<String>,
}

impl EtcdConfig {
    /// Plain connections without a login, with limits of 2 s for an answer and for connecting.
    pub fn new(members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut members: Vec<String> = members.into_iter().map(Into::into).collect();
        if members.is_empty() {
            members.push(format!("127.0.0.1:{DEFAULT_PORT}"));
        }
        Self {
            members,
            login: None,
            tls: None,
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            recipe: Recipe::Fencepost,
        }
    }

    /// Reads `etcd://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…` or the same with `etcds:` for TLS. Options: `user`,
    /// `password_file`, `timeout`, `connect_timeout`, `recipe`, and with TLS `ca`, `cert`, `key`, `server_name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        if !matches!(url.path(), "" | "/") {
            return Err(invalid("an etcd URL has no path").advise("the prefix of all keys is the namespace"));
        }
        let members = url.hosts().iter().map(|host| with_port(host)).collect::<Result<Vec<_>, _>>()?;
        let mut config = Self::new(members);
        let user = exactly_one("user", url.user().map(str::to_owned), url.take("user"))?;
        let from_file = url.take("password_file").map(password_from).transpose()?;
        let password = exactly_one("password", url.password().map(str::to_owned), from_file)?;
        config.login = match (user, password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => {
                return Err(invalid("a login is a user and a password")
                    .advise("write etcd://USER:PASSWORD@HOST or give `user` and `password_file`"));
            }
        };
        config.timeout = limit(&mut url, "timeout", config.timeout)?;
        config.connect_timeout = limit(&mut url, "connect_timeout", config.connect_timeout)?;
        config.recipe = match url.take("recipe").as_deref() {
            None | Some("fencepost") => Recipe::Fencepost,
            Some("etcd") => Recipe::Etcd,
            Some(_) => return Err(invalid("`recipe` is fencepost or etcd")),
        };
        if url.scheme() == "etcds" {
            let client = client_certificate(&mut url)?;
            let ca = url.take("ca").map(PathBuf::from);
            config.tls = Some(Tls { ca, client, server_name: url.take("server_name") });
            url.finish("user, password_file, timeout, connect_timeout, recipe, ca, cert, key, server_name")?;
        } else {
            url.finish(
                "user, password_file, timeout, connect_timeout, recipe (and `etcds:` knows ca, cert, key, server_name)",
            )?;
        }
        Ok(config)
    }
}

fn with_port(host: &str) -> Result<String, Error> {
    let wrong = || invalid("a host of the URL is not HOST or HOST:PORT");
    let (name, port) = match host.rfind(']') {
        Some(end) if host.starts_with('[') => (&host[..=end], &host[end + 1..]),
        Some(_) => return Err(wrong()),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    if name.is_empty() || name == "[]" {
        return Err(wrong());
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(format!("{name}:{DEFAULT_PORT}")),
        Some(number) if number.parse::<u16>().is_ok_and(|number| number > 0) => Ok(host.to_owned()),
        _ => Err(wrong()),
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("members", &self.members)
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("recipe", &self.recipe)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::error::ErrorKind;

    use super::*;

    fn parsed(url: &str) -> Result<EtcdConfig, Error> {
        EtcdConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_the_members() {
        let config = parsed("etcd://bob:s%40crt@a,b:1,[::1],[::1]:2?timeout=150ms&recipe=etcd").unwrap();
        assert_eq!(config.members, ["a:2379", "b:1", "[::1]:2379", "[::1]:2"]);
        assert_eq!(config.login, Some(("bob".to_owned(), "s@crt".to_owned())));
        assert_eq!((config.timeout.as_millis(), config.recipe), (150, Recipe::Etcd));
        assert_eq!(parsed("etcd://").unwrap(), EtcdConfig::new(["127.0.0.1:2379"]));
        let tls = parsed("etcds://h?ca=/a&cert=/b&key=/c&server_name=n").unwrap().tls.unwrap();
        assert_eq!((tls.ca, tls.server_name.as_deref()), (Some("/a".into()), Some("n")));
    }

    #[test]
    fn what_is_not_known_is_refused_without_repeating_a_secret() {
        for bad in [
            "etcd://h:x",
            "etcd://h:0",
            "etcd://:1",
            "etcd://[::1",
            "etcd://h]",
            "etcd://h/x",
            "etcd://h?tiemout=1s",
            "etcd://h?timeout=0",
            "etcd://h?recipe=curator",
            "etcd://h?ca=/x",
            "etcds://h?cert=/x",
            "etcd://bob@h",
            "etcd://bob:hunter2@h?user=alice",
            "etcd://bob:hunter2@h?password_file=/nowhere",
        ] {
            let error = parsed(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", parsed("etcd://bob:hunter2@h").unwrap()).contains("hunter2"));
    }
}
