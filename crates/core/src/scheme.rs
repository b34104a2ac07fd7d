//! How a store is found by the scheme of its URL.

use std::sync::Arc;

use crate::{
    capabilities::Capabilities,
    clock::Clock,
    error::Error,
    name::Namespace,
    store::{BoxFuture, Store},
    url::StoreUrl,
};

/// Opens a store.
pub type OpenStore = fn(Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>>;

/// A family of URLs and the store behind it. Each store crate exports one for each entry in the registry.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// The schemes it answers to, without the colon.
    pub names: &'static [&'static str],
    /// What the store can give, before anything is opened.
    pub capabilities: fn() -> Capabilities,
    /// Opens it. Ends within a few seconds, whatever the other side does.
    pub open: OpenStore,
}

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Where it is, and its options.
    pub url: StoreUrl,
    /// The prefix below which it keeps everything (C3).
    pub namespace: Namespace,
    /// The clock that grants count on (T2).
    pub clock: Arc<dyn Clock>,
}
