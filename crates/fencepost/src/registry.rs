//! The stores that this build knows, by the schemes of their URLs.

use std::sync::Arc;

use fencepost_core::{
    capabilities::FenceSource,
    clock::Clock,
    error::{Error, ErrorKind, Operation},
    name::Namespace,
    scheme::{Opening, Scheme},
    store::Store,
    url::StoreUrl,
};

/// One line for each store; a feature decides whether it is built in.
pub const SCHEMES: &[Scheme] = &[
    fencepost_core::memory::SCHEME,
    #[cfg(feature = "etcd")]
    fencepost_etcd::SCHEME,
    #[cfg(feature = "file")]
    fencepost_local::SCHEME,
    #[cfg(feature = "postgres")]
    fencepost_postgres::SCHEME,
    #[cfg(feature = "postgres")]
    fencepost_postgres::SESSION_SCHEME,
    #[cfg(feature = "redis")]
    fencepost_redis::SCHEME,
    #[cfg(feature = "redis")]
    fencepost_redis::SENTINEL,
    #[cfg(feature = "redis")]
    fencepost_redis::CLUSTER,
    #[cfg(feature = "redis")]
    fencepost_redis::redlock::SCHEME,
    #[cfg(feature = "zookeeper")]
    fencepost_zookeeper::SCHEME,
];

/// Opens the store that `url` names, without a client around it.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a URL that no store answers to; the store's own errors for the rest.
///
/// # Cancel safety
/// Safe: nothing is claimed by opening.
pub async fn open_store(url: &str, namespace: Namespace, clock: Arc<dyn Clock>) -> Result<Arc<dyn Store>, Error> {
    let url = StoreUrl::parse(url)?;
    let scheme = SCHEMES.iter().find(|scheme| scheme.names.contains(&url.scheme()));
    let scheme = scheme.ok_or_else(|| {
        let known: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.names).map(|name| format!("{name}:")).collect();
        Error::new(ErrorKind::InvalidInput, Operation::Open, format!("no store answers to `{}:`", url.scheme()))
            .not_applied()
            .advise(format!("this build knows {}", known.join(", ")))
    })?;
    (scheme.open)(Opening { url, namespace, clock }).await
}

pub(crate) fn stores_with_fence() -> Vec<&'static str> {
    let all = SCHEMES.iter().map(|scheme| (scheme.capabilities)());
    all.filter(|c| matches!(c.fence, FenceSource::Issued(_))).map(|c| c.url).collect()
}
