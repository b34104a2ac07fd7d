//! The store that a run works on, its floor, and the names that it uses.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use fencepost::{
    Efficiency, Error, Locks, Namespace, Owner, clock::BootClock, registry::open_store, store::Store, url::StoreUrl,
};

use crate::{
    distance,
    floor::{self, Beside, Commands, Floor},
    plan::Plan,
    report::{Outcome, Report, SCHEMA},
};

#[derive(Debug)]
pub(crate) struct Ground {
    /// The store's, and of those beside it.
    urls: Vec<String>,
    shown: String,
    namespace: Namespace,
    pub(crate) floor: Option<Box<dyn Floor>>,
    prefix: String,
    names: AtomicU64,
}

impl Ground {
    pub(crate) async fn open(plan: &Plan) -> Result<Self, Error> {
        let shown = StoreUrl::parse(&plan.url)?.to_string();
        let placed = |url: &String| match plan.distance {
            Some(round_trip) => distance::put(url, round_trip),
            None => Ok(url.clone()),
        };
        let urls = std::iter::once(&plan.url).chain(&plan.beside).map(placed).collect::<Result<Vec<_>, _>>()?;
        let url = StoreUrl::parse(&urls[0])?;
        let (floor, namespace) = floor::of(&url, &plan.namespace).await?;
        // Two runs at once must not meet on a name.
        let prefix = format!("bench/{:.8}", Owner::random()?.to_string());
        let ground = Self { urls, shown, namespace, floor, prefix, names: AtomicU64::new(0) };
        // Makes the directory that the floor works in, and tells a store that is not there at once.
        ground.client().await?.close().await;
        Ok(ground)
    }

    /// A client of its own. What a lock is for makes no difference to what it costs.
    pub(crate) async fn client(&self) -> Result<Locks<Efficiency>, Error> {
        self.client_of(&self.urls[0]).await
    }

    /// The same on one of these [urls](Self::urls).
    pub(crate) async fn client_of(&self, url: &str) -> Result<Locks<Efficiency>, Error> {
        let locks = Locks::builder(url).namespace(self.namespace.clone()).open().await?;
        Ok(locks.for_efficiency())
    }

    /// The store's URL first, then those beside it.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    pub(crate) async fn store(&self) -> Result<Arc<dyn Store>, Error> {
        open_store(&self.urls[0], self.namespace.clone(), BootClock::shared()).await
    }

    /// A name that nobody has used.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.prefix, self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn names(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.name()).collect()
    }

    /// What the server has done so far, where there is one that counts.
    pub(crate) async fn commands(&self) -> Result<Option<Commands>, Error> {
        match &self.floor {
            Some(floor) => floor.commands().await,
            None => Ok(None),
        }
    }

    /// Why it tells of nothing that was done.
    pub(crate) fn uncounted(&self) -> &'static str {
        self.floor.as_ref().map_or("no commands counted: there is no floor for this store", |floor| floor.uncounted())
    }

    /// What people use instead of our command.
    pub(crate) fn beside(&self, name: &str) -> Option<Beside> {
        self.floor.as_ref()?.beside(name)
    }

    /// What the counts of [`commands`](Ground::commands) are of.
    pub(crate) fn counted(&self) -> [&'static str; 2] {
        self.floor.as_ref().map_or(["", ""], |floor| floor.counted())
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn finish(self, outcomes: Vec<Outcome>) -> Report {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Report { schema: SCHEMA, store: self.shown.clone(), cores, outcomes }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(floor) = &self.floor {
            floor.tidy();
        }
    }
}
