//! A client process, as the laboratory directs it.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_history::{Event, Holding, Phase, What};
use fencepost_servers::{Host, Network, WallClock, end_with_us, mark};
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::oneshot,
};

use crate::{
    agent::{Came, Client, Order, Role, Said, Task},
    fault::{signal_group, stands_still},
    recorder::Recorder,
    run::Faults,
    scenario::Stop,
    stage::{LOCK, PATIENCE},
    stand::{self, Way},
};

/// How client processes are started: a program that runs [`crate::agent::run`] with the role that follows as JSON.
#[derive(Clone, Debug)]
pub struct AgentCommand {
    /// The program.
    pub program: std::path::PathBuf,
    /// What comes before the role.
    pub arguments: Vec<String>,
}

/// How long a process takes to die that was killed.
const DIES: Duration = Duration::from_secs(5);

const SUSPENDED: &str = "machine suspended";

/// What waits for an order's end.
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<(Came, String)>>>>;

/// An order that is under way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    what: String,
    came: oneshot::Receiver<(Came, String)>,
}

/// A client process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) name: String,
    child: Child,
    orders: ChildStdin,
    waiting: Waiting,
    next: u64,
    grants: u32,
    recorder: Recorder,
    resource: SocketAddr,
    /// Since when it is.
    suspended: Option<u64>,
    pub(crate) faults: Faults,
    /// The host that it is alone on, where networks are cut by the kernel.
    pub(crate) host: Option<Arc<Host>>,
    /// What stands between it and the store, where the scenario asked for that.
    pub(crate) to_store: Option<Way>,
    /// What stands between it and the resource.
    pub(crate) to_resource: Option<Network>,
}

impl Player {
    pub(crate) async fn start(
        role: &Role,
        agent: &AgentCommand,
        clock: Option<&WallClock>,
        host: Option<Arc<Host>>,
        recorder: Recorder,
        resource: SocketAddr,
    ) -> Result<Self, Stop> {
        let mut command = command(role, agent)?;
        if let Some(clock) = clock {
            clock.govern(command.as_std_mut());
        }
        mark(command.as_std_mut());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
        let runtime = tokio::runtime::Handle::current();
        let mut child = match &host {
            None => command.spawn()?,
            Some(host) => host.inside(|| {
                let _within = runtime.enter();
                command.spawn()
            })??,
        };
        if let Some(pid) = child.id() {
            end_with_us(pid, "KILL"); // also one that stands still
        }
        let orders = child.stdin.take().expect("a pipe was asked for");
        let output = child.stdout.take().expect("a pipe was asked for");
        let (ready, is_ready) = oneshot::channel();
        let waiting = Waiting::default();
        tokio::spawn(listen(output, ready, waiting.clone(), recorder.clone()));
        let name = role.name.clone();
        match tokio::time::timeout(PATIENCE, is_ready).await {
            Ok(Ok(())) => {}
            _ => return Err(Stop::Failed(format!("client {name} did not get ready"))),
        }
        let (next, grants, suspended, faults) = (0, 0, None, Faults::Made);
        let (to_store, to_resource) = (None, None);
        Ok(Self {
            name,
            faults,
            child,
            orders,
            waiting,
            next,
            grants,
            recorder,
            resource,
            suspended,
            host,
            to_store,
            to_resource,
        })
    }

    /// Begins to take the lock, under a new grant. `wait` is the limit; without one it waits as long as it takes.
    pub(crate) async fn begin_to_acquire(
        &mut self,
        ttl: Duration,
        wait: Option<Duration>,
        renews: bool,
    ) -> Result<(String, UnderWay), Stop> {
        self.begin_to_hold(Holding::Alone, ttl, wait, renews).await
    }

    /// The same as one of several.
    pub(crate) async fn begin_to_hold(
        &mut self,
        holding: Holding,
        ttl: Duration,
        wait: Option<Duration>,
        renews: bool,
    ) -> Result<(String, UnderWay), Stop> {
        self.grants += 1;
        let grant = format!("{}{}", self.name, self.grants);
        let task = Task::Acquire {
            lock: LOCK.to_owned(),
            grant: grant.clone(),
            ttl_ms: millis(ttl),
            wait_ms: wait.map(millis),
            renews,
            holding,
        };
        Ok((grant, self.order(task).await?))
    }

    /// Takes the lock and answers the grant. It must be granted.
    pub(crate) async fn acquire(&mut self, ttl: Duration) -> Result<String, Stop> {
        let (grant, under_way) = self.begin_to_acquire(ttl, None, true).await?;
        under_way.expect(Came::Yes).await?;
        Ok(grant)
    }

