//! Leader election: one leader at a time, who has a term and says a word.

mod news;

use std::{future::Future, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimant, Holding, LossReason, Release},
    error::Error,
    limits::Wait,
    name::LockName,
    owner::Owner,
    purpose::{Correctness, Efficiency, Purpose},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, oneshot};

use crate::{
    cell::Cell,
    client::Client,
    hold::Exclusive,
    lease::Lease,
    locks::claimant_with,
    request::{Attempt, Terms, obtain, terms},
};
use news::{News, keep_telling};

/// The label by which candidates know each other's priority.
const PRIORITY: &str = "priority";

/// How often a candidate lets one of higher priority go first before it leads all the same: one that is paused would
/// otherwise keep everybody from leading.
const MOST_ASIDES: u32 = 8;

/// An election. Made by [`Locks::election`](crate::Locks::election).
///
/// The leader is who holds the lock of the election's name, so exclusion, waiting and loss are the lock's. Beside it
/// the leader's word is kept in a cell, for those who only want to know who leads: it is news, not proof, and ends with
/// the leader's TTL. What a leader does to a resource is decided by its term, which is the [fence](crate::Fence) of its lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Acquired, Locks};
///
/// let locks = Locks::open("memory:election").await?.fenced()?;
/// let election = locks.election("scheduler")?;
/// let mut watching = election.observe();
/// assert_eq!(watching.next().await?, None, "nobody leads yet");
/// if let Acquired(leadership) = election.campaign("10.0.0.5:8080").acquire().await? {
///     let leader = watching.next().await?.expect("a leader");
///     assert_eq!((leader.term, leader.word.as_str()), (leadership.term(), "10.0.0.5:8080"));
///     leadership.run(async { /* lead; dropped if the leadership is lost */ }).await?;
///     leadership.resign().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Election<P> {
    client: Arc<Client>,
    name: LockName,
    cell: Cell<Leader>,
    purpose: std::marker::PhantomData<fn() -> P>,
}

/// Who leads, as told to everybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Rises with each leader. On a store that issues fences it is the leader's fence; elsewhere it is counted in a cell, and
    /// rises for as long as the store remembers that.
    pub term: u64,
    /// Who, for people.
    pub claimant: Claimant,
    /// What the leader proclaimed, for instance its address.
    pub word: String,
}

impl<P: Purpose> Election<P> {
    pub(crate) fn new(client: Arc<Client>, name: &str) -> Result<Self, Error> {
        let name = LockName::new(name)?;
        let cell = Cell::new(client.clone(), "election", &name)?;
        Ok(Self { client, name, cell, purpose: std::marker::PhantomData })
    }

    /// Watches who leads. Any number may watch; it takes part in nothing.
    pub fn observe(&self) -> Observer {
        Observer { cell: self.cell.clone(), told: None }
    }
}

macro_rules! election_for {
    ($purpose:ty) => {
        impl Election<$purpose> {
            /// Stands for leader, with `word` to be told to everybody on winning.
            pub fn campaign(&self, word: impl Into<String>) -> Campaign<$purpose> {
                Campaign {
                    client: self.client.clone(),
                    name: self.name.clone(),
                    cell: self.cell.clone(),
                    word: word.into(),
                    priority: None,
                    terms: Terms::default(),
                    purpose: std::marker::PhantomData,
                }
            }
        }
    };
}

election_for!(Correctness);
election_for!(Efficiency);

impl<P> Clone for Election<P> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            name: self.name.clone(),
            cell: self.cell.clone(),
            purpose: std::marker::PhantomData,
        }
    }
}

/// A candidate's campaign.
#[derive(Debug)]
#[must_use = "nothing happens before `acquire`"]
pub struct Campaign<P> {
    client: Arc<Client>,
    name: LockName,
    cell: Cell<Leader>,
    word: String,
    priority: Option<i32>,
    terms: Terms,
    purpose: std::marker::PhantomData<fn() -> P>,
}

impl<P: Purpose> Campaign<P> {
    terms!();

    /// Among those who wait when the leadership comes free, the highest priority leads; 0 for those who state none.
    /// Whoever already leads is not disturbed. Candidates that shall let others go first must state one, 0 for instance.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Waits to become leader.
    ///
    /// # Errors
    /// As for [`LockRequest::acquire`](crate::LockRequest::acquire), and as for [`Cell::update`] for the word. No
    /// leadership is kept after an error.
    ///
    /// # Cancel safety
    /// Safe, as for [`LockRequest::acquire`](crate::LockRequest::acquire).
    pub async fn acquire(mut self) -> Result<Attempt<Leadership<P>>, Error> {
        if let Some(priority) = self.priority {
            self.terms.labels.push((PRIORITY.to_owned(), priority.to_string()));
        }
        let started = self.client.clock.now();
        let mut asides = 0;
        loop {
            let wait = self.terms.wait.left_after(self.client.clock.now().since(started));
            let terms = Terms { wait, ..self.terms.clone() };
            let holding = |owner: Owner| Holding::exclusive(self.name.clone(), owner);
            let mut lease = match obtain(self.client.clone(), terms, holding).await? {
                Attempt::Acquired(lease) => lease,
                Attempt::Busy(busy) => return Ok(Attempt::Busy(busy)),
            };
            if asides < MOST_ASIDES && self.goes_after_another().await? {
                asides += 1;
                lease.release().await?;
                continue;
            }
            return self.lead(lease).await.map(Attempt::Acquired);
        }
    }

