//! The command line: one definition for each flag feeds the help, the man page and the completions.

mod advising;
mod running;
pub(crate) mod values;

use std::{os::unix::ffi::OsStrExt, time::Duration};

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use fencepost::{Fence, LockName, Namespace, Owner, Ttl, memory, registry};

use self::values::{distance, fence, name, namespace, owner, ttl};
pub(crate) use self::{
    advising::Advise,
    running::{Elect, Guarded, Once, Run, Taking, Wanted, Way},
    values::Priority,
};
use crate::exit;

/// Distributed locks for people who have to be right about it.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, max_term_width = 100)]
#[command(after_help = format!("{}\n\n{}", EXAMPLES, exit::CODES))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  fencepost run nightly-report -- ./report.sh
      excludes a job on this host; no server needed
  FENCEPOST_STORE=redis://10.0.0.5 fencepost run --wait 30s nightly-report -- ./report.sh
      excludes it on all hosts that share the Redis server
  fencepost ls
      shows who holds and who waits";

const RUNS: &str = "\
Examples:
  fencepost run --wait 0s nightly-report -- ./report.sh --all
  fencepost run --shared prices -- ./export.sh
  fencepost run --permits 1 --of 4 encoders -- ./encode.sh
  fencepost run stock orders -- ./reconcile.sh
  fencepost run --once-per 14m cleanup -- ./cleanup.sh";

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    // Its help is made of what this build knows.
    #[arg(long, value_name = "URL", env = "FENCEPOST_STORE", hide_env_values = true, global = true)]
    #[arg(help = store_help(), long_help = format!("{}\n\n{PASSWORDS}", store_help()))]
    store: Option<String>,
    /// The prefix that keeps one application's locks apart from another's
    #[arg(long, env = "FENCEPOST_NAMESPACE", value_parser = namespace, default_value = "fencepost", global = true)]
    pub(crate) namespace: Namespace,
    /// Tell programs: what is asked for as JSON on stdout; else, and after a failure, one last line of JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Tell people nothing; the exit code says it
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Log what happens to stderr; twice for every step
    #[arg(short, long, action = clap::ArgAction::Count, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
}

const PASSWORDS: &str = "\
A password on the command line shows in the list of processes: put the URL into the environment, or the password into a \
file named by the URL's option password_file.";

