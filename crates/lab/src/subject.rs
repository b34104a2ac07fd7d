//! Whom a scenario is tried on: a store, and a client of it.

use std::fmt;

use crate::agent::Client;

/// A store that the laboratory can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StoreKind {
    /// A directory of this host.
    File,
    /// One Redis server that keeps an append-only file.
    Redis,
}

/// A store and a client: a column of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The store.
    pub store: StoreKind,
    /// The client.
    pub client: Client,
}

/// All of them, in the order of the matrix.
pub const SUBJECTS: &[Subject] = &[
    Subject { store: StoreKind::File, client: Client::Library },
    Subject { store: StoreKind::Redis, client: Client::Library },
    Subject { store: StoreKind::Redis, client: Client::RedisPy },
    Subject { store: StoreKind::Redis, client: Client::Naive },
];

impl StoreKind {
    /// The word for `--store`.
    pub fn word(self) -> &'static str {
        match self {
            StoreKind::File => "file",
            StoreKind::Redis => "redis",
        }
    }

    /// As a heading.
    pub fn title(self) -> &'static str {
        match self {
            StoreKind::File => "directory",
            StoreKind::Redis => "Redis",
        }
    }

    /// Whether a grant ends by itself.
    pub fn expires(self) -> bool {
        self != StoreKind::File
    }
}

impl Subject {
    /// Whether it carries a fence to the resource.
    pub fn fenced(self) -> bool {
        self.client == Client::Library && self.store == StoreKind::File
    }

    /// As a heading of the matrix.
    pub fn title(self) -> String {
        match self.client {
            Client::Library => self.store.title().to_owned(),
            Client::Naive => format!("{}, naive client", self.store.title()),
            Client::RedisPy => format!("{}, redis-py", self.store.title()),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = match self.client {
            Client::Library => "",
            Client::Naive => "/naive",
            Client::RedisPy => "/redis-py",
        };
        f.pad(&format!("{}{client}", self.store.word()))
    }
}
