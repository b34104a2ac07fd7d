//! How the command ends: the exit codes, the one line for people and the one line for programs.

use std::{collections::BTreeMap, time::Duration};

use fencepost::{Error, ErrorKind, LockName, claim::Busy};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::{arguments::Way, signals::Caught, when};

/// The command line or an input in it was refused (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// `once`: the key stands for another command or payload, or its result could not be kept (`EX_DATAERR`).
pub(crate) const NOT_THE_SAME: u8 = 65;
/// The store could not be reached or did not answer (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// Anything that should not happen: a corrupt record, a foreign value, a broken guardian (`EX_SOFTWARE`).
pub(crate) const INTERNAL: u8 = 70;
/// Another holds the lock (`EX_TEMPFAIL`).
pub(crate) const BUSY: u8 = 75;
/// The lease was lost, and the command was stopped.
pub(crate) const LOST: u8 = 76;
/// The store refused for lack of rights (`EX_NOPERM`).
pub(crate) const PERMISSION: u8 = 77;
/// The store, or its set-up, cannot give what was asked (`EX_CONFIG`).
pub(crate) const UNSUPPORTED: u8 = 78;
/// The command was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// What an exit code says in the help text.
pub(crate) const CODES: &str = "\
Exit codes:
  64   the command line was refused
  65   once: the key stands for another command, or its result could not be kept
  69   the store is unavailable
  70   something that should not be: a corrupt record, a foreign value
  75   busy: another holds the lock, or it is not due (run, elect, once: see --busy-code)
  76   the lease is lost (run, elect, once: the command was stopped)
  77   the store refused permission
  78   the store cannot give what was asked
  126  the command cannot be executed
  127  the command was not found
  128+n  ended by signal n; any other code of run, elect and once is the command's own";

/// How a verb ended. With `--json` it is the last line on stderr, unless the answer stands on stdout already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// One word for it.
    pub(crate) outcome: String,
    pub(crate) exit_code: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    /// The fence of each lock, where several were held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fences: Option<Box<Fences>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waited_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_ms: Option<u64>,
    /// The line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Whether the answer is on stdout, and says it all.
    #[serde(skip)]
    pub(crate) answered: bool,
    /// Whether the terminal's interrupt key ended it.
    #[serde(skip)]
    pub(crate) by_interrupt_key: bool,
}

/// Fences by the names of their locks. In a box: an ending is what most functions here fail with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fences(BTreeMap<String, u64>);

impl Ending {
    /// It went as wished.
    pub(crate) fn done() -> Self {
        Self::coded("done", 0)
    }

    /// It went as wished, and the answer is on stdout.
    pub(crate) fn answered() -> Self {
        Self { answered: true, ..Self::done() }
    }

    /// One word and an exit code, nothing to say.
    pub(crate) fn coded(outcome: &str, exit_code: u8) -> Self {
        Self { outcome: outcome.into(), exit_code, ..Self::default() }
    }

    /// The line for people.
    pub(crate) fn saying(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// One thing more to say.
    pub(crate) fn adding(self, message: impl std::fmt::Display) -> Self {
        let before = self.message.as_ref().map_or_else(String::new, |before| format!("{before}; "));
        self.saying(format!("{before}{message}"))
    }

    /// The fences of what was held: one for each name, or none.
    pub(crate) fn with_fences(mut self, names: &[LockName], fences: &[u64]) -> Self {
        match (names, fences) {
            (_, []) => {}
            ([_], [fence]) => self.fence = Some(*fence),
            _ => {
                let named = names.iter().map(LockName::to_string).zip(fences.iter().copied());
                self.fences = Some(Box::new(Fences(named.collect())));
            }
        }
        self
    }

    /// A command line that was refused.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::coded("usage", USAGE).saying(message)
    }

    /// Something that should not happen.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::coded("failed", INTERNAL).saying(message)
    }

    /// Ended by a signal to this command.
    pub(crate) fn interrupted(by: Caught) -> Self {
        let code = 128u8.saturating_add(u8::try_from(by.number).unwrap_or(127));
        let by_interrupt_key = by.by_key && by.number == Signal::INT.as_raw();
        Self { by_interrupt_key, ..Self::coded("interrupted", code) }
    }

    /// Another holds it: who, since when, for how long yet.
    pub(crate) fn busy(way: Way<'_>, busy: &Busy, code: u8) -> Self {
        let mut said = match way {
            Way::Alone(name) | Way::BesideReaders(name) => format!("busy: {name} is held by "),
            Way::Permits { name, of, .. } => format!("busy: too few of the {of} permits of {name} are free; held by "),
            Way::Together(names) => match &busy.lock {
                Some(lock) => format!("busy: {lock}, one of {}, is held by ", listed(names)),
                None => format!("busy: one of {} is held by ", listed(names)),
            },
        };
        match &busy.holder {
            Some(holder) => said.push_str(&when::holder(holder)),
            None => said.push_str("another, whose record could not be read"),
        }
        if let Some(ahead) = busy.ahead.filter(|ahead| *ahead > 0) {
            said.push_str(&format!(", {ahead} waiting before us"));
        }
        Self::coded("busy", code).saying(said)
    }

    /// Tells it as asked, and answers the exit code.
    pub(crate) fn tell(&self, json: bool, quiet: bool) -> u8 {
        if let Some(message) = self.message.as_ref().filter(|_| !quiet || self.exit_code == USAGE) {
            say(message);
        }
        if json && !self.answered {
            let line = serde_json::to_string(self).unwrap_or_default();
            write_line(&line);
        }
        self.exit_code
    }
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        let (outcome, code) = match error.kind() {
            ErrorKind::InvalidInput => ("usage", USAGE),
            ErrorKind::Unavailable | ErrorKind::LateGrant => ("unavailable", UNAVAILABLE),
            ErrorKind::PermissionDenied => ("permission_denied", PERMISSION),
            ErrorKind::Unsupported | ErrorKind::Misconfigured | ErrorKind::Mismatch => ("unsupported", UNSUPPORTED),
            ErrorKind::Lost(_) => ("lost", LOST),
            _ => ("failed", INTERNAL),
        };
        Self::coded(outcome, code).saying(error.to_string())
    }
}

/// The first of these names, and how many more there are.
pub(crate) fn listed(names: &[LockName]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).map(LockName::to_string).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A span as the endings have it.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// One line for people on stderr.
pub(crate) fn say(message: &str) {
    write_line(&format!("fencepost: {}", when::harmless(message)));
}

fn write_line(line: &str) {
    use std::io::Write;
    // One write, so that lines of several processes do not mix. A closed stderr is nobody's loss.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use fencepost::error::Operation;

    use super::*;

    #[test]
    fn c2_unavailable_and_busy_have_codes_that_cannot_be_confused() {
        for (kind, code) in [
            (ErrorKind::InvalidInput, 64),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Corrupt, 70),
            (ErrorKind::PermissionDenied, 77),
            (ErrorKind::Unsupported, 78),
        ] {
            assert_eq!(Ending::from(Error::new(kind, Operation::Claim, "x")).exit_code, code, "{kind:?}");
        }
        let name = LockName::new("a").unwrap();
        assert_eq!(Ending::busy(Way::Alone(&name), &Busy::default(), BUSY).exit_code, 75);
    }
}
