//! The library as a client.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use fencepost::{
    Attempt, Correctness, Efficiency, Fence, Lease, LockRequest, Locks, Namespace,
    capabilities::FenceSource,
    claim::{Grant, Release},
    clock::Moment,
    hold::{Counted, Hold, Shared},
    purpose::Purpose,
    registry,
};
use fencepost_core::error::Applied;
use fencepost_history::{Answer, Holding, Verb, What};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::{Mutex, mpsc},
};

use super::{
    Came, LABEL, Order, Role, Said, Task, done,
    errand::Errands,
    paced::PacedClock,
    recording::{Grants, Recording, promised},
    say, tell,
};

/// Opens the store and obeys.
pub(super) async fn serve(role: Role) -> Result<(), Box<dyn std::error::Error>> {
    let clock = PacedClock::of(role.pace);
    let store = registry::open_store(&role.url, Namespace::default(), clock.clone()).await?;
    let grants = Grants::default();
    match store.capabilities().fence {
        FenceSource::Issued(_) => {
            let store = Recording::<Correctness>::around(store, &role.name, grants.clone(), clock.clone());
            obey(Locks::with_store(Arc::new(store), clock.clone())?, role, grants, clock).await
        }
        FenceSource::None(_) => {
            let store = Recording::<Efficiency>::around(store, &role.name, grants.clone(), clock.clone());
            obey(Locks::with_store(Arc::new(store), clock.clone())?, role, grants, clock).await
        }
    }
}

/// What the two purposes have in common for this client.
trait Useful: Purpose {
    fn alone(locks: &Locks<Self>, lock: &str) -> LockRequest<Self>;
    fn reader(locks: &Locks<Self>, lock: &str) -> LockRequest<Self, Shared>;
    fn permits(locks: &Locks<Self>, lock: &str, count: u32, limit: u32) -> LockRequest<Self, Counted>;
    fn fence(lease: &Lease<Self>) -> Option<u64>;
    fn fence_of_reader(lease: &Lease<Self, Shared>) -> Option<u64>;
    fn fence_of_permits(lease: &Lease<Self, Counted>) -> Option<u64>;
}

macro_rules! useful {
    ($purpose:ty, $fence:expr, $of_reader:expr, $of_permits:expr) => {
        impl Useful for $purpose {
            fn alone(locks: &Locks<Self>, lock: &str) -> LockRequest<Self> {
                locks.lock(lock)
            }

            fn reader(locks: &Locks<Self>, lock: &str) -> LockRequest<Self, Shared> {
                locks.read_write(lock).read()
            }

            fn permits(locks: &Locks<Self>, lock: &str, count: u32, limit: u32) -> LockRequest<Self, Counted> {
                locks.semaphore(lock, limit).permits(count)
            }

            fn fence(lease: &Lease<Self>) -> Option<u64> {
                $fence(lease)
            }

            fn fence_of_reader(lease: &Lease<Self, Shared>) -> Option<u64> {
                $of_reader(lease)
            }

            fn fence_of_permits(lease: &Lease<Self, Counted>) -> Option<u64> {
                $of_permits(lease)
            }
        }
    };
}

useful!(
    Correctness,
    |lease: &Lease<Self>| Some(lease.fence().get()),
    |lease: &Lease<Self, Shared>| lease.fence().map(Fence::get),
    |lease: &Lease<Self, Counted>| Some(lease.fence().get())
);
useful!(Efficiency, |_| None, |_| None, |_| None);

struct Actor<P> {
    name: String,
    locks: Locks<P>,
    grants: Grants,
    clock: Arc<PacedClock>,
    held: Mutex<HashMap<String, Held>>,
    errands: Errands,
}

/// A grant, which a task of its own keeps.
struct Held {
    holding: Holding,
    fence: Option<u64>,
    questions: mpsc::UnboundedSender<(u64, Question)>,
}

/// What can be asked of a lease.
#[derive(Clone, Copy, PartialEq)]
enum Question {
    Check,
    Release,
}

async fn obey<P: Useful>(
    locks: Locks<P>,
    role: Role,
    grants: Grants,
    clock: Arc<PacedClock>,
) -> Result<(), Box<dyn std::error::Error>> {
    let actor = Actor { name: role.name, locks, grants, clock, held: Mutex::default(), errands: Errands::default() };
    let actor = Arc::new(actor);
    say(&Said::Ready { ready: true });
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let Order { order, task } = serde_json::from_str(&line)?;
        let actor = actor.clone();
        match task {
            Task::Acquire { lock, grant, ttl_ms, wait_ms, renews, holding } => {
                let wanted = Wanted { lock, grant, ttl_ms, wait_ms, renews, holding };
                tokio::spawn(async move { actor.acquire(order, wanted).await });
            }
            Task::Check { grant } => actor.ask(order, &grant, Question::Check).await,
            Task::Release { grant } => actor.ask(order, &grant, Question::Release).await,
            // What hangs on its way to the resource must not stop the client from noticing what happens to its lease.
            Task::Read { grant, resource } => drop(tokio::spawn(async move {
                match actor.told(&grant).await {
                    (Holding::Shared, fence) => actor.errands.look(order, grant, fence, resource).await,
                    (_, fence) => actor.errands.read(order, grant, fence, resource).await,
                }
            })),
            Task::Write { grant, resource } => drop(tokio::spawn(async move {
                let (_, fence) = actor.told(&grant).await;
                actor.errands.write(order, grant, fence, resource).await;
            })),
        }
    }
    Ok(())
}

struct Wanted {
    lock: String,
    grant: String,
    ttl_ms: u64,
    wait_ms: Option<u64>,
    renews: bool,
    holding: Holding,
}

