//! When the guardian does what to the command: a pure state machine, with times in and steps out.

use std::time::Duration;

use fencepost::clock::Moment;

/// How long is tried to kill what does not die.
pub(crate) const KILLING_LASTS: Duration = Duration::from_secs(5);
/// How often it looks for what is left meanwhile.
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// The most that the command gets between TERM and KILL when this program itself was killed.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// The most time before the deadline that is set aside for the killing itself.
const KILL_AHEAD: Duration = Duration::from_millis(250);

/// What happens to the command when the lease is lost, or in danger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnLost {
    /// TERM one grace before the lease ends, KILL before it ends.
    Term,
    /// KILL before the lease ends, without a warning.
    Kill,
    /// Let it run without the lock.
    Ignore,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the whole tree to end.
    Term,
    /// Kill whatever is there.
    Kill,
    /// Report what would not die.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The command runs.
    Running,
    /// It ended by itself; what it left behind may finish.
    Lingering { until: Moment },
    /// TERM was sent.
    Ending { kill_at: Moment },
    /// KILL is being sent.
    Killing { next: Moment, give_up_at: Moment },
}

/// The guardian's plan.
#[derive(Debug)]
pub(crate) struct Plan {
    on_lost: OnLost,
    grace: Duration,
    deadline: Option<Moment>,
    phase: Phase,
    for_the_lease: bool,
}

impl Plan {
    /// A plan for a command that starts now, under a lease that ends at `deadline`.
    pub(crate) fn new(on_lost: OnLost, grace: Duration, deadline: Option<Moment>) -> Self {
        Self { on_lost, grace, deadline, phase: Phase::Running, for_the_lease: false }
    }

    /// Whether the command may start at all: not when it would have to end at once, nor without the lock.
    pub(crate) fn may_start(&self, now: Moment) -> bool {
        [self.term_by(), self.kill_by(), self.deadline].into_iter().flatten().all(|by| now < by)
    }

    /// The lease was extended.
    pub(crate) fn extend(&mut self, deadline: Moment) {
        self.deadline = Some(deadline);
    }

    /// The lease is lost for certain. Answers what is to be done at once.
    pub(crate) fn lost(&mut self, now: Moment) -> Option<Step> {
        if self.on_lost == OnLost::Ignore {
            return None;
        }
        self.for_the_lease |= self.phase == Phase::Running;
        self.end(now, self.grace)
    }

    /// The process that renews the lease is gone. Answers what is to be done at once.
    pub(crate) fn orphaned(&mut self, now: Moment) -> Option<Step> {
        if self.on_lost == OnLost::Ignore {
            self.on_lost = OnLost::Term; // running on was wished for, running unwatched was not
        }
        self.end(now, self.grace.min(ORPHAN_GRACE))
    }

    /// The command itself ended, and something of it still runs.
    pub(crate) fn left_behind(&mut self, now: Moment) {
        if self.phase == Phase::Running {
            self.phase = Phase::Lingering { until: now.after(self.grace) };
        }
    }

    /// Whether the command was ended for the sake of the lease.
    pub(crate) fn is_for_the_lease(&self) -> bool {
        self.for_the_lease
    }

    /// When to ask [`due`](Plan::due) again; `None` while nothing happens by itself.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        let own = match self.phase {
            Phase::Running => self.term_by(),
            Phase::Lingering { until } => Some(until),
            Phase::Ending { kill_at } => Some(kill_at),
            Phase::Killing { next, .. } => return Some(next),
        };
        [own, self.kill_by()].into_iter().flatten().min()
    }

    /// What is to be done now, and notes that it was.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Step> {
        let passed = |at: Option<Moment>| at.is_some_and(|at| now >= at);
        if let Phase::Killing { next, give_up_at } = self.phase {
            if now >= give_up_at {
                return Some(Step::GiveUp);
            }
            if now >= next {
                self.phase = Phase::Killing { next: now.after(KILL_AGAIN_AFTER), give_up_at };
                return Some(Step::Kill);
            }
            return None;
        }
        let in_danger = passed(self.kill_by());
        let grace_over = matches!(self.phase, Phase::Ending { kill_at } if now >= kill_at);
        if in_danger || grace_over {
            self.for_the_lease |= in_danger && self.phase == Phase::Running;
            self.phase = Phase::Killing { next: now.after(KILL_AGAIN_AFTER), give_up_at: now.after(KILLING_LASTS) };
            return Some(Step::Kill);
        }
        match self.phase {
            Phase::Running if passed(self.term_by()) => {
                self.for_the_lease = true;
                self.end(now, self.grace)
            }
            Phase::Lingering { until } if now >= until => self.end(now, self.grace),
            _ => None,
        }
    }

    /// Begins the end: KILL follows after `grace`. An end that has begun goes on as it was.
    fn end(&mut self, now: Moment, grace: Duration) -> Option<Step> {
        if !matches!(self.phase, Phase::Running | Phase::Lingering { .. }) {
            return None;
        }
        let warned = self.on_lost != OnLost::Kill;
        self.phase = Phase::Ending { kill_at: if warned { now.after(grace) } else { now } };
        warned.then_some(Step::Term)
    }

    fn term_by(&self) -> Option<Moment> {
        (self.on_lost == OnLost::Term).then(|| self.deadline.map(|deadline| before(deadline, self.grace))).flatten()
    }

    fn kill_by(&self) -> Option<Moment> {
        let ahead = KILL_AHEAD.min(self.grace / 4);
        (self.on_lost != OnLost::Ignore).then(|| self.deadline.map(|deadline| before(deadline, ahead))).flatten()
    }
}

