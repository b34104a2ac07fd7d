//! The store over lease rows.

use std::{fmt, sync::Arc};

use fencepost_core::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, Patience, Release, Renewal},
    clock::{BootClock, Clock},
    error::{Applied, Error, ErrorKind, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    particulars::Particulars,
    purpose::{Correctness, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, LossReporter, Store},
};

use crate::{
    answers::only,
    config::{self, PostgresConfig},
    connection::Link,
    failure::Failure,
    room::{Hearing, Room},
};

/// Locks in the rows of a PostgreSQL table. Of the class [`Correctness`]: each grant has a fence.
///
/// Dropping it ends its background work; grants then end by their TTL.
pub struct PostgresStore {
    pub(crate) room: Arc<Room>,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    pub(crate) particulars: Particulars,
}

impl PostgresStore {
    /// Connects to the server that takes writes, and checks its tables.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], [`ErrorKind::PermissionDenied`] or [`ErrorKind::Misconfigured`], within the limits of
    /// `config`. Without tables the message names the command that makes them.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(config: &PostgresConfig, namespace: &Namespace) -> Result<Self, Error> {
        Self::open_with_clock(config, namespace, BootClock::shared()).await
    }

    /// As [`open`](PostgresStore::open), with leases counted on `clock`.
    ///
    /// # Errors
    /// As for [`open`](PostgresStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_with_clock(
        config: &PostgresConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let link = Arc::new(Link::new(config, clock.clone())?);
        link.session().await.map_err(|failure| failure.error(Operation::Open, None))?;
        let in_session = config.mode == config::Mode::Session;
        let room = Room::new(link, namespace.clone(), in_session, clock.clone());
        let capabilities = if in_session { crate::session_capabilities() } else { crate::capabilities() };
        let store = Self { room, clock, capabilities, particulars: Particulars::default() };
        if in_session {
            store.begin_session().await.map_err(|failure| failure.error(Operation::Open, None))?;
        }
        Ok(store)
    }

    /// A session's grants live by an advisory lock that the session has. It must be the session's own, and real.
    async fn begin_session(&self) -> Result<(), Failure> {
        if self.room.hearing().await? == Hearing::Polling {
            let said = "a pooler lies before PostgreSQL: a session there is nobody's, and could not hold a lock";
            return Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said)
                .advise("connect without the pooler, or use `mode=lease`"));
        }
        let number = self.room.number().unwrap_or_default();
        let other = self.room.link.session().await?;
        let taken: bool = only(&other.query(&self.room.link.statements.live, &[&number]).await?)?;
        if !taken {
            return Ok(());
        }
        let said = "this database grants an advisory lock that another connection holds";
        Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said)
            .advise("it is no PostgreSQL, or something between rewrites statements; use `mode=lease`"))
    }
}

impl Store for PostgresStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.take(claim, patience))
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(self.extend(claims))
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(self.give_back(holding))
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(self.list(only))
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(self.break_lock(name, if_fence))
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(self.lower(claim))
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(self.change_limit(name, of))
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn report_losses(&self, to: LossReporter) {
        self.room.report_losses(to);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The connection first: a waiter that is woken must find it closed, or it would queue again unheard.
            self.room.link.close();
            self.room.close();
        })
    }
}

impl TypedStore for PostgresStore {
    type Serves = Correctness;
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // The room's task holds the room, not the store.
        self.room.close();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("namespace", &self.room.namespace).finish_non_exhaustive()
    }
}

/// The names of what is held together, in the order in which everybody locks their rows. Never none.
pub(crate) fn in_order(holding: &Holding) -> Vec<&str> {
    let mut names: Vec<&str> = holding.wants().iter().map(|want| want.name.as_str()).collect();
    names.sort_unstable();
    names
}

pub(crate) fn refused(operation: Operation, refusal: Refusal, name: &LockName) -> Error {
    refusal.error(operation, name).in_store(crate::STORE)
}
