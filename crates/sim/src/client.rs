//! A client as the store is one: rounds, a lease machine, renewals by quorum, and what is given back. It sees its own
//! clock only, and does nothing but answer events with requests.

use std::time::Duration;

use fastrand::Rng;
use fencepost_core::{
    claim::{Grant, Renewal},
    clock::{Moment, Sent},
    machine::{self, LeaseMachine, Upkeep},
    quorum::{self, CleaningUp, Defeat, Errand, Probation, Quorum, Round, Verdict, Vote},
};

use crate::{
    plan::Plan,
    server::{Micros, Owner, Reply, Request, scaled},
};

/// What a client does about an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    Send {
        server: usize,
        request: Request,
    },
    /// Look at the lease, and write if it is held.
    Look,
    Tell(&'static str),
}

pub(crate) struct Client {
    pub(crate) paused_until: Micros,
    rate: u64,
    quorum: Quorum,
    ttl: Duration,
    guarded: bool,
    claim: Owner,
    round_number: u64,
    state: State,
    debts: Vec<Debt>,
    pub(crate) grants: u64,
    pub(crate) renewals: u64,
    renewals_begun: u64,
}

enum State {
    /// Nothing is wanted until then.
    Idle {
        until: Moment,
    },
    Taking {
        round: Round,
    },
    Holding {
        lease: LeaseMachine,
        renewing: Option<Renewing>,
        until: Moment,
        look_at: Moment,
    },
}

struct Renewing {
    round: Round,
    /// Servers that have no record of ours.
    gone: Vec<usize>,
    sent: Moment,
}

struct Debt {
    server: usize,
    request: Request,
    work: CleaningUp,
}

impl Client {
    pub(crate) fn new(plan: &Plan, number: usize) -> Self {
        let quorum = Quorum::of(plan.servers).expect("a plan has servers");
        Self {
            paused_until: 0,
            rate: plan.client_rates[number],
            quorum,
            ttl: Duration::from_millis(plan.ttl),
            guarded: plan.guarded,
            claim: number as Owner,
            round_number: 0,
            state: State::Idle { until: Moment::default() },
            debts: Vec::new(),
            grants: 0,
            renewals: 0,
            renewals_begun: 0,
        }
    }

    /// Its own clock.
    pub(crate) fn clock(&self, now: Micros) -> Moment {
        Moment::from_nanos(scaled(now, self.rate) * 1_000)
    }

    /// Whether a look at its clock now would say that it holds.
    pub(crate) fn believes(&self, now: Micros) -> bool {
        match &self.state {
            State::Holding { lease, .. } => {
                lease.lost().is_none() && lease.deadline().is_some_and(|deadline| self.clock(now) < deadline)
            }
            _ => false,
        }
    }

    /// When it wants to be woken, in true time.
    pub(crate) fn wake_at(&self) -> Micros {
        let state = match &self.state {
            State::Idle { until } => Some(*until),
            State::Taking { round } => Some(round.limit()),
            State::Holding { lease, renewing, until, look_at } => {
                let limit = renewing.as_ref().map(|renewing| renewing.round.limit());
                [lease.wake_at(), limit, Some(*until), Some(*look_at)].into_iter().flatten().min()
            }
        };
        let debts = self.debts.iter().filter_map(|debt| match debt.work.next(Moment::default()) {
            Errand::Wait(until) => Some(until),
            Errand::Ask => Some(Moment::default()),
            Errand::Done => None,
        });
        let at = state.into_iter().chain(debts).min().unwrap_or(Moment::END);
        // Rounded up, so that it is due when it comes.
        (at.as_nanos() / 1_000).saturating_mul(1_000_000) / self.rate + 2
    }

    pub(crate) fn on_time(&mut self, now: Micros, random: &mut Rng) -> Vec<Deed> {
        let now = self.clock(now);
        let mut deeds = self.settle_debts(now);
        match &mut self.state {
            State::Idle { until } if *until <= now => deeds.extend(self.begin(now)),
            State::Idle { .. } => {}
            State::Taking { round } => {
                let action = round.on(now, quorum::Event::Tick);
                deeds.extend(self.taken(now, action, random));
            }
            State::Holding { .. } => deeds.extend(self.hold(now, random)),
        }
        deeds
    }