    /// Takes it as one of several. It must be granted.
    pub(crate) async fn acquire_beside(&mut self, holding: Holding, ttl: Duration) -> Result<String, Stop> {
        let (grant, under_way) = self.begin_to_hold(holding, ttl, None, true).await?;
        under_way.expect(Came::Yes).await?;
        Ok(grant)
    }

    pub(crate) async fn check(&mut self, grant: &str) -> Result<UnderWay, Stop> {
        self.order(Task::Check { grant: grant.to_owned() }).await
    }

    pub(crate) async fn release(&mut self, grant: &str) -> Result<UnderWay, Stop> {
        self.order(Task::Release { grant: grant.to_owned() }).await
    }

    pub(crate) async fn read(&mut self, grant: &str) -> Result<UnderWay, Stop> {
        let resource = self.way_to_resource();
        self.order(Task::Read { grant: grant.to_owned(), resource }).await
    }

    pub(crate) async fn write(&mut self, grant: &str) -> Result<UnderWay, Stop> {
        let resource = self.way_to_resource();
        self.order(Task::Write { grant: grant.to_owned(), resource }).await
    }

    /// Stops the process where it stands. Orders that are given meanwhile lie ready when it wakes.
    pub(crate) fn pause(&self) -> Result<(), Stop> {
        self.faulty("paused (SIGSTOP)", Phase::Begin, self.stop())
    }

    /// Lets it run on.
    pub(crate) fn wake(&self) -> Result<(), Stop> {
        self.signalled("paused (SIGSTOP)", Phase::End, Signal::CONT)
    }

    /// Whether it is told the time by this clock.
    pub(crate) fn reads(&self, clock: &WallClock) -> bool {
        self.child.id().is_some_and(|pid| clock.governs(pid))
    }

    fn stop(&self) -> Result<(), Stop> {
        if self.faults == Faults::Made {
            signal_group(self.child.id(), Signal::STOP)?;
        }
        stands_still(self.child.id())
    }

    /// Stops it as a suspended machine stops: its monotonic clock will not have counted the time until it [resumes](Self::resume).
    pub(crate) fn suspend(&mut self, clock: &WallClock) -> Result<(), Stop> {
        let reads_it = self.reads(clock);
        let done = if reads_it {
            self.stop()
        } else {
            Err(Stop::NotInstalled(format!("{} does not read the clock that is to stand still", self.name)))
        };
        self.suspended = Some(crate::agent::now());
        self.faulty(SUSPENDED, Phase::Begin, done)
    }

    /// Lets it run on.
    pub(crate) fn resume(&mut self, clock: &WallClock) -> Result<(), Stop> {
        let since = self.suspended.take().unwrap_or_else(crate::agent::now);
        let slept = Duration::from_nanos(crate::agent::now() - since);
        let done = clock.have_slept(slept).map_err(Stop::NotInstalled);
        self.faulty(SUSPENDED, Phase::End, done.and_then(|()| signal_group(self.child.id(), Signal::CONT)))
    }

    /// Kills it, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<(), Stop> {
        // Nobody can say when it ran last. It is not charged with what it may have believed after the signal was sent.
        let at = crate::agent::now();
        let done = match self.faults {
            Faults::Made => signal_group(self.child.id(), Signal::KILL),
            Faults::Pretended => Ok(()),
        };
        let ended = tokio::time::timeout(DIES, self.child.wait()).await.is_ok_and(|ended| ended.is_ok());
        let done = done.and_then(|()| match ended {
            true => Ok(()),
            false => Err(Stop::Ineffective(format!("{} lives on", self.name))),
        });
        self.faulty_at(at, "killed (SIGKILL)", Phase::Begin, done)?;
        self.recorder.add(Event { at, by: self.name.clone(), what: What::Died });
        Ok(())
    }

    /// How much of what it sent to the store has arrived, in bytes, where that can be told.
    pub(crate) fn arrived(&self) -> u64 {
        self.to_store.as_ref().map_or(0, |way| way.network.arrived())
    }

    fn signalled(&self, fault: &str, phase: Phase, sent: Signal) -> Result<(), Stop> {
        self.faulty(fault, phase, signal_group(self.child.id(), sent))
    }

    fn faulty(&self, fault: &str, phase: Phase, done: Result<(), Stop>) -> Result<(), Stop> {
        self.faulty_at(crate::agent::now(), fault, phase, done)
    }

    fn faulty_at(&self, at: u64, fault: &str, phase: Phase, done: Result<(), Stop>) -> Result<(), Stop> {
        let (fault, target, installed) = (fault.to_owned(), self.name.clone(), done.is_ok());
        self.recorder.add(Event { at, by: "lab".to_owned(), what: What::Fault { fault, target, phase, installed } });
        done
    }

    fn way_to_resource(&self) -> SocketAddr {
        self.to_resource.as_ref().map_or(self.resource, |network| network.address)
    }

    async fn order(&mut self, task: Task) -> Result<UnderWay, Stop> {
        self.next += 1;
        let what = format!("{} by {}", verb(&task), self.name);
        let (sender, came) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(self.next, sender);
        let mut line = serde_json::to_vec(&Order { order: self.next, task }).expect("an order as JSON");
        line.push(b'\n');
        self.orders.write_all(&line).await?;
        self.orders.flush().await?;
        Ok(UnderWay { what, came })
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // Also what it started, and what stands still. One that has ended is no failure.
        let _ = signal_group(self.child.id(), Signal::KILL);
    }
}

