//! Where the ensemble is and how to talk to it.

use std::{fmt, path::PathBuf, time::Duration};

use fencepost_core::{
    error::Error,
    url::{
        StoreUrl,
        settings::{client_certificate, exactly_one, invalid, limit, password_from},
    },
};

use crate::{layout::Recipe, tls::Tls};

const DEFAULT_PORT: u16 = 2181;

/// Who may do what with a node that we make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Everybody everything.
    #[default]
    Open,
    /// Everything, for those who logged in as we did; nothing for anybody else.
    Creator,
}

/// How to reach a ZooKeeper ensemble. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperConfig {
    /// The servers, host and port.
    pub servers: Vec<(String, u16)>,
    /// The path below which everything lies, which must exist; empty for the root.
    pub chroot: String,
    /// User and password of the `digest` scheme.
    pub login: Option<(String, String)>,
    /// Who may touch what we make.
    pub access: Access,
    /// Whose nodes look like ours.
    pub recipe: Recipe,
    /// TLS; `None` for a plain connection.
    pub tls: Option<Tls>,
    /// The limit for the answer to one request.
    pub timeout: Duration,
    /// The limit for one try to connect to one server, its greeting included.
    pub connect_timeout: Duration,
}

impl ZooKeeperConfig {
    /// Plain connections without a login, with limits of 3 s for an answer and 2 s for connecting.
    pub fn new(servers: Vec<(String, u16)>) -> Self {
        Self {
            servers,
            chroot: String::new(),
            login: None,
            access: Access::Open,
            recipe: Recipe::Fencepost,
            tls: None,
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(2),
        }
    }

    /// Reads `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/CHROOT]`, or the same with `zookeepers:` for TLS.
    /// Options: `user`, `password_file`, `acl`, `recipe`, `timeout`, `connect_timeout`, and with TLS `ca`, `cert`, `key`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        let servers = match url.hosts() {
            [] => vec![("127.0.0.1".to_owned(), DEFAULT_PORT)],
            hosts => hosts.iter().map(|host| host_and_port(host)).collect::<Result<_, _>>()?,
        };
        let mut config = Self::new(servers);
        config.chroot = chroot(url.path())?;
        config.login = login(&mut url)?;
        config.access = match url.take("acl").as_deref() {
            None if config.login.is_some() => Access::Creator,
            None | Some("open") => Access::Open,
            Some("creator") if config.login.is_some() => Access::Creator,
            Some("creator") => return Err(invalid("`acl=creator` needs a user and a password")),
            Some(_) => return Err(invalid("`acl` is open or creator")),
        };
        config.recipe = match url.take("recipe").as_deref() {
            None | Some("fencepost") => Recipe::Fencepost,
            Some("curator") => Recipe::Curator,
            Some(_) => return Err(invalid("`recipe` is fencepost or curator")),
        };
        config.timeout = limit(&mut url, "timeout", config.timeout)?;
        config.connect_timeout = limit(&mut url, "connect_timeout", config.connect_timeout)?;
        config.tls = tls_options(&mut url)?;
        url.finish(
            "user, password_file, acl, recipe, timeout, connect_timeout (and `zookeepers:` knows ca, cert, key)",
        )?;
        Ok(config)
    }
}

fn host_and_port(text: &str) -> Result<(String, u16), Error> {
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
        Some(port) if !host.is_empty() && port > 0 => Ok((host.to_owned(), port)),
        _ => Err(invalid("a host of the URL is not HOST or HOST:PORT")),
    }
}

fn chroot(path: &str) -> Result<String, Error> {
    let path = path.trim_end_matches('/');
    let sound = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.chars().any(char::is_control);
    if path.is_empty() || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(sound)) {
        return Ok(path.to_owned());
    }
    Err(invalid("the URL's path is not a path of ZooKeeper, as in zookeeper://h1,h2,h3/apps/shop"))
}

fn login(url: &mut StoreUrl) -> Result<Option<(String, String)>, Error> {
    let user = exactly_one("user", url.user().map(str::to_owned), url.take("user"))?;
    let from_file = url.take("password_file").map(password_from).transpose()?;
    let password = exactly_one("password", url.password().map(str::to_owned), from_file)?;
    match (user, password) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) if !user.contains(':') => Ok(Some((user, password))),
        (Some(_), Some(_)) => Err(invalid("a user's name in ZooKeeper has no colon")),
        _ => Err(invalid("user and password belong together")
            .advise("write zookeeper://USER:PASSWORD@HOST or give `password_file`")),
    }
}

fn tls_options(url: &mut StoreUrl) -> Result<Option<Tls>, Error> {
    if url.scheme() != "zookeepers" {
        return Ok(None);
    }
    let ca = url.take("ca").map(PathBuf::from);
    let client = client_certificate(url)?;
    Ok(Some(Tls { ca, client }))
}

impl fmt::Debug for ZooKeeperConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperConfig")
            .field("servers", &self.servers)
            .field("chroot", &self.chroot)
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("access", &self.access)
            .field("recipe", &self.recipe)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::error::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<ZooKeeperConfig, Error> {
        ZooKeeperConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_an_ensemble() {
        let config =
            read("zookeeper://bob:s%40crt@a:7000,b,[::1]:7001/apps/shop?timeout=150ms&recipe=curator").unwrap();
        let servers = [("a".to_owned(), 7000), ("b".to_owned(), 2181), ("::1".to_owned(), 7001)];
        assert_eq!((&*config.servers, &*config.chroot), (&servers[..], "/apps/shop"));
        assert_eq!(config.login, Some(("bob".to_owned(), "s@crt".to_owned())));
        assert_eq!((config.access, config.recipe, config.timeout.as_millis()), (Access::Creator, Recipe::Curator, 150));
        assert_eq!(read("zookeeper://").unwrap(), ZooKeeperConfig::new(vec![("127.0.0.1".to_owned(), 2181)]));
        assert_eq!(read("zookeeper://h/").unwrap().chroot, "");
        assert_eq!(read("zookeepers://h?ca=/a&cert=/b&key=/c").unwrap().tls.unwrap().ca, Some("/a".into()));
    }

    #[test]
    fn what_is_not_known_is_refused_without_repeating_a_secret() {
        for bad in [
            "zookeeper://h:x",
            "zookeeper://h:0",
            "zookeeper://[::1",
            "zookeeper://h/a//b",
            "zookeeper://h/a/../b",
            "zookeeper://h?tiemout=1s",
            "zookeeper://h?timeout=0",
            "zookeeper://h?ca=/x",
            "zookeepers://h?cert=/x",
            "zookeeper://h?acl=creator",
            "zookeeper://h?recipe=zab",
            "zookeeper://bob@h",
            "zookeeper://bob:hunter2@h?user=alice",
            "zookeeper://bob:hunter2@h?password_file=/nowhere",
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", read("zookeeper://bob:hunter2@h").unwrap()).contains("hunter2"));
    }
}
