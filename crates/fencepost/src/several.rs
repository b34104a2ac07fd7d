//! Many locks at once: all or nothing.

use std::{collections::BTreeSet, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Busy, Holding, LossReason, Mode, Release, Want},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    limits::Wait,
    name::LockName,
    purpose::{Correctness, Purpose},
};
use futures_util::future::{join_all, select_all};

use crate::{
    client::Client,
    hold::Exclusive,
    lease::Lease,
    request::{Attempt, Terms, obtain, terms},
};

/// The most locks that one request may name. Each is held and renewed for as long as the others.
pub const MOST_NAMES: usize = 1_000;

/// Several locks to be taken together. Made by [`Locks::several`](crate::Locks::several).
#[derive(Debug)]
#[must_use = "nothing happens before `acquire`"]
pub struct SeveralRequest<P> {
    client: Arc<Client>,
    names: Result<Vec<LockName>, Error>,
    terms: Terms,
    purpose: PhantomData<fn() -> P>,
}

impl<P: Purpose> SeveralRequest<P> {
    pub(crate) fn new(client: Arc<Client>, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self { client, names: sorted(names), terms: Terms::default(), purpose: PhantomData }
    }

    terms!();

    /// Takes all the locks or none. The waiting time is one for all of them.
    ///
    /// Where the store can, it is one step. Where it cannot, or can only while all of them are free, they are taken one
    /// after the other in the order of their names, so that two requests never wait for each other in a circle; whoever
    /// waits for a later one already holds the earlier ones.
    ///
    /// # Errors
    /// As for [`LockRequest::acquire`](crate::LockRequest::acquire), and [`ErrorKind::InvalidInput`] for no names,
    /// the same name twice, or more than [`MOST_NAMES`]; [`ErrorKind::Lost`] when one that was already taken is lost
    /// while another is waited for. What was already taken is given back in the background.
    ///
    /// # Cancel safety
    /// Safe, as for [`LockRequest::acquire`](crate::LockRequest::acquire).
    pub async fn acquire(self) -> Result<Attempt<Several<P>>, Error> {
        let names = self.names?;
        let mut several = Several { leases: Vec::new() };
        let started = self.client.clock.now();
        let rest = || self.terms.wait.left_after(self.client.clock.now().since(started));
        if self.client.store.capabilities().several || names.len() == 1 {
            let wants = names.iter().map(|name| Want { name: name.clone(), mode: Mode::Exclusive }).collect();
            let one_step = obtain(self.client.clone(), self.terms.clone(), |owner| {
                Holding::several(wants, owner).expect("names that were checked")
            });
            match one_step.await {
                Ok(Attempt::Acquired(lease)) => {
                    several.leases.push(lease);
                    return Ok(Attempt::Acquired(several));
                }
                Ok(Attempt::Busy(busy)) if names.len() == 1 || rest() == Wait::Once => return Ok(Attempt::Busy(busy)),
                // A store without a queue for several at once.
                Ok(Attempt::Busy(_)) => {}
                // These are more than the store takes in one step.
                Err(error) if error.kind() == ErrorKind::Unsupported && names.len() > 1 => {}
                Err(error) => return Err(error),
            }
        }
        for name in names {
            let terms = Terms { wait: rest(), ..self.terms.clone() };
            let lock = name.clone();
            let taking = obtain(self.client.clone(), terms, |owner| Holding::exclusive(name, owner));
            let attempt = if several.leases.is_empty() { taking.await? } else { several.run(taking).await?? };
            match attempt {
                Attempt::Acquired(lease) => several.leases.push(lease),
                Attempt::Busy(busy) => return Ok(Attempt::Busy(Busy { lock: Some(lock), ..busy })),
            }
        }
        Ok(Attempt::Acquired(several))
    }
}

/// Several locks that are held together, or were. The first loss is the loss of all.
///
/// Dropped, all of them are given back in the background.
#[derive(Debug)]
#[must_use = "locks that are dropped are given back"]
pub struct Several<P> {
    /// One for all where the store claims them in one step, otherwise one for each lock. Never none.
    leases: Vec<Lease<P, Exclusive>>,
}

impl Several<Correctness> {
    /// The fence of one of the locks; `None` for a name that is not among them.
    pub fn fence(&self, name: &str) -> Option<Fence> {
        let named = |lease: &&Lease<Correctness>| lease.names().any(|held| held.as_str() == name);
        self.leases.iter().find(named).map(|lease| lease.fence())
    }
}

impl<P: Purpose> Several<P> {
    /// The locks, sorted by name.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.leases.iter().flat_map(Lease::names)
    }

    /// The leases that it consists of, never none: one for all locks where the store claims them in one step, otherwise
    /// one for each, in the order of the names. For their owner values, deadlines and descriptors.
    pub fn leases(&self) -> &[Lease<P>] {
        &self.leases
    }

    /// As [`Lease::check`], for all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for the first one that is lost, which the error names.
    pub fn check(&self) -> Result<(), Error> {
        self.leases.iter().try_for_each(Lease::check)
    }

    /// As [`Lease::remaining`]: the least of all.
    pub fn remaining(&self) -> Option<Duration> {
        self.leases.iter().filter_map(Lease::remaining).min()
    }

    /// Completes when the first of them is lost, with its name and the reason (L1).
    ///
    /// # Cancel safety
    /// Safe, and can be called again.
    pub async fn lost(&self) -> (LockName, LossReason) {
        let losses = self.leases.iter().map(|lease| Box::pin(async { (lease.name().clone(), lease.lost().await) }));
        select_all(losses).await.0
    }

    /// As [`Lease::run`]: the work is dropped when the first of them is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when one of them was lost first, which the error names.
    ///
    /// # Cancel safety
    /// As safe as `work` is. The locks stay held.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check()?;
        tokio::select! {
            biased;
            (name, reason) = self.lost() => Err(Error::new(
                ErrorKind::Lost(reason),
                Operation::Run,
                format!("the lease is lost: {reason}, and with it all that were taken together"),
            )
            .on_lock(&name)
            .advise("stop the work it protects; another may hold the lock by now")),
            done = work => Ok(done),
        }
    }

    /// Gives all of them back, and says for each what the store found.
    ///
    /// # Errors
    /// The first release of unknown outcome. The others were sent all the same; calling it again is safe.
    ///
    /// # Cancel safety
    /// Safe: call it again, or drop the value, which gives back in the background.
    pub async fn release(&mut self) -> Result<Vec<(LockName, Release)>, Error> {
        let answers = join_all(self.leases.iter_mut().map(|lease| async {
            let answer = lease.release().await?;
            Ok(lease.names().cloned().map(|name| (name, answer)).collect::<Vec<_>>())
        }));
        let answers: Result<Vec<_>, Error> = answers.await.into_iter().collect();
        Ok(answers?.into_iter().flatten().collect())
    }
}

/// Checked, and in the order in which they are taken.
fn sorted(names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<LockName>, Error> {
    let refused = |said: String| Error::new(ErrorKind::InvalidInput, Operation::Claim, said).not_applied();
    let mut sorted = BTreeSet::new();
    for name in names {
        let name = LockName::new(name)?;
        if !sorted.insert(name.clone()) {
            return Err(refused(format!("the lock {name:?} is named twice")).advise("name each lock once"));
        }
        if sorted.len() > MOST_NAMES {
            return Err(refused(format!("more than {MOST_NAMES} locks are asked for at once"))
                .advise("protect them by one lock, or partition the work"));
        }
    }
    if sorted.is_empty() {
        return Err(refused("no lock is named".to_owned()).advise("name at least one"));
    }
    Ok(sorted.into_iter().collect())
}
