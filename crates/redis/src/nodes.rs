//! The servers behind a store: one master, or the masters of a cluster. The store names the key that a command is
//! about, and here it is known where that key lives now.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, Value, aio::PubSub};

use crate::{connection::Link, failure::Failure, route::Server, scripts::Script};

#[derive(Debug)]
pub(crate) enum Nodes {
    /// Every key lives behind one connection.
    One(Link),
}

impl Nodes {
    /// As [`Link::ask`], where `key` lives.
    pub(crate) async fn ask(&self, _key: &str, command: &Cmd) -> Result<Value, Failure> {
        match self {
            Self::One(link) => link.ask(command).await,
        }
    }

    /// As [`Link::call`], where the keys live.
    pub(crate) async fn call(&self, script: &Script, keys: &[String], arguments: &[&str]) -> Result<Value, Failure> {
        match self {
            Self::One(link) => link.call(script, keys, arguments).await,
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
            Self::One(link) => link.call_unrepeated(script, keys, arguments).await,
        }
    }

    /// As [`Link::read`], where `key` lives.
    pub(crate) async fn read(&self, _key: &str, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        match self {
            Self::One(link) => link.read(reads).await,
        }
    }

    /// The connections that lead to every key there is.
    pub(crate) async fn masters(&self) -> Result<Vec<&Link>, Failure> {
        match self {
            Self::One(link) => Ok(vec![link]),
        }
    }

    /// Groups of at most `most` items in their order, each of which one command or pipeline may name together.
    pub(crate) fn together<'a, T>(&self, items: &'a [T], most: usize, _key: impl Fn(&T) -> String) -> Vec<&'a [T]> {
        match self {
            Self::One(_) => items.chunks(most).collect(),
        }
    }

    /// As [`Link::messages`].
    pub(crate) async fn messages(&self) -> Result<(PubSub, Arc<Server>), Failure> {
        match self {
            Self::One(link) => link.messages().await,
        }
    }

    /// As [`Link::moved_from`].
    pub(crate) async fn moved_from(&self, server: &Server) {
        match self {
            Self::One(link) => link.moved_from(server).await,
        }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        match self {
            Self::One(link) => link.connect_timeout(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One(link) => link.close(),
        }
    }
}