/// The stores of this build by their URLs. The memory store is left out: it ends with the process, so that a command
/// which takes a lock there excludes nobody.
fn store_help() -> String {
    let stores = registry::SCHEMES.iter().filter(|scheme| scheme.names != memory::SCHEME.names);
    let urls = stores.map(|scheme| {
        let (name, url) = (scheme.names[0], (scheme.capabilities)().url);
        // A store of several schemes states its first one's.
        let own = url.split_once(':').is_some_and(|(of, _)| of == name);
        if own { url.to_owned() } else { format!("{name}:…") }
    });
    let urls = urls.collect::<Vec<_>>().join(", ");
    format!("Where the locks live: {urls} [default: a directory in the user's state directory]")
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a lock, or several, or permits
    ///
    /// The command gets FENCEPOST_LOCK, FENCEPOST_OWNER and, where the store issues one, FENCEPOST_FENCE in its
    /// environment, with one line for each lock where several are held; FENCEPOST_SLOTS with --permits; and
    /// FENCEPOST_STORE and FENCEPOST_NAMESPACE, so that a fencepost inside it works on the same store. A
    /// URL with a password in it is not passed on. Signals sent to this process reach its process group. When the lease is in danger it is asked to end
    /// (TERM) and killed before the lease can pass on, with everything it started. What it leaves running when it ends
    /// may finish for one --grace, is then ended the same way, and the lock is held until nothing is left.
    #[command(after_help = format!("{RUNS}\n\n{}", exit::CODES))]
    Run(Run),
    /// Run a command once for a key; who asks again gets what it printed to stdout, and its exit code
    ///
    /// Whoever asks while it runs waits as --wait says. A command that dies with its host, or loses its lease, is run again
    /// from the beginning by the next one to ask; one that was interrupted through this process, too. What it printed is kept
    /// up to 256 KiB (half of that where it is no UTF-8); past that it is noted that it was run, and asking again ends with 65.
    #[command(after_help = format!("Example: fencepost once invoice/2026-11 --keep 40d -- ./send-invoice.sh 2026-11\n\n{}", exit::CODES))]
    Once(Once),
    /// Run a command while being the leader of an election, again and again
    ///
    /// Waits to lead, runs the command, and gives the leadership up when it ends; then it stands for leader again, after a
    /// pause when the command had ended within seconds. When the leadership is lost the command is ended first, as by run.
    /// INT, TERM and QUIT end all of it. The command gets what it gets from run, and FENCEPOST_TERM, which rises with each
    /// leader.
    #[command(after_help = format!("Example: fencepost elect scheduler --word \"$HOSTNAME:8080\" -- ./scheduler\n\n{}", exit::CODES))]
    Elect(Elect),
    /// Find out what to use, a lock or something better, by a few questions
    ///
    /// Asks on a terminal what no flag says; the answer has the call in Rust, the same by hand, and what can still go
    /// wrong. --store is judged by its URL and not connected to. docs/choosing.md has all of it on one page.
    #[command(after_help = "Example: fencepost advise --shared yes --need job --breach work")]
    Advise(Advise),
    /// Take a lock for a script, or several, or permits, and print the owner value and fence
    ///
    /// One line for each lock, in the order of their names, where several are taken; with --permits the slots stand behind,
    /// and a dash where there is no fence. Each is released by its own owner value; the first of several that is released or
    /// lost gives all of them back.
    ///
    /// A keeper in the background renews the lease until it is released or lost, or the calling process ends. Inside
    /// $(...) the caller may be a subshell that ends at once: say --for-pid $$ there. When the owner value cannot be
    /// printed, the lock is given back.
    #[command(after_help = r#"Example: read -r owner fence <<< "$(fencepost acquire backup --for-pid $$)""#)]
    Acquire(Acquire),
    /// Extend a lease that `acquire` printed, by its TTL from now
    #[command(after_help = r#"Example: fencepost renew backup --owner "$owner" --ttl 5m"#)]
    Renew(Renew),
    /// Tell whether a grant that `acquire` printed is still held: exit code 0, or 76 when it is lost
    #[command(after_help = r#"Example: fencepost check backup --owner "$owner" || exit"#)]
    Check(Grant),
    /// Give back a grant that `acquire` printed
    ///
    /// Exit code 76 when it was lost before.
    #[command(after_help = r#"Example: fencepost release backup --owner "$owner""#)]
    Release(Grant),
    /// Show every lock that is held or waited for, and every group with its members
    #[command(after_help = "Example: fencepost ls --json | jq -r '.[].name'")]
    Ls,
    /// Show who holds a lock, who waits for it, and who is in the group of that name
    #[command(after_help = "Example: fencepost who nightly-report")]
    Who(Named),
    /// Take a lock from its holder by force; the holder is told, waiters keep their places
    ///
    /// Exit code 75 when it is held with another fence than the one named.
    #[command(after_help = "Example: fencepost break nightly-report --if-fence 42")]
    Break(Break),
    /// Print each change of a lock's holders and waiters, until interrupted
    #[command(after_help = "Example: fencepost watch nightly-report --json")]
    Watch(Named),
    /// Print who leads an election, and each change, until interrupted
    #[command(after_help = "Example: fencepost observe scheduler --json")]
    Observe(Named),
    /// Make the tables that a PostgreSQL store needs, or print the SQL that makes them
    ///
    /// Needs a role that may create a schema; the printed SQL ends with the rights that a role needs to use locks. Done
    /// before, it changes nothing.
    #[command(after_help = "Example: fencepost --store postgres://admin@10.0.0.5/shop migrate")]
    Migrate(Migrate),
    /// Let a table of yours refuse stale fences, or print the SQL that does
    ///
    /// Adds a column for the newest fence that each row has seen, and a trigger that refuses an update which would set it
    /// back. Write with the fence from then on: UPDATE orders SET state = 'shipped', fence = $fence WHERE id = $id
    #[command(after_help = "Example: fencepost --store postgres://admin@10.0.0.5/shop fence-table orders")]
    FenceTable(FenceTable),
    /// Measure what locks cost on the store, next to what the bare store costs
    ///
    /// Works on names of its own and gives everything back. Run it on a machine that does nothing else; ratios to the
    /// floor hold on a busy one too.
    #[command(after_help = "Example: fencepost --store redis://10.0.0.5 bench --only alone --only tasks")]
    Bench(Bench),
    /// Break locks on purpose, on servers of its own, and see what holds
    ///
    /// Starts real servers and processes, brings them into a danger, records what happens, and judges it.
    #[command(subcommand, after_help = "Example: fencepost lab run kleppmann-pause")]
    Lab(crate::lab::Lab),
    /// Print the completions for a shell
    #[command(after_help = "Example: fencepost completions bash > /etc/bash_completion.d/fencepost")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or the one of a verb
    #[command(after_help = "Example: fencepost man > /usr/local/share/man/man1/fencepost.1")]
    Man {
        /// The verb
        verb: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Insist on a fence: refuse a store that cannot issue one
    #[arg(long)]
    pub(crate) fenced: bool,
    /// Leave no keeper: the lock lasts for its TTL unless `fencepost renew` extends it
    #[arg(long, conflicts_with_all = ["for_pid", "detach", "max_hold"])]
    pub(crate) no_keep: bool,
    /// Keep it for as long as this process lives, instead of the caller
    #[arg(long, value_name = "PID", conflicts_with = "detach", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) for_pid: Option<i32>,
    /// Keep it whatever becomes of the caller, until it is released
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) grant: Grant,
    /// How long the lock shall last from now on
    #[arg(long, value_name = "SPAN", value_parser = ttl, default_value = "30s")]
    pub(crate) ttl: Ttl,
}

