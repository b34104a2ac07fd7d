//! The world of a plan in virtual time: every event in its order, and after each one a look at who believes.

use std::{cmp::Reverse, collections::BinaryHeap, fmt};

use fastrand::Rng;

use crate::{
    client::{Client, Deed},
    network::fate,
    plan::{Plan, Trouble},
    server::{Micros, Reply, Request, Server},
};

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Two clients believe at once.
    TwoBelieve {
        /// When, in microseconds.
        at: u64,
        /// The clients.
        who: (usize, usize),
    },
    /// A write landed while another client held.
    LateWrite {
        /// When, in microseconds.
        at: u64,
        /// Who wrote.
        writer: usize,
        /// Who held.
        holder: usize,
    },
}

/// What became of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not be, if it was.
    pub breach: Option<Breach>,
    /// Grants of all clients.
    pub grants: u64,
    /// Renewals of all clients.
    pub renewals: u64,
    /// What happened, if it was to be told.
    pub story: Vec<String>,
}

/// A running world.
pub struct World<'a> {
    plan: &'a Plan,
    random: Rng,
    clients: Vec<Client>,
    servers: Vec<Server>,
    agenda: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    scheduled: u64,
    /// When each client is woken next; a wake-up that was planned for another time is no more wanted.
    wakes: Vec<Micros>,
    tells: bool,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake { client: usize },
    Arrives { client: usize, server: usize, request: Request },
    Answered { client: usize, server: usize, request: Request, yes: bool, uptime: u64 },
    Lands { client: usize },
    Trouble { number: usize },
    Over { number: usize },
}

impl<'a> World<'a> {
    /// Runs a plan to its end, or to the first breach.
    pub fn run(plan: &'a Plan) -> Outcome {
        Self::new(plan, false).finish()
    }

    /// The same, and tells what happened.
    pub fn tell(plan: &'a Plan) -> Outcome {
        Self::new(plan, true).finish()
    }

    fn new(plan: &'a Plan, tells: bool) -> Self {
        // The machines draw their jitter from the thread's own generator.
        fastrand::seed(plan.noise);
        let mut world = Self {
            plan,
            random: Rng::with_seed(plan.noise ^ 0x5eed),
            clients: (0..plan.clients).map(|number| Client::new(plan, number)).collect(),
            servers: plan.server_rates.iter().map(|rate| Server::new(*rate, plan.ttl)).collect(),
            agenda: BinaryHeap::new(),
            scheduled: 0,
            wakes: vec![Micros::MAX; plan.clients],
            tells,
            outcome: Outcome::default(),
        };
        for client in 0..plan.clients {
            let at = world.random.u64(0..plan.ttl * 500);
            world.wake(client, at);
        }
        for (number, trouble) in plan.troubles.iter().enumerate() {
            let (at, lasts) = span(trouble);
            world.schedule(at, Event::Trouble { number });
            world.schedule(at + lasts, Event::Over { number });
        }
        world
    }

    fn finish(mut self) -> Outcome {
        let ends = self.plan.ends() * 1_000;
        while let Some(Reverse((now, _, event))) = self.agenda.pop() {
            if now > ends || self.outcome.breach.is_some() {
                break;
            }
            self.happen(now, event);
            self.look(now);
        }
        self.outcome.grants = self.clients.iter().map(|client| client.grants).sum();
        self.outcome.renewals = self.clients.iter().map(|client| client.renewals).sum();
        self.outcome
    }

    fn happen(&mut self, now: Micros, event: Event) {
        match event {
            Event::Wake { client } if self.wakes[client] != now => {}
            Event::Wake { client } if self.clients[client].paused_until > now => {
                self.wakes[client] = Micros::MAX;
                self.wake(client, self.clients[client].paused_until);
            }
            Event::Answered { client, .. } | Event::Lands { client } if self.clients[client].paused_until > now => {
                let until = self.clients[client].paused_until;
                self.schedule(until, event);
            }
            Event::Arrives { server, .. } if self.servers[server].stopped_until > now => {
                let until = self.servers[server].stopped_until;
                self.schedule(until, event);
            }
            Event::Wake { client } => {
                self.wakes[client] = Micros::MAX;
                let deeds = self.clients[client].on_time(now, &mut self.random);
                self.act(now, client, deeds);
            }
            Event::Arrives { client, server, request } => self.serve(now, client, server, request),
            Event::Answered { client, server, request, yes, uptime } => {
                let reply = if yes { Reply::Yes } else { Reply::No };
                let deeds = self.clients[client].on_reply(now, server, request, reply, uptime, &mut self.random);
                self.act(now, client, deeds);
            }
            Event::Lands { client } => self.land(now, client),
            Event::Trouble { number } => self.begin(now, number),
            Event::Over { number } => self.end(now, number),
        }
    }

