//! Where some of the nodes are.

use fencepost_core::{
    error::Error,
    url::{StoreUrl, settings::invalid},
};

use crate::config::{self, RedisConfig, host_and_port, options_of};

const DEFAULT_PORT: u16 = 6379;

/// How to reach a cluster. `Debug` shows no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Some of its nodes, with the login and the limits that are good for every node. One that answers is enough.
    pub nodes: Vec<RedisConfig>,
}

impl ClusterConfig {
    /// Reads `redis+cluster://[USER:PASSWORD@]NODE[:PORT],…` or the same with `rediss+cluster:` for TLS, with the options
    /// of [`RedisConfig::from_url`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        if url.hosts().is_empty() {
            return Err(invalid("the URL does not say where the cluster is").advise("write redis+cluster://NODE,NODE"));
        }
        if !matches!(url.path(), "" | "/" | "/0") {
            return Err(invalid("a cluster has no database but 0, and the URL names another"));
        }
        let mut node = RedisConfig::new("", 0);
        node.take_options(&mut url)?;
        let at = |host: &String| host_and_port(host, DEFAULT_PORT).map(|(host, port)| node.at(&host, port));
        let nodes = url.hosts().iter().map(at).collect::<Result<Vec<_>, _>>()?;
        config::refuse_twice(nodes.iter())?;
        url.finish(&options_of(node.tls.is_some()))?;
        Ok(Self { nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<ClusterConfig, Error> {
        ClusterConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_nodes() {
        let config = read("redis+cluster://bob:pw@a,b:7000?timeout=150ms").unwrap();
        assert_eq!(config.nodes.iter().map(RedisConfig::address).collect::<Vec<_>>(), ["a:6379", "b:7000"]);
        assert!(config.nodes.iter().all(|node| node.password.as_deref() == Some("pw")));
        assert!(!format!("{config:?}").contains("pw"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bad in ["redis+cluster:", "redis+cluster://a/1", "redis+cluster://a,a", "redis+cluster://a?nope=1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