#[derive(Debug, Args)]
pub(crate) struct Grant {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    /// The owner value that `acquire` printed
    #[arg(long, value_parser = owner, env = "FENCEPOST_OWNER", hide_env_values = true)]
    pub(crate) owner: Owner,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    /// Only while it is held with this fence
    #[arg(long, value_name = "FENCE", value_parser = fence)]
    pub(crate) if_fence: Option<Fence>,
}

#[derive(Debug, Args)]
pub(crate) struct FenceTable {
    /// The table, as TABLE or SCHEMA.TABLE
    pub(crate) table: String,
    /// The column for fences
    #[arg(long, value_name = "NAME", default_value = "fence")]
    pub(crate) column: String,
    /// Print the SQL and do nothing; --store may be left out
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Print the SQL and do nothing; --store may be left out
    #[arg(long)]
    pub(crate) print: bool,

    /// Print only what tables of this older version lack
    #[arg(long, value_name = "VERSION", requires = "print")]
    pub(crate) from: Option<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// How long all of it may take
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// Only this work: alone, tasks, handover, leases or startup; or primitives, crowds, fairness or transfers, which are run
    /// only when asked for; may be repeated
    #[arg(long, value_name = "WORK")]
    pub(crate) only: Vec<fencepost_bench::Work>,
    /// Measure transfers on this store as well, in turns with the other; may be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) beside: Vec<String>,
    /// Put the store this round trip away, through relays on this machine; 10ms for instance
    #[arg(long, value_name = "ROUND_TRIP", value_parser = distance)]
    pub(crate) distance: Option<Duration>,
}

impl Arguments {
    /// Reads the command line.
    ///
    /// # Errors
    /// A text for stdout when help or the version was asked for, else one line that says what is wrong.
    pub(crate) fn read() -> Result<Self, Refusal> {
        let mut arguments = Self::try_parse().map_err(|error| Refusal::of(&error))?;
        let refusal = match &mut arguments.verb {
            Verb::Run(run) => {
                run.wanted.sort();
                run.refusal()
            }
            Verb::Elect(elect) => elect.refusal(),
            Verb::Once(once) => once.refusal(),
            Verb::Acquire(acquire) => {
                acquire.wanted.sort();
                acquire.wanted.refusal().or_else(|| acquire.taking.refusal())
            }
            _ => None,
        };
        refusal.map_or(Ok(arguments), |line| Err(Refusal::Wrong(line)))
    }
}

impl Global {
    /// The store's URL, if one was said.
    pub(crate) fn stated_store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// The store's URL: as said, or a directory in the user's state directory.
    ///
    /// # Errors
    /// When there is neither a URL nor a home to keep state in.
    pub(crate) fn store(&self) -> Result<String, String> {
        match &self.store {
            // Most often a variable that somebody thought was set. The default would exclude nobody elsewhere.
            Some(url) if url.is_empty() => {
                return Err("the store's URL is empty; leave out --store and FENCEPOST_STORE for the default".into());
            }
            Some(url) => return Ok(url.clone()),
            None => {}
        }
        let stated = |variable: &str| std::env::var_os(variable).filter(|path| path.as_bytes().starts_with(b"/"));
        let state = stated("XDG_STATE_HOME").or_else(|| {
            let mut home = stated("HOME")?;
            home.push("/.local/state");
            Some(home)
        });
        let state = state.ok_or("neither --store, XDG_STATE_HOME nor HOME says where the locks live")?;
        const KEPT: &percent_encoding::AsciiSet =
            &percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
        Ok(format!("file:{}/fencepost", percent_encoding::percent_encode(state.as_bytes(), KEPT)))
    }
}

/// Whether JSON was asked for, in a command line that cannot be understood.
pub(crate) fn asks_for_json() -> bool {
    std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// Why a command line is not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Help or the version was asked for.
    Told(String),
    /// It is wrong.
    Wrong(String),
}

impl Refusal {
    fn of(error: &clap::Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Refusal::Told(text),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                Refusal::Wrong("which verb? see `fencepost --help`".into())
            }
            _ => {
                // The first paragraph says what is wrong, at times over several lines; the rest is usage.
                let said = text.strip_prefix("error: ").unwrap_or(&text);
                let said: Vec<_> = said.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
                Refusal::Wrong(format!("{}; see `fencepost --help`", said.join(" ")))
            }
        }
    }
}
