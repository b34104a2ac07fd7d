//! The floor of Redis: the bare commands over the same kind of connection to the master that has the key, and over a
//! blocking socket where there is only one.

mod masters;
mod socket;

use fencepost::{Error, ErrorKind, Namespace, clock::Moment, error::Operation, url::StoreUrl};
use fencepost_redis::{ClusterConfig, RedisConfig, SentinelConfig};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    aio::MultiplexedConnection, cmd,
};

use self::{masters::Masters, socket::Socket};
use crate::{
    floor::{Commands, Cycle, Floor, Measured, Measuring},
    report::Goal,
    samples::Samples,
};

pub(super) const SCRIPT: &str = include_str!("compare_and_delete.lua");
/// As long as an owner value.
pub(super) const VALUE: &str = "0123456789012345678901234567890123456789";
pub(super) const TTL_MS: &str = "30000";

pub(crate) struct RedisFloor {
    /// Not among the measured ones, so that asking costs them nothing.
    asking: Masters,
    commands: BareCommands,
    round_trip: RoundTrip,
    socket: Option<Socket>,
}

impl RedisFloor {
    /// Of one server.
    pub(crate) async fn open(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let config = RedisConfig::from_url(url)?;
        let floor = Self::at(async || Masters::one(&config).await, namespace).await?;
        let socket = Socket::connect(&config, floor.commands.prefix.clone(), floor.commands.hash.clone())?;
        Ok(Self { socket: Some(socket), ..floor })
    }

    /// Of the master that sentinels name.
    pub(crate) async fn open_watched(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let config = masters::named(&SentinelConfig::from_url(url)?).await?;
        Self::at(async || Masters::one(&config).await, namespace).await
    }

    /// Of the masters of a cluster.
    pub(crate) async fn open_cluster(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let config = ClusterConfig::from_url(url)?;
        Self::at(async || Masters::of_cluster(&config).await, namespace).await
    }

    /// Connects as often as there are contestants.
    async fn at(connected: impl AsyncFn() -> Result<Masters, Error>, namespace: &Namespace) -> Result<Self, Error> {
        let (asking, masters, prefix) = (connected().await?, connected().await?, format!("{namespace}:"));
        let mut hash = String::new();
        for mut master in asking.all() {
            hash = cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut master).await.map_err(failed)?;
        }
        Ok(Self {
            asking,
            socket: None,
            round_trip: RoundTrip { masters: masters.clone(), prefix: prefix.clone() },
            commands: BareCommands { masters, prefix, hash },
        })
    }
}

impl Floor for RedisFloor {
    fn cycles(&self) -> Vec<Measured<'_>> {
        let same_kind = Measured {
            what: "SET NX PX and EVALSHA, same kind of connection",
            cycle: &self.commands,
            time_goal: Some(Goal::AtMost(1.10)),
            throughput_goal: Some(Goal::AtLeast(0.95)),
            at_once: true,
        };
        let blocking = self.socket.as_ref().map(|socket| Measured {
            what: "the same on a blocking socket",
            cycle: socket,
            time_goal: Some(Goal::AtMost(1.35)),
            throughput_goal: None,
            at_once: false,
        });
        [same_kind].into_iter().chain(blocking).collect()
    }

    fn message(&self) -> Measured<'_> {
        Measured {
            what: "one round trip (SET), same kind of connection",
            cycle: &self.round_trip,
            // Two after the release is applied; it is applied half a round trip after it was sent.
            time_goal: Some(Goal::AtMost(2.5)),
            throughput_goal: None,
            at_once: true,
        }
    }

    fn commands(&self) -> Measuring<'_, Option<Commands>> {
        Box::pin(async move {
            let mut sum = Commands::default();
            for mut asking in self.asking.all() {
                let text: String = cmd("INFO").arg("commandstats").query_async(&mut asking).await.map_err(failed)?;
                sum = sum.and(read_commands(&text));
            }
            Ok(Some(sum))
        })
    }
}

/// Adds up lines such as `cmdstat_evalsha:calls=12,usec=…`. Asking is left out.
pub(super) fn read_commands(text: &str) -> Commands {
    let calls = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name, rest.split(',').next()?.parse::<u64>().ok()?))
    });
    calls.filter(|(name, _)| *name != "info").fold(Commands::default(), |sum, (name, calls)| {
        let script = if matches!(name, "eval" | "evalsha") { calls } else { 0 };
        Commands { scripts: sum.scripts + script, all: sum.all + calls }
    })
}

/// `SET NX PX`, then the script.
struct BareCommands {
    masters: Masters,
    prefix: String,
    hash: String,
}

impl Cycle for BareCommands {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = key(&self.prefix, name);
        Box::pin(async move {
            let connection = self.masters.of(&key).await?;
            samples
                .fill(until, async || {
                    let mut connection = connection.clone();
                    let mut set = cmd("SET");
                    set.arg(&key).arg(VALUE).arg("NX").arg("PX").arg(TTL_MS);
                    let () = set.query_async(&mut connection).await.map_err(failed)?;
                    let mut delete = cmd("EVALSHA");
                    delete.arg(&self.hash).arg(1).arg(&key).arg(VALUE);
                    delete.query_async(&mut connection).await.map_err(failed)
                })
                .await
        })
    }
}

struct RoundTrip {
    masters: Masters,
    prefix: String,
}

impl Cycle for RoundTrip {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = key(&self.prefix, name);
        Box::pin(async move {
            let connection = self.masters.of(&key).await?;
            samples
                .fill(until, async || {
                    let mut set = cmd("SET");
                    set.arg(&key).arg(VALUE).arg("PX").arg(TTL_MS);
                    set.query_async(&mut connection.clone()).await.map_err(failed)
                })
                .await
        })
    }
}

pub(crate) async fn connect(config: &RedisConfig) -> Result<MultiplexedConnection, RedisError> {
    let mut login = RedisConnectionInfo::default().set_db(config.database.into()).set_skip_set_lib_name();
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    if let Some(password) = &config.password {
        login = login.set_password(password);
    }
    let address = ConnectionAddr::Tcp(config.host.clone(), config.port);
    let client = Client::open(address.into_connection_info()?.set_redis_settings(login))?;
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(config.timeout));
    client.get_multiplexed_async_connection_with_config(&settings).await
}

/// Not where locks lie, so that no listing takes it for one.
pub(super) fn key(prefix: &str, name: &str) -> String {
    format!("{prefix}floor:{{{name}}}")
}

pub(crate) fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, Operation::Run, "the bare commands failed").caused_by(source)
}

impl std::fmt::Debug for RedisFloor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFloor").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_counts_are_read_without_the_question() {
        let text = "# Commandstats\r\ncmdstat_set:calls=3,usec=9\r\ncmdstat_info:calls=7,usec=1\r\n\
                    cmdstat_evalsha:calls=2,usec=5,usec_per_call=2.50\r\n";
        let commands = read_commands(text);
        assert_eq!((commands.scripts, commands.all), (2, 5));
    }
}
