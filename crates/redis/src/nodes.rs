//! The servers behind a store: one master, or the masters of a cluster. The store names the key that a command is
//! about, and here it is known where that key lives now.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    clock::Clock,
    error::{Error, Operation},
};
use redis::{Cmd, Pipeline, Value, aio::PubSub};

use crate::{
    config::RedisConfig,
    connection::Link,
    failure::Failure,
    replicas::Kept,
    route::{Fixed, Server},
    scripts::Script,
    sentinel::{SentinelConfig, Sentinels, Watch},
    survey,
};

#[derive(Debug)]
pub(crate) enum Nodes {
    /// Every key lives behind one connection, whose route follows the master where there are several servers.
    One {
        link: Arc<Link>,
        /// Listens for another master, where anybody announces one.
        watch: Mutex<Option<Watch>>,
    },
}

impl Nodes {
    /// One server.
    pub(crate) async fn single(config: &RedisConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let link = Arc::new(Link::new(Fixed::new(config)?, config, clock));
        survey::greet(&link).await.map_err(opening)?;
        Ok(Self::One { link, watch: Mutex::default() })
    }

    /// The master that sentinels watch.
    pub(crate) async fn watched(config: &SentinelConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let sentinels = Sentinels::new(config)?;
        let route = Arc::new(sentinels);
        let link = Arc::new(Link::new(route.clone(), &config.master, clock.clone()));
        survey::greet(&link).await.map_err(opening)?;
        let watch = Watch::start(&route, &link, &clock);
        Ok(Self::One { link, watch: Mutex::new(Some(watch)) })
    }

    /// As [`Link::ask`], where `key` lives.
    pub(crate) async fn ask(&self, _key: &str, command: &Cmd) -> Result<Value, Failure> {
        match self {
            Self::One { link, .. } => link.ask(command).await,
        }
    }

    /// As [`Link::ask_kept`], where `key` lives.
    pub(crate) async fn ask_kept(&self, _key: &str, command: &Cmd) -> Result<Kept, Failure> {
        match self {
            Self::One { link, .. } => link.ask_kept(command).await,
        }
    }

    /// As [`Link::call_kept`], where the keys live.
    pub(crate) async fn call_kept(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<Kept, Failure> {
        match self {
            Self::One { link, .. } => link.call_kept(script, keys, arguments).await,
        }
    }

    /// As [`Link::call`], where the keys live.
    pub(crate) async fn call(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<Value, Failure> {
        match self {
            Self::One { link, .. } => link.call(script, keys, arguments).await,
        }
    }

    /// As [`Link::call_unrepeated`], where the keys live.
    pub(crate) async fn call_unrepeated(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<Value, Failure> {
        match self {
            Self::One { link, .. } => link.call_unrepeated(script, keys, arguments).await,
        }
    }

    /// As [`Link::read`], where `key` lives.
    pub(crate) async fn read(&self, _key: &str, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        match self {
            Self::One { link, .. } => link.read(reads).await,
        }
    }

    /// The connections that lead to every key there is.
    pub(crate) async fn masters(&self) -> Result<Vec<&Link>, Failure> {
        match self {
            Self::One { link, .. } => Ok(vec![&**link]),
        }
    }

    /// Groups of at most `most` items in their order, each of which one command or pipeline may name together.
    pub(crate) fn together<'a, T>(&self, items: &'a [T], most: usize, _key: impl Fn(&T) -> String) -> Vec<&'a [T]> {
        match self {
            Self::One { .. } => items.chunks(most).collect(),
        }
    }

    /// As [`Link::messages`].
    pub(crate) async fn messages(&self) -> Result<(PubSub, Arc<Server>), Failure> {
        match self {
            Self::One { link, .. } => link.messages().await,
        }
    }

    /// As [`Link::moved_from`].
    pub(crate) async fn moved_from(&self, server: &Server) {
        match self {
            Self::One { link, .. } => link.moved_from(server).await,
        }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        match self {
            Self::One { link, .. } => link.connect_timeout(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One { link, watch } => {
                watch.lock().unwrap_or_else(PoisonError::into_inner).take();
                link.close();
            }
        }
    }
}

fn opening(failure: Failure) -> Error {
    failure.error(Operation::Open, None)
}
