//! A process of its own that takes, holds and reports, and that a test can pause and kill.
//!
//! It is started with a URL and a namespace, obeys one [`Order`] per line on its standard input and writes one
//! [`Report`] per line to its standard output, both as JSON.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
    time::Duration,
};

use fencepost_core::claim::Mode;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    crowd::{Crowd, Served},
    site::Site,
    steps::within,
};

/// What the process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the fields say it
pub enum Order {
    /// Take a lock, waiting as long as it takes, and report its loss.
    Acquire { name: String, ttl_ms: u64, mode: Mode },
    /// Lead, campaigning for as long as it takes, and report the loss.
    Lead { name: String, ttl_ms: u64 },
    /// Be in a group.
    Join { group: String, id: String, ttl_ms: u64 },
    /// Say whether it is held.
    Check { name: String },
    /// Give it back.
    Release { name: String },
    /// Take it again and again, and log each fence.
    LogFences { name: String, count: u64, log: PathBuf },
    /// Add to a ledger under it.
    Increment { name: String, count: u64, ledger: PathBuf },
    /// Work through keys, each to be done once by all processes together.
    WorkOnce { keys: u64, log: PathBuf },
    /// Let a crowd loose.
    Crowd(Crowd),
}

/// What the process says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the fields say it
pub enum Report {
    /// Its client is open.
    Ready,
    /// It holds.
    Acquired { name: String },
    /// It is in the group.
    Joined,
    /// It lost.
    Lost { name: String, reason: String },
    /// The answer to a check: `None` while it is held.
    Checked { name: String, lost: Option<String> },
    /// The answer to a release.
    Released { name: String },
    /// All fences are logged.
    Logged,
    /// All additions are done.
    Incremented { refused: u64 },
    /// All keys are done, by whomever.
    Worked,
    /// The crowd has gone.
    Served(Served),
    /// Something failed.
    Failed { message: String },
}

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    orders: ChildStdin,
    reports: Lines<BufReader<ChildStdout>>,
    kept: Vec<Report>,
}

/// Longer than anything a rule waits for by itself.
const PATIENCE: Duration = Duration::from_secs(60);

static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();

pub(crate) fn found_at(path: &Path) {
    EXECUTABLE.get_or_init(|| path.to_owned());
}

