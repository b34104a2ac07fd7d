//! Where the sentinels are, and what they call the master.

use std::{fmt, time::Duration};

use fencepost_core::{
    error::Error,
    url::{
        StoreUrl,
        settings::{exactly_one, invalid, limit, password_from},
    },
};

use crate::config::{self, RedisConfig, database, host_and_port, options_of};

const DEFAULT_PORT: u16 = 26379;
/// A sentinel does little else than answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How to find a master by its sentinels. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SentinelConfig {
    /// The sentinels, each with the login and the limits for asking it. Name all of them.
    pub sentinels: Vec<RedisConfig>,
    /// What the sentinels call the master.
    pub service: String,
    /// Login, database, TLS and limits for the master. Its host and port are not used: the sentinels name them.
    pub master: RedisConfig,
}

impl SentinelConfig {
    /// Reads `redis+sentinel://[USER:PASSWORD@]SENTINEL[:PORT],…/SERVICE[/DATABASE]` or the same with
    /// `rediss+sentinel:` for TLS, to the sentinels too. The login is the master's.
    ///
    /// Options beyond those of [`RedisConfig::from_url`]: `sentinel_user`, `sentinel_password`,
    /// `sentinel_password_file`, `sentinel_timeout`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](fencepost_core::error::ErrorKind::InvalidInput) for what cannot be read or is not
    /// known.
    pub fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        let path = url.path().trim_start_matches('/').to_owned();
        let (service, number) = path.split_once('/').unwrap_or((&path, ""));
        if service.is_empty() || url.hosts().is_empty() {
            return Err(invalid("the URL does not say which sentinels, or which service")
                .advise("write redis+sentinel://SENTINEL,SENTINEL,SENTINEL/SERVICE"));
        }
        let mut master = RedisConfig::new("", 0);
        master.database = database(number)?;
        master.take_options(&mut url)?;
        let within = limit(&mut url, "sentinel_timeout", ANSWERS_WITHIN)?;
        let from_file = url.take("sentinel_password_file").map(password_from).transpose()?;
        let asking = RedisConfig {
            database: 0,
            user: url.take("sentinel_user"),
            password: exactly_one("sentinel's password", url.take("sentinel_password"), from_file)?,
            timeout: within,
            connect_timeout: within,
            replicas: None,
            ..master.clone()
        };
        if asking.user.is_some() && asking.password.is_none() {
            return Err(invalid(
                "the URL names a `sentinel_user` without `sentinel_password` or `sentinel_password_file`",
            ));
        }
        let sentinel = |host: &String| host_and_port(host, DEFAULT_PORT).map(|(host, port)| asking.at(&host, port));
        let sentinels = url.hosts().iter().map(sentinel).collect::<Result<Vec<_>, _>>()?;
        config::refuse_twice(sentinels.iter())?;
        let known = options_of(master.tls.is_some());
        url.finish(&format!("{known}, sentinel_user, sentinel_password, sentinel_password_file, sentinel_timeout"))?;
        Ok(Self { sentinels, service: service.to_owned(), master })
    }
}

impl fmt::Debug for SentinelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The parts hide their secrets by themselves.
        f.debug_struct("SentinelConfig")
            .field("sentinels", &self.sentinels)
            .field("service", &self.service)
            .field("master", &self.master)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<SentinelConfig, Error> {
        SentinelConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_sentinels_and_a_service() {
        let config = read("redis+sentinel://bob:pw@a,b:7000,[::1]/locks/3?sentinel_password=s&timeout=150ms").unwrap();
        let places: Vec<_> = config.sentinels.iter().map(RedisConfig::address).collect();
        assert_eq!(places, ["a:26379", "b:7000", "[::1]:26379"]);
        assert_eq!((&*config.service, config.master.database), ("locks", 3));
        assert_eq!(
            (config.master.password.as_deref(), config.sentinels[0].password.as_deref()),
            (Some("pw"), Some("s"))
        );
        assert_eq!((config.sentinels[0].user.as_deref(), config.sentinels[0].database), (None, 0));
        assert!(read("rediss+sentinel://a/locks").unwrap().sentinels[0].tls.is_some());
    }

    #[test]
    fn what_is_not_known_is_refused_without_repeating_a_secret() {
        for bad in [
            "redis+sentinel://a,b",
            "redis+sentinel:///locks",
            "redis+sentinel://a,b,a/locks",
            "redis+sentinel://a/locks/x",
            "redis+sentinel://a/locks?sentinel_user=bob",
            "redis+sentinel://a/locks?sentinel_password=hunter2&sentinel_password_file=/nowhere",
            "redis+sentinel://a/locks?sentinel_password=hunter2&nope=1",
            "redis+sentinel://a/locks?sentinel_timeout=0",
        ] {
            let error = read(bad).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert!(
            !format!("{:?}", read("redis+sentinel://a/locks?sentinel_password=hunter2").unwrap()).contains("hunter2")
        );
    }
}