fn before(moment: Moment, span: Duration) -> Moment {
    let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos(moment.as_nanos().saturating_sub(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn plan(on_lost: OnLost) -> Plan {
        Plan::new(on_lost, Duration::from_millis(400), Some(at(10_000)))
    }

    #[test]
    fn the_command_is_asked_one_grace_before_the_lease_ends_and_killed_before_it_does() {
        let mut plan = plan(OnLost::Term);
        assert_eq!((plan.due(at(9_599)), plan.wake_at()), (None, Some(at(9_600))));
        assert_eq!((plan.due(at(9_600)), plan.wake_at()), (Some(Step::Term), Some(at(9_900))));
        assert_eq!(plan.due(at(9_900)), Some(Step::Kill));
        assert!(plan.is_for_the_lease());
        assert_eq!(plan.due(at(9_905)), Some(Step::Kill));
        assert_eq!(plan.due(at(14_900)), Some(Step::GiveUp));
    }

    #[test]
    fn what_would_have_to_end_at_once_does_not_start_nor_does_anything_without_the_lock() {
        for (on_lost, last) in [(OnLost::Term, 9_599), (OnLost::Kill, 9_899), (OnLost::Ignore, 9_999)] {
            let plan = plan(on_lost);
            assert_eq!((plan.may_start(at(last)), plan.may_start(at(last + 1))), (true, false), "{on_lost:?}");
        }
        assert!(Plan::new(OnLost::Term, Duration::from_secs(1), None).may_start(at(u64::MAX / 1_000_000)));
    }

    #[test]
    fn a_renewal_puts_the_end_off_until_term_was_sent() {
        let mut plan = plan(OnLost::Term);
        plan.extend(at(20_000));
        assert_eq!(plan.due(at(19_599)), None);
        assert_eq!(plan.due(at(19_600)), Some(Step::Term));
        plan.extend(at(30_000));
        assert_eq!(plan.due(at(20_000)), Some(Step::Kill));
    }

    #[test]
    fn kill_comes_without_a_warning_and_ignore_never() {
        let mut kill = plan(OnLost::Kill);
        assert_eq!(kill.wake_at(), Some(at(9_900)));
        assert_eq!(kill.due(at(9_900)), Some(Step::Kill));
        let mut ignore = plan(OnLost::Ignore);
        assert_eq!(ignore.lost(at(1)), None);
        assert_eq!((ignore.wake_at(), ignore.due(at(20_000))), (None, None));
    }

    #[test]
    fn a_dead_master_ends_the_command_whatever_was_said_about_losses() {
        for (on_lost, first) in
            [(OnLost::Term, Some(Step::Term)), (OnLost::Kill, None), (OnLost::Ignore, Some(Step::Term))]
        {
            let mut plan = plan(on_lost);
            assert_eq!(plan.orphaned(at(1_000)), first);
            assert_eq!(plan.orphaned(at(1_100)), None, "asked once");
            assert_eq!(plan.due(at(1_400)), Some(Step::Kill), "{on_lost:?}");
        }
    }

    #[test]
    fn what_was_left_behind_may_finish_then_is_asked_then_killed() {
        let mut plan = Plan::new(OnLost::Term, Duration::from_millis(400), None);
        plan.left_behind(at(0));
        assert_eq!(plan.wake_at(), Some(at(400)));
        assert_eq!(plan.due(at(400)), Some(Step::Term));
        assert_eq!(plan.due(at(800)), Some(Step::Kill));
        assert!(!plan.is_for_the_lease());
    }

    #[test]
    fn after_a_pause_past_the_deadline_there_is_no_grace() {
        assert_eq!(plan(OnLost::Term).due(at(60_000)), Some(Step::Kill));
    }
}
