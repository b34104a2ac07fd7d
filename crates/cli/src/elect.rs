//! `fencepost elect`: runs the command while this process leads, and stands for leader again afterwards.

use std::time::Duration;

use fencepost::{
    Attempt, Error, Locks,
    claim::Mode,
    clock::{self, BootClock, Clock},
    error::Retry,
};

use crate::{
    arguments::{Elect, Global, Priority, Way},
    exit::{self, Ending},
    held::Held,
    supervisor::{End, Supervisor, Work},
    take::{self, Opened, Patience, Takes},
    when,
};

/// A leadership that lasted less than this is followed by a pause.
const SHORT: Duration = Duration::from_secs(10);
/// The first pause, and the one after a command that did not fail.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// What the pauses grow to while the command fails.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Carries the verb out.
pub(crate) fn elect(global: &Global, elect: &Elect) -> Ending {
    let patience = Patience::begin(elect.taking.wait);
    let names = std::slice::from_ref(&elect.name);
    let work = Work { global, names, taking: &elect.taking, guarded: &elect.guarded, stdout: None };
    work.supervise(async |supervisor| Candidate { elect, supervisor }.open(patience).await)
}

struct Candidate<'a> {
    elect: &'a Elect,
    supervisor: &'a Supervisor<'a>,
}

/// What follows a campaign.
enum Next {
    /// It was the last one.
    End(Ending),
    /// Another one.
    Again {
        /// What there is to say of this one.
        said: String,
        /// Whether a pause must keep it from being repeated all the time.
        hurry: Hurry,
    },
}

enum Hurry {
    /// It lasted.
    None,
    /// It was short.
    Short,
    /// It was short and failed.
    Failing,
}

impl Candidate<'_> {
    async fn open(&self, patience: Patience) -> Result<Ending, Ending> {
        match self.supervisor.open(patience).await? {
            Opened::Fenced(locks) => self.stand(&locks, patience).await,
            Opened::Plain(locks) => self.stand(&locks, patience).await,
        }
    }

    async fn stand<P: Takes>(&self, locks: &Locks<P>, mut patience: Patience) -> Result<Ending, Ending> {
        let mut pause = FIRST_PAUSE;
        loop {
            let asking = P::campaign(locks, self.elect, patience)?;
            if self.elect.priority == Some(Priority::Never) {
                return Ok(self.stand_by(patience).await);
            }
            let (said, hurry) = match self.campaign(locks, asking, patience).await {
                Next::End(ending) => return Ok(ending),
                Next::Again { said, hurry } => (said, hurry),
            };
            let span = match hurry {
                Hurry::None => Duration::ZERO,
                Hurry::Short => FIRST_PAUSE,
                Hurry::Failing => pause,
            };
            pause = if let Hurry::Failing = hurry { (pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
            // Spread, so that candidates that fail alike do not keep step.
            let span = span.mul_f64(fastrand::f64().mul_add(0.25, 0.75));
            self.say(&match span {
                Duration::ZERO => format!("{said}; standing for leader again"),
                span => format!("{said}; standing for leader again in {}", when::span(span)),
            });
            tokio::select! {
                () = clock::sleep(&BootClock, span) => {}
                signal = self.supervisor.signals.next_end() => return Err(Ending::interrupted(signal)),
            }
            patience = Patience::begin(self.elect.taking.wait);
        }
    }

    /// One campaign, and the leadership that it leads to.
    async fn campaign<P: Takes>(&self, locks: &Locks<P>, asking: take::Asking, patience: Patience) -> Next {
        let names = self.supervisor.work.names;
        let attempt = tokio::select! {
            biased;
            attempt = take::acquire(self.supervisor.work.global, locks, names, Mode::Exclusive, asking) => attempt,
            signal = self.supervisor.signals.next_end() => {
                locks.close().await;
                return Next::End(Ending::interrupted(signal));
            }
        };
        let waited = patience.spent();
        let next = match attempt {
            Ok(Attempt::Acquired(held)) => self.lead(held).await,
            Ok(Attempt::Busy(busy)) => {
                // The place in the queue goes before this process does.
                locks.close().await;
                Next::End(Ending::busy(Way::Alone(&self.elect.name), &busy, self.elect.guarded.busy_code))
            }
            Err(error) if self.bears(&error) => Next::Again { said: error.to_string(), hurry: Hurry::Failing },
            Err(error) => {
                locks.close().await;
                Next::End(error.into())
            }
        };
        match next {
            Next::End(ending) => Next::End(Ending { waited_ms: Some(exit::millis(waited)), ..ending }),
            again => again,
        }
    }

    /// Whether to go on after an error: a store that is away comes back, and a waiting time bounds what was asked for.
    fn bears(&self, error: &Error) -> bool {
        error.retry() == Retry::Later && self.elect.taking.wait.is_none() && !self.elect.once
    }

    async fn lead(&self, held: Box<dyn Held>) -> Next {
        let began = BootClock.now();
        let term = held.told().term.unwrap_or_default();
        self.say(&format!("leading {}, term {term}", self.elect.name));
        let outcome = self.supervisor.run(&*held).await;
        let lasted = BootClock.now().since(began);
        let ending = self.supervisor.give_back(held, began, outcome.ending).await;
        let hopeless = matches!(outcome.end, End::NotStarted | End::Broken);
        if self.elect.once || outcome.by_our_signal || hopeless {
            return Next::End(ending);
        }
        let hurry = match outcome.end {
            _ if lasted >= SHORT => Hurry::None,
            End::Code(0) => Hurry::Short,
            _ => Hurry::Failing,
        };
        let said = match (outcome.end, ending.message) {
            (End::Code(code), None) => format!("term {term}: the command ended with code {code}"),
            (End::Code(code), Some(message)) => format!("term {term}: the command ended with code {code}; {message}"),
            (_, message) => format!("term {term}: {}", message.unwrap_or_default()),
        };
        Next::Again { said, hurry }
    }

    /// `--priority never`: until a signal or the waiting time ends it.
    async fn stand_by(&self, patience: Patience) -> Ending {
        let name = &self.elect.name;
        self.say(&format!("this process never leads {name}: its priority is `never`"));
        let end = async {
            match patience.left() {
                fencepost::Wait::Forever => std::future::pending().await,
                fencepost::Wait::AtMost(left) => clock::sleep(&BootClock, left).await,
                fencepost::Wait::Once => {}
            }
        };
        tokio::select! {
            () = end => Ending::coded("busy", self.elect.guarded.busy_code),
            signal = self.supervisor.signals.next_end() => Ending::interrupted(signal),
        }
    }

    fn say(&self, line: &str) {
        if !self.supervisor.work.global.quiet {
            exit::say(line);
        }
    }
}
