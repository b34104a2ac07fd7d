//! The flags of whatever runs a command under something held: `run`, `elect` and `once`; and how a lock is taken.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    time::Duration,
};

use clap::Args;
use fencepost::{LockName, MOST_PERMITS, Ttl, claim::Mode};

use super::values::{PRIORITY, Priority, label, name, positive_span, priority, span, ttl, word};
use crate::{exit, guardian::plan::OnLost};

/// The most locks of one `run`: their names fit into one variable of the environment, which takes 128 KiB, and their
/// descriptors into one message to the guardian, which takes 253.
const MOST_LOCKS: usize = 250;

/// What is to be held, and how.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// The lock, or several to be held together, all or none
    #[arg(value_parser = name, value_name = "NAME", required = true)]
    pub(crate) names: Vec<LockName>,
    /// Hold it beside other readers: nobody that holds it without --shared holds it at the same time
    #[arg(long, conflicts_with = "permits")]
    shared: bool,
    /// Hold this many permits of the semaphore NAME, which has as many as --of says
    #[arg(long, value_name = "N", requires = "of", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_PERMITS)))]
    permits: Option<u32>,
    /// How many permits the semaphore has; all that use it must say the same
    #[arg(long, value_name = "M", requires = "permits", value_parser = clap::value_parser!(u32).range(1..))]
    of: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// Run only if nobody has begun to within this time before, on any host
    ///
    /// For timers on many hosts. The time counts from when the command was about to start, on the store's clock; say a
    /// little less than the timer's interval, since the hosts' clocks differ. Otherwise the exit code is that of --busy-code.
    #[arg(long, value_name = "PERIOD", value_parser = ttl, conflicts_with_all = ["shared", "permits"])]
    pub(crate) once_per: Option<Ttl>,
    /// With --once-per: a command that fails or is stopped does not count, so that the next one to ask runs it again
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Hold the lock at least this long, also when the command ends sooner
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "0s")]
    pub(crate) min_hold: Duration,
    #[command(flatten)]
    pub(crate) guarded: Guarded,
}

/// In which way what is named is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    Alone(&'a LockName),
    BesideReaders(&'a LockName),
    Permits { name: &'a LockName, count: u32, of: u32 },
    Together(&'a [LockName]),
}

impl Way<'_> {
    pub(crate) fn names(&self) -> &[LockName] {
        match self {
            Way::Alone(name) | Way::BesideReaders(name) | Way::Permits { name, .. } => std::slice::from_ref(*name),
            Way::Together(names) => names,
        }
    }

    /// How each of them is held.
    pub(crate) fn mode(&self) -> Mode {
        match *self {
            Way::Alone(_) | Way::Together(_) => Mode::Exclusive,
            Way::BesideReaders(_) => Mode::Shared,
            Way::Permits { count, of, .. } => Mode::Permits { count, of },
        }
    }
}

impl Wanted {
    /// In which way it is held.
    pub(crate) fn way(&self) -> Way<'_> {
        match (&self.names[..], self.permits, self.of) {
            ([name], Some(count), Some(of)) => Way::Permits { name, count, of },
            ([name], ..) if self.shared => Way::BesideReaders(name),
            ([name], ..) => Way::Alone(name),
            (names, ..) => Way::Together(names),
        }
    }

    /// Puts the names into the order in which everything is told of them.
    pub(super) fn sort(&mut self) {
        self.names.sort();
    }

    pub(super) fn refusal(&self) -> Option<String> {
        if let Some(pair) = self.names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("the lock {:?} is named twice", pair[0]));
        }
        if self.names.len() > MOST_LOCKS {
            return Some(format!("{} locks are named; {MOST_LOCKS} at once is the most", self.names.len()));
        }
        let given = [(self.shared, "--shared"), (self.permits.is_some(), "--permits")];
        if let Some(refusal) = given.iter().find_map(|(given, flag)| self.about_one(*given, flag)) {
            return Some(refusal);
        }
        if let (Some(count), Some(of)) = (self.permits, self.of)
            && count > of
        {
            return Some(format!("--permits {count} is more than there are: --of {of}"));
        }
        None
    }

    /// Why a flag that is given does not go with several names.
    fn about_one(&self, given: bool, flag: &str) -> Option<String> {
        (given && self.names.len() > 1).then(|| format!("{flag} is about one lock, and {} are named", self.names.len()))
    }
}

impl Run {
    pub(super) fn refusal(&self) -> Option<String> {
        let refusal = self.wanted.refusal().or_else(|| self.wanted.about_one(self.once_per.is_some(), "--once-per"));
        if refusal.is_some() {
            return refusal;
        }
        let most = self.taking.max_hold.unwrap_or(Duration::MAX);
        if self.min_hold > most {
            return Some(format!("--min-hold {:?} is longer than --max-hold {most:?}", self.min_hold));
        }
        self.guarded.refusal(&self.taking).or_else(|| self.taking.refusal())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The election; its leader holds the lock of this name
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    /// What everybody is told of this leader, for instance its address; up to 4096 bytes
    #[arg(long, value_name = "TEXT", value_parser = word, default_value = "", hide_default_value = true)]
    pub(crate) word: String,
    /// Among those who wait, the highest leads next; with `never` this process waits and never leads
    #[arg(long, value_name = "N|never", value_parser = priority, env = "FENCEPOST_PRIORITY", allow_negative_numbers = true)]
    pub(crate) priority: Option<Priority>,
    /// Stop after one leadership
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) taking: Taking,
    #[command(flatten)]
    pub(crate) guarded: Guarded,
}