    fn serve(&mut self, now: Micros, client: usize, server: usize, request: Request) {
        if !self.servers[server].is_up {
            return;
        }
        let reply = self.servers[server].answer(now, request);
        if reply == Reply::Yes || matches!(request, Request::Renew { .. }) {
            self.say(now, format!("server {server} answers client {client}: {request} {reply:?}"));
        }
        let uptime = self.servers[server].uptime_seconds(now);
        for at in fate(self.plan, &mut self.random, now, client, server) {
            let answered = Event::Answered { client, server, request, yes: reply == Reply::Yes, uptime };
            self.schedule(at, answered);
        }
    }

    fn act(&mut self, now: Micros, client: usize, deeds: Vec<Deed>) {
        for deed in deeds {
            match deed {
                Deed::Send { server, request } => {
                    for at in fate(self.plan, &mut self.random, now, client, server) {
                        self.schedule(at, Event::Arrives { client, server, request });
                    }
                }
                Deed::Look if self.clients[client].believes(now) => {
                    // Between the look and the write lies the world, or nothing at all.
                    let gap = if self.plan.writers_pause { 1_000 } else { 0 };
                    self.schedule(now + gap, Event::Lands { client });
                }
                Deed::Look => {}
                Deed::Tell(what) => self.say(now, format!("client {client} {what}")),
            }
        }
        let at = self.clients[client].wake_at().max(now + 1);
        self.wake(client, at);
    }

    /// Wakes a client at `at`, unless it is woken earlier.
    fn wake(&mut self, client: usize, at: Micros) {
        if at < self.wakes[client] {
            self.wakes[client] = at;
            self.schedule(at, Event::Wake { client });
        }
    }

    fn land(&mut self, now: Micros, writer: usize) {
        let holder = (0..self.clients.len()).find(|other| *other != writer && self.clients[*other].believes(now));
        if let Some(holder) = holder {
            self.say(now, format!("a write of client {writer} lands while client {holder} holds"));
            self.outcome.breach.get_or_insert(Breach::LateWrite { at: now, writer, holder });
        }
    }

    fn look(&mut self, now: Micros) {
        let mut believers = (0..self.clients.len()).filter(|client| self.clients[*client].believes(now));
        if let (Some(first), Some(second)) = (believers.next(), believers.next()) {
            self.say(now, format!("clients {first} and {second} both believe that they hold"));
            self.outcome.breach.get_or_insert(Breach::TwoBelieve { at: now, who: (first, second) });
        }
    }

    fn begin(&mut self, now: Micros, number: usize) {
        let trouble = self.plan.troubles[number];
        self.say(now, trouble.to_string());
        let until = now + span(&trouble).1;
        match trouble {
            Trouble::Stop { server, .. } => {
                let stopped = &mut self.servers[server].stopped_until;
                *stopped = (*stopped).max(until);
            }
            Trouble::Restart { server, .. } | Trouble::Forget { server, .. } => self.servers[server].kill(),
            Trouble::Jump { server, by, .. } => self.servers[server].jump(by * 1_000),
            Trouble::Pause { client, .. } => {
                let paused = &mut self.clients[client].paused_until;
                *paused = (*paused).max(until);
            }
            Trouble::Cut { .. } | Trouble::Slow { .. } => {} // known to the network
        }
    }

    fn end(&mut self, now: Micros, number: usize) {
        match self.plan.troubles[number] {
            Trouble::Restart { server, .. } => self.servers[server].start(now, false),
            Trouble::Forget { server, .. } => self.servers[server].start(now, true),
            _ => {}
        }
    }

    fn schedule(&mut self, at: Micros, event: Event) {
        self.scheduled += 1;
        self.agenda.push(Reverse((at, self.scheduled, event)));
    }

    fn say(&mut self, now: Micros, what: String) {
        if self.tells {
            self.outcome.story.push(format!("{:>9}.{:03} ms  {what}", now / 1_000, now % 1_000));
        }
    }
}

fn span(trouble: &Trouble) -> (Micros, Micros) {
    let (at, lasts) = match *trouble {
        Trouble::Cut { at, lasts, .. }
        | Trouble::Slow { at, lasts, .. }
        | Trouble::Stop { at, lasts, .. }
        | Trouble::Restart { at, lasts, .. }
        | Trouble::Forget { at, lasts, .. }
        | Trouble::Pause { at, lasts, .. } => (at, lasts),
        Trouble::Jump { at, .. } => (at, 0),
    };
    (at * 1_000, lasts * 1_000)
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { owner, round } => write!(f, "take for claim {owner}, round {round}:"),
            Self::Retract { owner, round } => write!(f, "give back rounds up to {round} of claim {owner}:"),
            Self::Renew { owner, .. } => write!(f, "renew claim {owner}:"),
            Self::Release { owner } => write!(f, "release claim {owner}:"),
        }
    }
}

impl fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("plan", self.plan).finish_non_exhaustive()
    }
}
