//! A master that sentinels watch: who it is now, and how a connection follows it.
//!
//! A client that trusts one sentinel can be led to a master that was deposed long ago. So all are asked, the word of
//! the latest failover counts, and whoever is named must say by itself that it is a master.

mod config;
mod watch;
mod word;

use std::sync::Arc;

use fencepost_core::{
    error::{Applied, Error, ErrorKind},
    store::BoxFuture,
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{
    AsyncConnectionConfig, FromRedisValue, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection, pipe,
};

pub use self::config::SentinelConfig;
pub(crate) use self::watch::Watch;
use self::word::Word;
use crate::{
    config::RedisConfig,
    failure::{self, Failure},
    route::{Route, Server},
};

/// The way to the master by the word of its sentinels.
#[derive(Debug)]
pub(crate) struct Sentinels {
    service: String,
    sentinels: Vec<Sentinel>,
    /// How to talk to the master.
    master: RedisConfig,
}

/// One sentinel, and how to ask it.
#[derive(Clone, Debug)]
pub(crate) struct Sentinel {
    server: Arc<Server>,
    settings: AsyncConnectionConfig,
    config: RedisConfig,
}

impl Sentinels {
    pub(crate) fn new(config: &SentinelConfig) -> Result<Self, Error> {
        let sentinels = config.sentinels.iter().map(Sentinel::new).collect::<Result<_, _>>()?;
        Ok(Self { service: config.service.clone(), sentinels, master: config.master.clone() })
    }

    /// What each sentinel says. Who is slow is not waited for once most of them agree.
    async fn words(&self) -> Vec<(&Sentinel, Result<Word, Failure>)> {
        let asked = self.sentinels.iter().map(|sentinel| async move { (sentinel, sentinel.ask(&self.service).await) });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut words: Vec<(_, Result<Word, _>)> = Vec::new();
        while let Some(answer) = answers.next().await {
            words.push(answer);
            let agree = |word: &Word| words.iter().filter(|(_, other)| other.as_ref().is_ok_and(|o| o == word)).count();
            if words
                .iter()
                .filter_map(|(_, word)| word.as_ref().ok())
                .any(|word| agree(word) * 2 > self.sentinels.len())
            {
                break;
            }
        }
        words
    }

    /// A connection to a server that was named, if it is a master by its own word too.
    async fn verified(
        &self,
        word: &Word,
        settings: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Arc<Server>), Failure> {
        let at = self.master.at(&word.host, word.port);
        // Its certificates were read when the store was opened; a file that went since is told as a failure to connect.
        let server = Server::new(&at).map_err(|error| unavailable(error.to_string()))?;
        let mut connection = server.connect(settings).await?;
        let mut questions = pipe();
        questions.cmd("ROLE").cmd("INFO").arg("replication").ignore_errors();
        let answers: Vec<Value> =
            questions.query_async(&mut connection).await.map_err(|error| Failure::answered(&error))?;
        let replication = answers.get(1).and_then(|info| String::from_redis_value(info.clone()).ok());
        let role = match (answers.first(), &replication) {
            (Some(Value::Array(role)), _) => role.first().and_then(|role| String::from_redis_value(role.clone()).ok()),
            (_, Some(info)) => failure::field(info, "role").map(str::to_owned),
            _ => {
                return Err(Failure::new(
                    ErrorKind::PermissionDenied,
                    Applied::No,
                    "the ACL of Redis allows neither ROLE nor INFO, and so a deposed master cannot be told from a real one",
                )
                .advise("allow `role`"));
            }
        };
        if role.as_deref() != Some("master") {
            return Err(unavailable(format!("{} is named as the master and says that it is none", server.address)));
        }
        if replication.is_some_and(|info| failure::field(&info, "min_slaves_good_slaves").is_none()) {
            tracing::warn!(
                master = %server.address, service = %self.service,
                "min-replicas-to-write is not set: a master that is cut off from its replicas goes on granting locks"
            );
        }
        Ok((connection, Arc::new(server)))
    }

    /// Why nobody could be named or reached, sentinel by sentinel.
    fn told(&self, words: &[(&Sentinel, Result<Word, Failure>)], tried: Vec<Failure>) -> Failure {
        let service = &self.service;
        let kinds = || words.iter().filter_map(|(_, word)| word.as_ref().err().map(|failure| failure.kind));
        if tried.is_empty() {
            let each = words.iter().filter_map(|(_, word)| Some(word.as_ref().err()?.message()));
            let said = format!(
                "no sentinel names a master for the service {service:?}: {}",
                each.collect::<Vec<_>>().join("; ")
            );
            // What an administrator must repair counts as long as no sentinel is merely out of reach.
            let kind = kinds().find(|kind| *kind == ErrorKind::Unavailable).or_else(|| kinds().next());
            let failure = Failure::new(kind.unwrap_or(ErrorKind::Unavailable), Applied::No, said);
            return if failure.kind == ErrorKind::Misconfigured {
                failure.advise(
                    "the URL is redis+sentinel://SENTINEL,…/SERVICE, with the name that `sentinel monitor` gives",
                )
            } else {
                failure
            };
        }
        let kind = tried[0].kind;
        let tried: Vec<_> = tried.iter().map(Failure::message).collect();
        let said = format!("no master of the service {service:?} by the word of its sentinels: {}", tried.join("; "));
        Failure::new(kind, Applied::No, said)
    }
}

impl Route for Arc<Sentinels> {
    fn connect<'a>(
        &'a self,
        settings: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, Result<(MultiplexedConnection, Arc<Server>), Failure>> {
        Box::pin(async move {
            let words = self.words().await;
            let candidates = word::ranked(words.iter().filter_map(|(_, word)| word.as_ref().ok()));
            if candidates.len() > 1 {
                let each = words
                    .iter()
                    .filter_map(|(s, word)| Some(format!("{} says {}", s.server.address, word.as_ref().ok()?)));
                tracing::warn!(service = %self.service, "the sentinels disagree: {}", each.collect::<Vec<_>>().join(", "));
            }
            let heard = words.iter().filter(|(_, word)| word.is_ok()).count();
            if heard > 0 && heard * 2 <= self.sentinels.len() {
                let away = words.iter().filter_map(|(_, word)| Some(word.as_ref().err()?.message()));
                tracing::warn!(
                    service = %self.service,
                    "only {heard} of {} sentinels tell who the master is ({}): a failover that the others made may be \
                     missed, and locks be taken at a master that was deposed",
                    self.sentinels.len(), away.collect::<Vec<_>>().join("; ")
                );
            }
            let mut tried = Vec::new();
            for word in candidates {
                match self.verified(word, settings).await {
                    Ok(found) => return Ok(found),
                    Err(failure) => tried.push(failure),
                }
            }
            Err(self.told(&words, tried))
        })
    }

    fn destination(&self) -> String {
        format!("the master of the service {:?}", self.service)
    }

    fn elsewhere(&self, refusal: &RedisError) -> Option<Failure> {
        use redis::ErrorKind::Server;
        // Before Redis 7 a script's error hides the code of the command that failed.
        let deposed = matches!(refusal.kind(), Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
            || refusal.to_string().contains("READONLY");
        deposed.then(|| unavailable(format!("the master of the service {:?} is being replaced", self.service)))
    }
}

impl Sentinel {
    fn new(config: &RedisConfig) -> Result<Self, Error> {
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.timeout));
        Ok(Self { server: Arc::new(Server::new(config)?), settings, config: config.clone() })
    }

    /// Asks for the master. The address comes from one command and the failover's number from another, since only
    /// the first tells of a failover that is about to end.
    async fn ask(&self, service: &str) -> Result<Word, Failure> {
        let asked = async {
            let mut connection = self.server.connect(&self.settings).await?;
            let mut questions = pipe();
            questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
            questions.cmd("SENTINEL").arg("MASTER").arg(service).ignore_errors();
            let answers: Vec<Value> =
                questions.query_async(&mut connection).await.map_err(|error| Failure::answered(&error))?;
            Word::read(answers, &self.server.address, service)
        };
        tokio::time::timeout(self.config.connect_timeout, asked).await.unwrap_or_else(|_| Err(self.late()))
    }

    fn late(&self) -> Failure {
        unavailable(format!("{} did not answer within {:?}", self.server.address, self.config.connect_timeout))
    }
}

fn unavailable(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::No, message)
}