impl Elect {
    pub(super) fn refusal(&self) -> Option<String> {
        if self.taking.labels.iter().any(|(key, _)| key == PRIORITY) {
            return Some(format!("the label {PRIORITY:?} is what --priority sets"));
        }
        self.guarded.refusal(&self.taking).or_else(|| self.taking.refusal())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Once {
    /// What the command is run once for, up to 507 bytes; the lock of the name once/KEY is held meanwhile
    #[arg(value_parser = name)]
    pub(crate) key: LockName,
    /// How long what it printed is kept, from its end on; after that the key is new
    #[arg(long, value_name = "SPAN", value_parser = ttl, default_value = "24h")]
    pub(crate) keep: Ttl,
    /// What the key stands for, in place of the command and its arguments: asking with another is refused with 65
    #[arg(long, value_name = "TEXT")]
    fingerprint: Option<OsString>,
    /// A command that fails is not kept, so that the next one to ask runs it again
    #[arg(long)]
    pub(crate) retry_failed: bool,
    #[command(flatten)]
    pub(crate) taking: Taking,
    #[command(flatten)]
    pub(crate) guarded: Guarded,
}

impl Once {
    /// What the key stands for. No argument has a zero byte in it.
    pub(crate) fn payload(&self) -> Vec<u8> {
        match &self.fingerprint {
            Some(stated) => stated.as_bytes().to_vec(),
            None => self.guarded.command.join(OsStr::new("\0")).into_vec(),
        }
    }

    pub(super) fn refusal(&self) -> Option<String> {
        self.guarded.refusal(&self.taking).or_else(|| self.taking.refusal())
    }
}

/// How a command is run, whatever is held.
#[derive(Debug, Args)]
pub(crate) struct Guarded {
    /// Insist on a fence: refuse a store that cannot issue one
    #[arg(long)]
    pub(crate) fenced: bool,
    /// What happens to the command when the lease is lost
    #[arg(long, value_name = "WHAT", default_value = "term", ignore_case = true)]
    pub(crate) on_lost: OnLost,
    /// The time between asking the command to end and killing it [default: a sixth of the TTL, at most 10s]
    ///
    /// At most half of the TTL: the lease must have had its chance of being renewed before the command is asked.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    grace: Option<Duration>,
    /// The exit code for "another holds the lock" and "not due"
    #[arg(long, value_name = "N", default_value_t = exit::BUSY)]
    pub(crate) busy_code: u8,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl Guarded {
    /// The grace asked for, or the default for this TTL.
    pub(crate) fn grace(&self, taking: &Taking) -> Duration {
        let lasting = taking.max_hold.map_or(taking.ttl.get(), |most| most.min(taking.ttl.get()));
        self.grace.unwrap_or((lasting / 6).min(Duration::from_secs(10)))
    }

    fn refusal(&self, taking: &Taking) -> Option<String> {
        let (grace, ttl) = (self.grace(taking), taking.ttl.get());
        if grace > ttl / 2 {
            return Some(format!(
                "a --grace of {grace:?} leaves a --ttl of {ttl:?} no time for renewal; half is the most"
            ));
        }
        if let Some(most) = taking.max_hold.filter(|most| grace >= *most) {
            return Some(format!("a --grace of {grace:?} leaves nothing of a --max-hold of {most:?}"));
        }
        let nothing = self.command.first().is_some_and(|program| program == "--" || program.is_empty());
        nothing.then(|| "the command after -- is empty or another --".into())
    }
}

/// How a lock is taken.
#[derive(Clone, Debug, Args)]
pub(crate) struct Taking {
    /// How long the lock outlives this process, on stores that expire; 10ms to 365d
    #[arg(long, value_name = "SPAN", value_parser = ttl, default_value = "30s")]
    pub(crate) ttl: Ttl,
    /// The longest time to wait, connecting included; 0s tries once [default: as long as it takes]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    /// The longest time to hold the lock
    #[arg(long, value_name = "SPAN", value_parser = positive_span)]
    pub(crate) max_hold: Option<Duration>,
    /// A label that listings show; may be repeated, up to 1024 bytes in all
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
}

/// The most bytes of all labels together: a store keeps them in the lock's record, along with the rest of it.
const LABELS: usize = 1024;

impl Taking {
    pub(super) fn refusal(&self) -> Option<String> {
        let mut keys: Vec<_> = self.labels.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("the label {:?} is given twice", pair[0]));
        }
        let size: usize = self.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        (size > LABELS).then(|| format!("the labels have {size} bytes; {LABELS} is the most"))
    }
}