    /// Whether somebody waits whose priority is higher.
    async fn goes_after_another(&self) -> Result<bool, Error> {
        let Some(ours) = self.priority else { return Ok(false) };
        let states = self.client.store.inspect(Some(&self.name)).await?;
        let mut waiters = states.iter().flat_map(|state| &state.waiters);
        Ok(waiters.any(|waiter| priority_of(&waiter.claimant) > ours))
    }

    async fn lead(self, lease: Lease<P>) -> Result<Leadership<P>, Error> {
        let cell = self.cell.expiring(self.terms.ttl)?;
        let terms = Cell::new(self.client.clone(), "term", &self.name)?;
        let claimant = if self.terms.labels.is_empty() {
            (*self.client.claimant).clone()
        } else {
            claimant_with(self.terms.labels)
        };
        let news = lease.run(News::first(&lease, cell, terms, claimant, self.word)).await??;
        let term = news.term();
        let news = Arc::new(Mutex::new(news));
        let (leading, resigned) = oneshot::channel();
        self.client.cleaner.run(keep_telling(news.clone(), lease.held(), resigned, self.terms.ttl / 3));
        Ok(Leadership { lease, term, news, _leading: leading })
    }
}

fn priority_of(claimant: &Claimant) -> i32 {
    let stated = claimant.labels.iter().find(|(key, _)| key == PRIORITY);
    stated.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Being the leader, as long as the lease lasts.
///
/// Dropped, it resigns in the background.
#[derive(Debug)]
#[must_use = "a leadership that is dropped is given up"]
pub struct Leadership<P> {
    lease: Lease<P, Exclusive>,
    term: u64,
    news: Arc<Mutex<News>>,
    /// Ends the telling when dropped.
    _leading: oneshot::Sender<()>,
}

impl<P: Purpose> Leadership<P> {
    /// The lease it rests on: [`check`](Lease::check), [`lost`](Lease::lost) and the rest.
    pub fn lease(&self) -> &Lease<P> {
        &self.lease
    }

    /// The term, which rises with each leader. On a store that issues fences it is the fence of the lease, to be sent with
    /// every write. Elsewhere it is counted in a cell: enough to tell one leader's news from another's, and no protection.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Leads for as long as the lease lasts: on loss, `work` is dropped where it stands, before another can lead (L2).
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when the leadership was lost first.
    ///
    /// # Cancel safety
    /// As safe as `work` is. The leadership stays.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.lease.run(work).await
    }

    /// Completes when the leadership is lost.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LossReason {
        self.lease.lost().await
    }

    /// Tells everybody another word.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when the leadership is lost; the rest as for [`Cell::update`].
    ///
    /// # Cancel safety
    /// Dropped, the word may have been told, or not.
    pub async fn proclaim(&self, word: impl Into<String>) -> Result<(), Error> {
        let word = word.into();
        self.lease.run(async { self.news.lock().await.tell(Some(word)).await }).await?
    }

    /// Gives the leadership up: the word goes, then the lock, and the next candidate leads at the speed of a hand-over.
    ///
    /// # Errors
    /// As for [`Lease::release`]; giving up goes on in the background.
    ///
    /// # Cancel safety
    /// Dropped, it goes on in the background.
    pub async fn resign(mut self) -> Result<Release, Error> {
        let gone = self.news.lock().await.withdraw().await;
        if let Err(error) = gone {
            tracing::debug!(%error, "the word of a leader that resigned stays until its TTL");
        }
        self.lease.release().await
    }
}

/// Hears who leads. Made by [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    cell: Cell<Leader>,
    told: Option<Option<Leader>>,
}

impl Observer {
    /// The leader, or `None` when nobody leads: at first as it is, then whenever it is different from what was
    /// answered before. What happens between two calls is told as one change.
    ///
    /// # Errors
    /// As for [`Cell::read`]; call it again to go on.
    ///
    /// # Cancel safety
    /// Safe: nothing is missed.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let found = self.cell.look().await?;
            if self.told.as_ref() != Some(&found.value) {
                self.told = Some(found.value.clone());
                return Ok(found.value);
            }
            self.cell.changed_since(found.version()).await?;
        }
    }
}