impl UnderWay {
    /// Waits for its end. Whether it was granted; false when others hold it.
    pub(crate) async fn granted(self) -> Result<bool, Stop> {
        match self.came().await? {
            (Came::Failed, why) => Err(Stop::Failed(why)),
            (came, _) => Ok(came == Came::Yes),
        }
    }

    /// Waits for its end.
    pub(crate) async fn came(self) -> Result<(Came, String), Stop> {
        match tokio::time::timeout(PATIENCE, self.came).await {
            Ok(Ok(came)) => Ok(came),
            Ok(Err(_)) => Err(Stop::Failed(format!("{}: the process ended", self.what))),
            Err(_) => Err(Stop::Failed(format!("{}: no end within {PATIENCE:?}", self.what))),
        }
    }

    /// Waits for its end, which must be this one.
    pub(crate) async fn expect(self, wanted: Came) -> Result<(), Stop> {
        let what = self.what.clone();
        match self.came().await? {
            (came, _) if came == wanted => Ok(()),
            (came, why) => Err(Stop::Failed(format!("{what}: {came:?} ({why}), and it should have been {wanted:?}"))),
        }
    }
}

fn command(role: &Role, agent: &AgentCommand) -> Result<Command, Stop> {
    let scheme = role.url.split_once(':').map_or("", |(scheme, _)| scheme);
    let (peer, module, package) = match (role.client, scheme) {
        (Client::RedisPy, _) => ("redis", "redis", "python3-redis"),
        (Client::Kazoo, _) => ("kazoo", "kazoo", "python3-kazoo"),
        (Client::Etcdctl, _) => ("etcdctl", "json", "python3"),
        (Client::Naive, "etcd") => ("naive-etcd", "json", "python3"),
        (Client::Naive, "zookeeper") => ("naive-zookeeper", "kazoo", "python3-kazoo"),
        (Client::Naive, "file") => ("naive-file", "json", "python3"),
        (Client::Library | Client::Naive | Client::Monotonic | Client::Counter | Client::Advisory, _) => {
            let mut command = Command::new(&agent.program);
            command.args(&agent.arguments).arg(serde_json::to_string(role).expect("a role as JSON"));
            return Ok(command);
        }
    };
    if role.client == Client::Etcdctl {
        stand::needs("etcdctl", "etcd-client")?;
    }
    let missing = || Stop::Missing(format!("no Python here knows {module}: install the package {package}"));
    let mut command = Command::new(python_with(module).ok_or_else(missing)?);
    command.args(["-u", "-c", include_str!("agent/peer.py"), peer, &role.name, &role.url]);
    Ok(command)
}

/// The first Python on the path that knows a module: a package of the system's is known to the system's Python, and
/// another one may come before it. Asked once for each, since starting Python takes its time.
fn python_with(module: &str) -> Option<PathBuf> {
    static FOUND: Mutex<BTreeMap<String, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let knows_it = |python: &PathBuf| {
        let mut import = std::process::Command::new(python);
        import
            .args(["-c", &format!("import {module}")])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.entry(module.to_owned()).or_insert_with(|| stand::all_found("python3").find(knows_it)).clone()
}

/// Until the process ends.
async fn listen(output: ChildStdout, ready: oneshot::Sender<()>, waiting: Waiting, recorder: Recorder) {
    let mut ready = Some(ready);
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Said::Event(event)) => recorder.add(event),
            Ok(Said::Done { order, came, why }) => {
                let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&order);
                // Whoever gave the order may not care any more.
                drop(waiting.map(|waiting| waiting.send((came, why))));
            }
            Ok(Said::Ready { .. }) => drop(ready.take().map(|ready| ready.send(()))),
            Err(error) => recorder.tell("lab", What::Note { text: format!("a client said {line:?}: {error}") }),
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn verb(task: &Task) -> &'static str {
    match task {
        Task::Acquire { .. } => "acquire",
        Task::Check { .. } => "check",
        Task::Release { .. } => "release",
        Task::Read { .. } => "read",
        Task::Write { .. } => "write",
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
