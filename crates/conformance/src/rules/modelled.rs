//! Claims drawn at random, on the store and on the memory store beside it, which is the specification as a program: both
//! must let in the same ones, with the same slots, and refuse the same ones.

use std::{fmt, sync::Arc};

use fencepost_core::{
    claim::{Claim, Claimed, Grant, Mode, Patience, Release, Renewal},
    error::ErrorKind,
    fence::Fence,
    memory::MemorySpace,
    store::Store,
};

use futures_util::future::join_all;

use crate::{
    site::{DoesNotApply, Site, Verdict},
    steps::{LONG, SOON, claim_as, nothing_left, store, within},
};

const ACTORS: usize = 6;
const STEPS: usize = 60;

pub async fn readers_and_writers_go_as_in_the_model(site: &dyn Site) -> Verdict {
    if !site.capabilities().shared {
        return Err(DoesNotApply("the store has no shared locks"));
    }
    let modes = [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Shared];
    play(site, 20_261, &modes).await;
    play(site, 20_262, &modes).await;
    Ok(())
}

pub async fn permits_go_as_in_the_model(site: &dyn Site) -> Verdict {
    if !site.capabilities().permits {
        return Err(DoesNotApply("the store has no permits"));
    }
    let permits = |count, of| Mode::Permits { count, of };
    play(site, 20_263, &[permits(1, 3), permits(1, 3), permits(2, 3), permits(3, 3), permits(1, 4)]).await;
    // A name that is now a lock, now a semaphore.
    play(site, 20_264, &[permits(1, 2), permits(2, 2), permits(1, 2), Mode::Exclusive]).await;
    nothing_left(site, SOON).await;
    Ok(())
}

async fn play(site: &dyn Site, seed: u64, modes: &[Mode]) {
    let clients = [store(site).await, store(site).await];
    let model: Arc<dyn Store> = Arc::new(MemorySpace::new().client());
    let mut game = Game { clients, model, actors: Default::default(), draws: Draws(seed), last_writer: None };
    let mut story = Vec::new();
    for step in 0..STEPS {
        let actor = game.draws.below(ACTORS);
        story.push(game.step(actor, modes, &format!("seed {seed}, step {step} after {story:?}")).await);
        game.settle(&format!("seed {seed}, step {step} after {story:?}")).await;
    }
    for actor in 0..ACTORS {
        game.leave(actor, "at the end").await;
        game.settle("at the end").await;
    }
}

struct Game {
    clients: [Arc<dyn Store>; 2],
    model: Arc<dyn Store>,
    actors: [Actor; ACTORS],
    draws: Draws,
    last_writer: Option<Fence>,
}

#[derive(Clone, Default)]
enum Actor {
    #[default]
    Idle,
    Holds(Arc<Claim>),
    Waits(Arc<Claim>),
}

/// What a claim came to, as far as both must agree.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Granted(Arc<[u32]>),
    Busy,
    Queued,
    Refused(ErrorKind),
}

impl Game {
    /// The store's client of an actor: the actors of each client exclude each other and those of the other one.
    fn client(&self, actor: usize) -> &Arc<dyn Store> {
        &self.clients[actor % 2]
    }

    async fn step(&mut self, actor: usize, modes: &[Mode], told: &str) -> Step {
        match self.actors[actor].clone() {
            Actor::Idle => {
                let mode = modes[self.draws.below(modes.len())];
                let patience = if self.draws.below(3) == 0 { Patience::Once } else { Patience::Queue };
                let claim = claim_as("m", LONG, mode);
                let ours = self.client(actor).claim(&claim, patience).await;
                if let Ok(Claimed::Granted(grant)) = &ours {
                    self.judge_fence(mode, grant, told);
                }
                let (ours, models) = (came(ours), came(self.model.claim(&claim, patience).await));
                assert_eq!(ours, models, "{actor} asks for {mode:?}, {patience:?}: store and model, {told}");
                match ours {
                    Came::Granted(_) => self.actors[actor] = Actor::Holds(claim),
                    Came::Queued => self.actors[actor] = Actor::Waits(claim),
                    Came::Busy | Came::Refused(_) => {}
                }
                Step::Asks(actor, mode, patience)
            }
            Actor::Holds(claim) if claim.holding.wants()[0].mode == Mode::Exclusive && self.draws.below(3) == 0 => {
                let ours = self.client(actor).downgrade(&claim).await.expect("an answer");
                let models = self.model.downgrade(&claim).await.expect("an answer");
                let renewed = [ours, models].map(|answer| matches!(answer, Renewal::Renewed { .. }));
                assert_eq!(renewed, [true, true], "{actor} becomes a reader, {told}");
                let holding = claim.holding.shared();
                self.actors[actor] = Actor::Holds(Arc::new(Claim { holding, ..(*claim).clone() }));
                Step::Downgrades(actor)
            }
            Actor::Waits(_) if self.draws.below(3) > 0 => Step::Stays(actor),
            Actor::Holds(_) | Actor::Waits(_) => {
                self.leave(actor, told).await;
                Step::Leaves(actor)
            }
        }
    }