impl<P: Useful> Actor<P> {
    /// Takes the lock and keeps it until it is released.
    async fn acquire(&self, order: u64, wanted: Wanted) {
        let (locks, lock) = (&self.locks, &wanted.lock);
        match wanted.holding {
            Holding::Alone => self.take(order, P::alone(locks, lock), P::fence, wanted).await,
            Holding::Shared => self.take(order, P::reader(locks, lock), P::fence_of_reader, wanted).await,
            Holding::Permits { count, limit } => {
                self.take(order, P::permits(locks, lock, count, limit), P::fence_of_permits, wanted).await;
            }
        }
    }

    async fn take<H: Hold>(
        &self,
        order: u64,
        request: LockRequest<P, H>,
        fence: impl Fn(&Lease<P, H>) -> Option<u64>,
        wanted: Wanted,
    ) {
        let Wanted { lock, grant, ttl_ms, wait_ms, renews, holding } = wanted;
        let request = request.ttl(Duration::from_millis(ttl_ms)).label(LABEL, &grant);
        let request = if renews { request } else { request.manual_renewal() };
        let request = match wait_ms {
            Some(limit) => request.wait(Duration::from_millis(limit)),
            None => request,
        };
        let verb = Verb::Acquire;
        tell(&self.name, What::Invoke { verb, lock: lock.clone(), grant: grant.clone(), holding });
        match request.acquire().await {
            Ok(Attempt::Acquired(lease)) => {
                let answered = self.grants.lock().unwrap_or_else(PoisonError::into_inner).get(&grant).cloned();
                let fence = fence(&lease);
                tell(&self.name, self.granted(answered, fence, lease.deadline()));
                let (questions, asked) = mpsc::unbounded_channel();
                self.held.lock().await.insert(grant.clone(), Held { holding, fence, questions });
                done(order, Came::Yes, "");
                self.keep(lease, lock, grant, asked).await;
            }
            Ok(Attempt::Busy(_)) => {
                tell(&self.name, What::Fail { why: "busy".to_owned() });
                done(order, Came::No, "busy");
            }
            Err(error) => {
                let why = error.to_string();
                let not_applied = error.applied() == Applied::No;
                let what = if not_applied { What::Fail { why } } else { What::Unknown { why } };
                tell(&self.name, what);
                done(order, Came::Failed, error.to_string());
            }
        }
    }

    async fn keep<H: Hold>(
        &self,
        mut lease: Lease<P, H>,
        lock: String,
        grant: String,
        mut asked: mpsc::UnboundedReceiver<(u64, Question)>,
    ) {
        let mut told = false;
        loop {
            // A question that lies ready when the process wakes is answered first: it races with the watchdog.
            let (order, question) = tokio::select! {
                biased;
                question = asked.recv() => match question {
                    Some(question) => question,
                    None => return,
                },
                reason = lease.lost(), if !told => {
                    told = true;
                    tell(&self.name, What::Lost { grant: grant.clone(), why: reason.to_string() });
                    continue;
                }
            };
            let verb = if question == Question::Check { Verb::Check } else { Verb::Release };
            tell(&self.name, What::asks(verb, lock.clone(), grant.clone()));
            match question {
                Question::Check => self.check(order, &lease),
                Question::Release => {
                    self.release(order, &mut lease).await;
                    told = true;
                }
            }
        }
    }

    fn check<H: Hold>(&self, order: u64, lease: &Lease<P, H>) {
        let looked = lease.check();
        tell(&self.name, What::says(if looked.is_ok() { Answer::Held } else { Answer::NotHeld }));
        match looked {
            Ok(()) => done(order, Came::Yes, ""),
            Err(error) => done(order, Came::No, error.to_string()),
        }
    }

    async fn release<H: Hold>(&self, order: u64, lease: &mut Lease<P, H>) {
        match lease.release().await {
            Ok(answer) => {
                tell(
                    &self.name,
                    What::says(match answer {
                        Release::Released => Answer::Released,
                        Release::AlreadyExpired => Answer::AlreadyExpired,
                        Release::HeldByOther => Answer::HeldByOther,
                    }),
                );
                done(order, if answer == Release::Released { Came::Yes } else { Came::No }, format!("{answer:?}"));
            }
            Err(error) => {
                tell(&self.name, What::Unknown { why: error.to_string() });
                done(order, Came::Failed, error.to_string());
            }
        }
    }

    async fn ask(&self, order: u64, grant: &str, question: Question) {
        let held = self.held.lock().await;
        let asked = held.get(grant).is_some_and(|held| held.questions.send((order, question)).is_ok());
        if !asked {
            done(order, Came::Failed, "never held");
        }
    }

    fn granted(&self, answered: Option<Grant>, fence: Option<u64>, until: Option<Moment>) -> What {
        let ttl = promised(&**self.locks.store(), answered.as_ref().and_then(|grant| grant.ttl));
        let truly = |moment| self.clock.truly(moment).as_nanos();
        let from = answered.as_ref().map(|grant| truly(grant.counted_from.moment()));
        let slots = answered.filter(|grant| !grant.slots.is_empty()).map(|grant| Box::from(&*grant.slots));
        What::Ok { answer: Answer::Granted, fence, ttl, from, until: until.map(truly), slots }
    }

    /// How a grant is held, and its fence. One that is not there was alone, and has none to show.
    async fn told(&self, grant: &str) -> (Holding, Option<u64>) {
        self.held.lock().await.get(grant).map_or((Holding::Alone, None), |held| (held.holding, held.fence))
    }
}