impl Holder {
    /// Starts a process that opens the site's store.
    pub async fn start(site: &dyn Site) -> Self {
        let executable = EXECUTABLE.get().expect("`prove` says where the executable is");
        let mut child = Command::new(executable)
            .args([site.url(), site.namespace().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the helper executable");
        let orders = child.stdin.take().expect("a pipe");
        let reports = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut holder = Self { child, orders, reports, kept: Vec::new() };
        holder.hear("it is ready", |report| matches!(report, Report::Ready).then_some(())).await;
        holder
    }

    /// Takes a lock.
    pub async fn acquire(&mut self, name: &str, ttl: Duration) {
        self.start_acquiring(name, ttl).await;
        self.acquired(name).await;
    }

    /// Begins to take a lock.
    pub async fn start_acquiring(&mut self, name: &str, ttl: Duration) {
        self.start_acquiring_as(name, ttl, Mode::Exclusive).await;
    }

    /// Takes a lock as reader, or permits.
    pub async fn acquire_as(&mut self, name: &str, ttl: Duration, mode: Mode) {
        self.start_acquiring_as(name, ttl, mode).await;
        self.acquired(name).await;
    }

    async fn start_acquiring_as(&mut self, name: &str, ttl: Duration, mode: Mode) {
        self.order(&Order::Acquire { name: name.to_owned(), ttl_ms: millis(ttl), mode }).await;
    }

    /// Leads an election.
    pub async fn lead(&mut self, name: &str, ttl: Duration) {
        self.order(&Order::Lead { name: name.to_owned(), ttl_ms: millis(ttl) }).await;
        self.acquired(name).await;
    }

    /// Joins a group.
    pub async fn join(&mut self, group: &str, id: &str, ttl: Duration) {
        let (group, id) = (group.to_owned(), id.to_owned());
        self.order(&Order::Join { group, id, ttl_ms: millis(ttl) }).await;
        self.hear("it is in the group", |report| matches!(report, Report::Joined).then_some(())).await;
    }

    /// Waits until a lock it began to take is held.
    pub async fn acquired(&mut self, name: &str) {
        self.hear("it holds", |report| matches!(report, Report::Acquired { name: held } if held == name).then_some(()))
            .await;
    }

    /// What the first look at a lease says after a pause: the reason when it is lost. The order
    /// lies in the pipe before the process runs again, so that the look races with its watchdog.
    pub async fn look_after_resuming(&mut self, name: &str) -> Option<String> {
        self.order(&Order::Check { name: name.to_owned() }).await;
        self.resume();
        self.seen(name).await
    }

    /// What a look at a lease says: the reason when it is lost.
    pub async fn look(&mut self, name: &str) -> Option<String> {
        self.order(&Order::Check { name: name.to_owned() }).await;
        self.seen(name).await
    }

    async fn seen(&mut self, name: &str) -> Option<String> {
        self.hear("it looks", |report| match report {
            Report::Checked { name: looked_at, lost } if looked_at == name => Some(lost.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until it reports a loss, and answers the reason.
    pub async fn lost(&mut self, name: &str) -> String {
        self.hear("it is told of its loss", |report| match report {
            Report::Lost { name: lost, reason } if lost == name => Some(reason.clone()),
            _ => None,
        })
        .await
    }

    /// Gives a lock back.
    pub async fn release(&mut self, name: &str) {
        self.order(&Order::Release { name: name.to_owned() }).await;
        self.hear("it gave back", |report| {
            matches!(report, Report::Released { name: free } if free == name).then_some(())
        })
        .await;
    }

    /// Begins to log fences.
    pub async fn start_logging(&mut self, name: &str, count: u64, log: &Path) {
        self.order(&Order::LogFences { name: name.to_owned(), count, log: log.to_owned() }).await;
    }

    /// Logs fences and answers when it has.
    pub async fn log_fences(&mut self, name: &str, count: u64, log: &Path) {
        self.start_logging(name, count, log).await;
        self.hear("it logged", |report| matches!(report, Report::Logged).then_some(())).await;
    }

    /// Adds to a ledger; answers how many writes were refused.
    pub async fn increment(&mut self, name: &str, count: u64, ledger: &Path) -> u64 {
        self.order(&Order::Increment { name: name.to_owned(), count, ledger: ledger.to_owned() }).await;
        self.hear("it added", |report| if let Report::Incremented { refused } = report { Some(*refused) } else { None })
            .await
    }

    /// Begins to work through keys that are to be done once.
    pub async fn start_working_once(&mut self, keys: u64, log: &Path) {
        self.order(&Order::WorkOnce { keys, log: log.to_owned() }).await;
    }

    /// Works through keys that are to be done once, and answers when it has.
    pub async fn work_once(&mut self, keys: u64, log: &Path) {
        self.start_working_once(keys, log).await;
        self.hear("it worked", |report| matches!(report, Report::Worked).then_some(())).await;
    }

    /// Lets a crowd loose in it.
    pub async fn crowd(&mut self, crowd: Crowd) -> Served {
        self.order(&Order::Crowd(crowd)).await;
        self.hear("the crowd is served", |report| match report {
            Report::Served(served) => Some(served.clone()),
            _ => None,
        })
        .await
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Stops it where it stands.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Ends it as `kill -9` does.
    pub fn kill(self) {
        self.signal(Signal::KILL);
    }

    /// Its number among the processes.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("it runs");
        kill_process(pid, signal).expect("a process of ours");
    }

    async fn order(&mut self, order: &Order) {
        let mut line = serde_json::to_vec(order).expect("an order as JSON");
        line.push(b'\n');
        self.orders.write_all(&line).await.expect("it reads its orders");
    }

    /// Waits for the report that `wanted` takes; the others are kept for later.
    async fn hear<T>(&mut self, what: &str, wanted: impl Fn(&Report) -> Option<T>) -> T {
        if let Some(place) = self.kept.iter().position(|report| wanted(report).is_some()) {
            return wanted(&self.kept.remove(place)).expect("it was wanted");
        }
        within(PATIENCE, what, async {
            loop {
                let line = self.reports.next_line().await.expect("a pipe").expect("it still runs");
                let report: Report = serde_json::from_str(&line).expect("a report");
                if let Report::Failed { message } = &report {
                    panic!("the process failed: {message}");
                }
                if let Some(answer) = wanted(&report) {
                    return answer;
                }
                self.kept.push(report);
            }
        })
        .await
    }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).expect("a TTL")
}
