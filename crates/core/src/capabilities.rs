//! What each store can give, as data.

use serde::Serialize;

/// What a lock on a store may be relied on for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A breach costs repeated work: the store may lose a grant, and issues no trustworthy fence.
    Efficiency,
    /// A breach would cost data: grants survive failover and carry a fence.
    Correctness,
}

/// Where fences come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FenceSource {
    /// The store cannot issue one; the text says why, as the second half of a sentence.
    None(&'static str),
    /// The store issues one with each grant; the text says where it lives.
    Issued(&'static str),
}

/// When a lock comes free after its holder died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FreedOnDeath {
    /// At once.
    AtOnce,
    /// When the TTL has run out.
    AfterTtl,
    /// When the session has run out.
    AfterSession,
}

/// In which order waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// First come, first served, across processes (W3); the text states the exceptions.
    FirstCome(&'static str),
    /// No promise.
    None,
}

/// The facts of one store. They drive `fenced()`, the tables of the README and of docs/primitives.md, what `fencepost advise`
/// says of a store, and the choice of conformance tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The store's name in messages, for instance `Redis`.
    pub store: &'static str,
    /// How its URL looks.
    pub url: &'static str,
    /// What it may be relied on for.
    pub class: Class,
    /// A restriction of the class, for instance `one host`; empty where there is none.
    pub scope: &'static str,
    /// Where fences come from.
    pub fence: FenceSource,
    /// Whether grants end by themselves unless renewed.
    pub expires: bool,
    /// When a dead holder's lock comes free.
    pub freed_on_death: FreedOnDeath,
    /// How a waiter wakes, as words for the table.
    pub wakes_by: &'static str,
    /// In which order waiters are served.
    pub order: Order,
    /// Whether a holder hears at once of a record that an administrator removed with the store's own
    /// tools; otherwise it hears at the next renewal.
    pub tells_deletion: bool,
    /// Whether shared claims are possible.
    pub shared: bool,
    /// Whether permits are possible.
    pub permits: bool,
    /// Whether several locks can be claimed in one step; where not, they are claimed one after the other.
    pub several: bool,
    /// Whether it keeps cells, values that are changed by compare-and-set: elections, latches, members and what is done once
    /// for a key stand on them.
    pub cells: bool,
}