    async fn leave(&mut self, actor: usize, told: &str) {
        let (Actor::Holds(claim) | Actor::Waits(claim)) = std::mem::take(&mut self.actors[actor]) else { return };
        for store in [self.client(actor), &self.model] {
            let answer = store.release(&claim.holding).await.expect("a release");
            assert_eq!(answer, Release::Released, "{actor} leaves, {told}");
        }
    }

    /// Whoever waits and has its turn in the model has it on the store, and nobody else.
    async fn settle(&mut self, told: &str) {
        let mut waiting: Vec<(usize, Arc<Claim>)> = Vec::new();
        for (actor, state) in self.actors.clone().into_iter().enumerate() {
            if let Actor::Waits(claim) = state {
                waiting.push((actor, claim));
            }
        }
        let (mut served, mut others) = (Vec::new(), Vec::new());
        for (actor, claim) in waiting {
            match came(self.model.claim(&claim, Patience::Queue).await) {
                Came::Granted(slots) => served.push((actor, claim, slots)),
                models => others.push((actor, claim, models)),
            }
        }
        // All at once, as they would come: on some stores the first one's going is what lets the next one in.
        let turns = join_all(served.iter().map(|(actor, claim, _)| self.client(*actor).turn(claim)));
        let grants = within(SOON, &format!("the turns of {served:?}, {told}"), turns).await;
        for ((actor, claim, slots), grant) in served.into_iter().zip(grants) {
            let grant = grant.expect("a grant");
            assert_eq!(grant.slots, slots, "{actor} is let in: store and model, {told}");
            self.judge_fence(claim.holding.wants()[0].mode, &grant, told);
            self.actors[actor] = Actor::Holds(claim);
        }
        for (actor, claim, models) in others {
            let ours = came(self.client(actor).claim(&claim, Patience::Queue).await);
            assert_eq!(ours, models, "{actor} waits for {claim:?}: store and model, {told}");
        }
    }

    /// Where the store issues fences: a writer's is above every earlier one's, a reader's not below the last writer's (F3).
    fn judge_fence(&mut self, mode: Mode, grant: &Grant, told: &str) {
        match mode {
            Mode::Exclusive if grant.fence.is_some() => {
                assert!(grant.fence > self.last_writer, "{:?} after {:?}, {told}", grant.fence, self.last_writer);
                self.last_writer = grant.fence;
            }
            Mode::Shared => assert!(grant.fence >= self.last_writer, "a reader's {:?}, {told}", grant.fence),
            Mode::Exclusive | Mode::Permits { .. } => {}
        }
    }
}

fn came(answer: Result<Claimed, fencepost_core::error::Error>) -> Came {
    match answer {
        Ok(Claimed::Granted(grant)) => Came::Granted(grant.slots),
        Ok(Claimed::Busy(_)) => Came::Busy,
        Ok(Claimed::Queued(_)) => Came::Queued,
        Err(error) => Came::Refused(error.kind()),
    }
}

/// What was done, for the story that a failure tells.
enum Step {
    Asks(usize, Mode, Patience),
    Downgrades(usize),
    Stays(usize),
    Leaves(usize),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asks(actor, mode, patience) => write!(f, "{actor} asks for {mode:?} ({patience:?})"),
            Self::Downgrades(actor) => write!(f, "{actor} becomes a reader"),
            Self::Stays(actor) => write!(f, "{actor} waits"),
            Self::Leaves(actor) => write!(f, "{actor} leaves"),
        }
    }
}

/// SplitMix64: the same numbers on every machine.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}