    /// A server's reply to a request of ours. `uptime` is what the server says of itself, in seconds.
    pub(crate) fn on_reply(
        &mut self,
        now: Micros,
        server: usize,
        request: Request,
        reply: Reply,
        uptime: u64,
        random: &mut Rng,
    ) -> Vec<Deed> {
        let now = self.clock(now);
        let counts = !self.guarded || Probation::from_uptime(now, uptime).is_over(now, self.ttl);
        let vote = match reply {
            Reply::Yes if counts => Vote::For { ttl: self.ttl },
            Reply::Yes => Vote::Unknown,
            Reply::No => Vote::Against,
        };
        match (request, &mut self.state) {
            (Request::Set { owner, round: number }, State::Taking { round })
                if (owner, number) == (self.claim, self.round_number) =>
            {
                let action = round.on(now, quorum::Event::Voted { node: server, vote });
                self.taken(now, action, random)
            }
            // An answer belongs to its own question: one to an earlier renewal says nothing of what was asked since.
            (Request::Renew { renewal, .. }, State::Holding { renewing: Some(renewing), .. })
                if renewal == self.renewals_begun =>
            {
                renewing.gone.extend((reply == Reply::No).then_some(server));
                let action = renewing.round.on(now, quorum::Event::Voted { node: server, vote });
                self.renewed(now, action, random)
            }
            (Request::Retract { .. } | Request::Release { .. }, _) => {
                let debt = self.debts.iter_mut().find(|debt| debt.server == server && debt.request == request);
                if let Some(debt) = debt {
                    debt.work.answered(now, true);
                }
                Vec::new()
            }
            // Of a round that is over; what it may have left is owed already.
            _ => Vec::new(),
        }
    }

    /// A new claim every time but one of four: those go on with the claim that lost, as a waiter does.
    fn begin(&mut self, now: Moment) -> Vec<Deed> {
        self.round_number += 1;
        if self.round_number % 4 == 1 {
            self.claim += 1_000;
        }
        let round = Round::begin(self.quorum, Sent::at(now));
        self.state = State::Taking { round };
        self.everywhere(Request::Set { owner: self.claim, round: self.round_number })
    }

    fn taken(&mut self, now: Moment, action: quorum::Action, random: &mut Rng) -> Vec<Deed> {
        let State::Taking { round } = &self.state else { return Vec::new() };
        match action {
            quorum::Action::Settle(Verdict::Won { ttl }) => {
                let grant = Grant::new(round.sent(), Some(self.quorum.drift.granted(ttl)), None);
                let Ok(lease) = LeaseMachine::begin(now, &grant, Upkeep::default(), random.f64()) else {
                    return self.lose_round(now, random);
                };
                self.grants += 1;
                let until = now.after(self.ttl.mul_f64(random.f64() * 4.0));
                self.state = State::Holding { lease, renewing: None, until, look_at: now };
                vec![Deed::Tell("holds")]
            }
            quorum::Action::Settle(Verdict::Lost(_)) => self.lose_round(now, random),
            quorum::Action::Nothing | quorum::Action::GiveBack => Vec::new(),
        }
    }

    fn lose_round(&mut self, now: Moment, random: &mut Rng) -> Vec<Deed> {
        let request = Request::Retract { owner: self.claim, round: self.round_number };
        self.owe(now, request);
        self.state = State::Idle { until: now.after(self.ttl.mul_f64(random.f64() / 4.0)) };
        Vec::new()
    }

