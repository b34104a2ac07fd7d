//! A store around a store: metrics, counters, faults for tests.

#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::{fmt, sync::Arc};

use crate::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, Patience, Release, Renewal},
    error::Error,
    fence::Fence,
    name::LockName,
    store::{BoxFuture, Guard, LossReporter, Store},
};

/// What a store does differently from the one it stands around. It is a [`Store`] by that: every verb that it does not
/// define is passed on as it came, and a verb that the contract gains later is passed on by all of them.
///
/// The methods have the names of [`Store`]'s and keep the same promises.
pub trait StoreLayer: fmt::Debug + Send + Sync + 'static {
    /// The store inside.
    fn inner(&self) -> &dyn Store;

    /// See [`Store::capabilities`].
    fn capabilities(&self) -> &Capabilities {
        self.inner().capabilities()
    }

    /// See [`Store::claim`].
    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        self.inner().claim(claim, patience)
    }

    /// See [`Store::turn`].
    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        self.inner().turn(claim)
    }

    /// See [`Store::renew`].
    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        self.inner().renew(claims)
    }

    /// See [`Store::release`].
    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        self.inner().release(holding)
    }

    /// See [`Store::inspect`].
    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        self.inner().inspect(only)
    }

    /// See [`Store::force`].
    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        self.inner().force(name, if_fence)
    }

    /// See [`Store::downgrade`].
    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        self.inner().downgrade(claim)
    }

    /// See [`Store::resize`].
    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        self.inner().resize(name, of)
    }

    /// See [`Store::cells`].
    fn cells(&self) -> Option<&dyn Cells> {
        self.inner().cells()
    }

    /// See [`Store::report_losses`].
    fn report_losses(&self, to: LossReporter) {
        self.inner().report_losses(to);
    }

    /// See [`Store::descriptor`].
    #[cfg(unix)]
    fn descriptor(&self, holding: &Holding) -> Option<std::io::Result<OwnedFd>> {
        self.inner().descriptor(holding)
    }

    /// See [`Store::guard`].
    fn guard(&self, holding: &Holding) -> Option<Guard> {
        self.inner().guard(holding)
    }

    /// See [`Store::close`].
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner().close()
    }
}

impl<L: StoreLayer> Store for L {
    fn capabilities(&self) -> &Capabilities {
        StoreLayer::capabilities(self)
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        StoreLayer::claim(self, claim, patience)
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        StoreLayer::turn(self, claim)
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        StoreLayer::renew(self, claims)
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        StoreLayer::release(self, holding)
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        StoreLayer::inspect(self, only)
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        StoreLayer::force(self, name, if_fence)
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        StoreLayer::downgrade(self, claim)
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        StoreLayer::resize(self, name, of)
    }

    fn cells(&self) -> Option<&dyn Cells> {
        StoreLayer::cells(self)
    }

    fn report_losses(&self, to: LossReporter) {
        StoreLayer::report_losses(self, to);
    }

    #[cfg(unix)]
    fn descriptor(&self, holding: &Holding) -> Option<std::io::Result<OwnedFd>> {
        StoreLayer::descriptor(self, holding)
    }

    fn guard(&self, holding: &Holding) -> Option<Guard> {
        StoreLayer::guard(self, holding)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        StoreLayer::close(self)
    }
}