    fn hold(&mut self, now: Moment, random: &mut Rng) -> Vec<Deed> {
        let State::Holding { lease, renewing, until, look_at } = &mut self.state else { return Vec::new() };
        if now >= *until {
            return self.end(now, "gives back", random);
        }
        let mut deeds = Vec::new();
        if now >= *look_at {
            *look_at = now.after(self.ttl.mul_f64(random.f64() / 10.0));
            deeds.push(Deed::Look);
        }
        if let Some(under_way) = renewing {
            let action = under_way.round.on(now, quorum::Event::Tick);
            deeds.extend(self.renewed(now, action, random));
            return deeds;
        }
        match lease.on(now, machine::Event::Tick { ahead: Duration::ZERO }, random.f64()) {
            machine::Action::Renew => {
                *renewing =
                    Some(Renewing { round: Round::begin(self.quorum, Sent::at(now)), gone: Vec::new(), sent: now });
                self.renewals_begun += 1;
                let (owner, round, renewal) = (self.claim, self.round_number, self.renewals_begun);
                deeds.extend(self.everywhere(Request::Renew { owner, round, renewal }));
            }
            machine::Action::Lose(_) => deeds.extend(self.end(now, "has lost", random)),
            machine::Action::Nothing => {}
        }
        deeds
    }

    fn renewed(&mut self, now: Moment, action: quorum::Action, random: &mut Rng) -> Vec<Deed> {
        let State::Holding { lease, renewing, .. } = &mut self.state else { return Vec::new() };
        let quorum::Action::Settle(verdict) = action else {
            // Time goes on for the lease while its renewal is under way.
            let tick = machine::Event::Tick { ahead: Duration::ZERO };
            return match lease.on(now, tick, random.f64()) {
                machine::Action::Lose(_) => self.end(now, "has lost", random),
                machine::Action::Nothing | machine::Action::Renew => Vec::new(),
            };
        };
        let Some(Renewing { gone, sent, .. }) = renewing.take() else { return Vec::new() };
        let mut deeds = Vec::new();
        let answer = match verdict {
            Verdict::Won { ttl } => {
                self.renewals += 1;
                // A quorum has it: it is put back where it is missing, and counts there from the next renewal on.
                let request = Request::Set { owner: self.claim, round: self.round_number };
                deeds.extend(gone.iter().map(|server| Deed::Send { server: *server, request }));
                let ttl = self.quorum.drift.granted(ttl);
                Some(Renewal::Renewed { counted_from: Sent::at(sent), ttl })
            }
            Verdict::Lost(Defeat::Outvoted) if gone.len() > self.quorum.spare() => {
                Some(Renewal::Lost(fencepost_core::claim::LossReason::TakenOver))
            }
            Verdict::Lost(_) => None,
        };
        if let machine::Action::Lose(_) = lease.on(now, machine::Event::Answered(answer), random.f64()) {
            deeds.extend(self.end(now, "has lost", random));
        }
        deeds
    }

    fn end(&mut self, now: Moment, how: &'static str, random: &mut Rng) -> Vec<Deed> {
        self.owe(now, Request::Release { owner: self.claim });
        self.round_number += 4 - self.round_number % 4; // the next one is another claim
        self.state = State::Idle { until: now.after(self.ttl.mul_f64(random.f64() / 4.0)) };
        vec![Deed::Tell(how)]
    }

    fn owe(&mut self, now: Moment, request: Request) {
        let work = CleaningUp::begin(now, self.ttl, true);
        let debts = (0..self.quorum.nodes()).map(|server| Debt { server, request, work: work.clone() });
        self.debts.extend(debts);
    }

    fn settle_debts(&mut self, now: Moment) -> Vec<Deed> {
        self.debts.retain(|debt| debt.work.next(now) != Errand::Done);
        let mut deeds = Vec::new();
        for debt in &mut self.debts {
            if debt.work.next(now) == Errand::Ask {
                // Each question counts as unanswered until its answer comes, which may be much later.
                debt.work.answered(now, false);
                deeds.push(Deed::Send { server: debt.server, request: debt.request });
            }
        }
        deeds
    }

    fn everywhere(&self, request: Request) -> Vec<Deed> {
        (0..self.quorum.nodes()).map(|server| Deed::Send { server, request }).collect()
    }
}
