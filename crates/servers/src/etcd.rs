mod ways;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{etcd::ways::Ways, lan::Place, log, network::Weather, wall_clock::WallClock};

/// The beginning of the keys that fill it.
const FILLING: &str = "filling/";

/// An etcd cluster of its own, of one member or several, with its data in memory where the system allows it.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    settings: Vec<String>,
    tls: bool,
    directory: TempDir,
    /// What lies between the members, where it can be disturbed.
    ways: Option<Ways>,
    /// Where they do not run on the machine's wall clock.
    clock: Option<Arc<WallClock>>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: SocketAddr,
    peer: SocketAddr,
    /// Serves health and metrics without TLS and without a login.
    metrics: SocketAddr,
    /// Where its data are; another place after a restore.
    data: Mutex<PathBuf>,
    place: Place,
    process: Mutex<Option<Child>>,
}

impl Member {
    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self) -> MutexGuard<'_, PathBuf> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EtcdCluster {
    /// Starts a cluster of so many members and waits until it takes writes.
    ///
    /// # Panics
    /// When the executable is missing, or the cluster does not answer.
    pub fn start(members: usize) -> Self {
        Self::start_with(members, &[])
    }

    /// Starts one with settings beyond the harness's own, as on the command line. With a certificate among them, clients
    /// speak TLS.
    ///
    /// # Panics
    /// As [`start`](EtcdCluster::start).
    pub fn start_with(members: usize, settings: &[&str]) -> Self {
        Self::start_in(&vec![Place::default(); members], settings)
    }

    /// Starts one whose members are at these places.
    ///
    /// # Panics
    /// As [`start`](EtcdCluster::start).
    pub fn start_in(places: &[Place], settings: &[&str]) -> Self {
        Self::start_all(places, settings, None)
    }

    /// Starts one of a single member on a wall clock of its own.
    ///
    /// # Panics
    /// As [`start`](EtcdCluster::start).
    pub fn start_on(clock: &Arc<WallClock>, settings: &[&str]) -> Self {
        Self::start_all(&[Place::default()], settings, Some(clock))
    }

    fn start_all(places: &[Place], settings: &[&str], clock: Option<&Arc<WallClock>>) -> Self {
        let tls = settings.iter().any(|setting| setting.starts_with("--cert-file"));
        // Between looking for a free port and binding it another server may take it: try anew then.
        for _ in 0..10 {
            let directory = directory();
            let members = (0..).zip(places).map(|(number, place)| member(number, directory.path(), place)).collect();
            let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
            let cluster = Self { members, settings, tls, directory, ways: None, clock: clock.cloned() };
            (0..cluster.members.len()).for_each(|member| cluster.spawn(member));
            if (0..cluster.members.len()).all(|member| cluster.is_healthy_soon(member)) {
                return cluster;
            }
        }
        panic!("etcd does not answer")
    }

    /// Starts one whose members can be cut off from each other.
    ///
    /// # Panics
    /// As [`start`](EtcdCluster::start).
    pub async fn start_apart(members: usize) -> Self {
        for _ in 0..10 {
            let directory = directory();
            let here = Place::default();
            let members: Vec<_> = (0..members).map(|number| member(number, directory.path(), &here)).collect();
            let peers: Vec<_> = members.iter().map(|member| member.peer).collect();
            let ways = Some(Ways::to(&peers).await.expect("free ports"));
            let cluster = Self { members, settings: Vec::new(), tls: false, directory, ways, clock: None };
            (0..cluster.members.len()).for_each(|member| cluster.spawn(member));
            // The relays go on meanwhile.
            let waited = tokio::task::spawn_blocking(move || {
                let healthy = (0..cluster.members.len()).all(|member| cluster.is_healthy_soon(member));
                healthy.then_some(cluster)
            });
            if let Some(cluster) = waited.await.expect("a look at the members") {
                return cluster;
            }
        }
        panic!("etcd does not answer")
    }

    /// Cuts a member off from the others, not from its clients: nothing arrives, and connections stay open.
    ///
    /// # Panics
    /// When the cluster was not [started apart](EtcdCluster::start_apart).
    pub fn cut_off(&self, member: usize) {
        self.ways().set(member, Weather::Silence);
    }

    /// Ends the cutting off. Connections that lost something are broken, as a network does after a while.
    ///
    /// # Panics
    /// When the cluster was not [started apart](EtcdCluster::start_apart).
    pub fn reunite(&self, member: usize) {
        self.ways().set(member, Weather::Cut);
        self.ways().set(member, Weather::Fair);
    }

    fn ways(&self) -> &Ways {
        self.ways.as_ref().expect("a cluster that was started apart")
    }

    /// How many members it has, running or not.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Where a member listens to the others.
    pub fn peer_address(&self, member: usize) -> SocketAddr {
        self.members[member].peer
    }

    /// Where a member listens to clients.
    pub fn address(&self, member: usize) -> SocketAddr {
        self.members[member].client
    }

    /// The cluster's URL for clients.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|member| member.client.to_string()).collect();
        format!("{}://{}", if self.tls { "etcds" } else { "etcd" }, hosts.join(","))
    }

    /// The process id of a member while it runs.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].process().as_ref().map(Child::id)
    }

    /// Ends a member as `kill -9` does. Its data stay.
    pub fn kill(&self, member: usize) {
        if let Some(mut process) = self.members[member].process().take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Removes a member's data. For one that was killed.
    pub fn forget(&self, member: usize) {
        let _ = std::fs::remove_dir_all(&*self.members[member].data());
    }

    /// Starts a member that was killed, with the data it had, without waiting for it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn launch(&self, member: usize) {
        self.spawn(member);
    }

    /// Waits until a member takes writes.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for(&self, member: usize) {
        assert!(self.is_healthy_soon(member), "etcd does not answer");
    }

    /// Stops a member as a frozen machine would stop: connections stay open and nothing is answered.
    pub fn pause(&self, member: usize) {
        self.signal(member, Signal::STOP);
        // The last of its threads may run for a moment yet.
        let Some(pid) = self.pid(member) else { return };
        let stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
        while !stopped() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets a paused member run on.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    /// The member that leads, as it says itself.
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|member| self.leads(*member))
    }

    /// Whether a member leads, as it says itself.
    pub fn leads(&self, member: usize) -> bool {
        self.metric(member, "etcd_server_is_leader") == Some(1.0)
    }

    /// Waits for a leader.
    ///
    /// # Panics
    /// When there is none after ten seconds.
    pub fn wait_for_leader(&self) -> usize {
        for _ in 0..500 {
            if let Some(leader) = self.leader() {
                return leader;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("the cluster has no leader")
    }

    /// A number from a member's own metrics; `None` when it does not answer.
    pub fn metric(&self, member: usize, name: &str) -> Option<f64> {
        let text = get(self.members[member].metrics, "/metrics").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// The second of the day by a member's wall clock, as it heads its answers; `None` when it does not answer.
    pub fn second_of_day(&self, member: usize) -> Option<i64> {
        let text = get(self.members[member].metrics, "/health").ok()?;
        let date = text.lines().find_map(|line| line.strip_prefix("Date: "))?;
        let mut parts = date.split(' ').nth(4)?.split(':').map(|part| part.trim().parse::<i64>().ok());
        let [hours, minutes, seconds] = [parts.next()??, parts.next()??, parts.next()??];
        Some((hours * 60 + minutes) * 60 + seconds)
    }

    /// Runs `etcdctl` against the running members and answers what it printed.
    ///
    /// # Panics
    /// When the executable is missing, or it fails.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        let output = self.etcdctl_command(arguments).output().expect("the package etcd-client must be installed");
        assert!(output.status.success(), "etcdctl {arguments:?}: {}", complaint(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `etcdctl` with these arguments, to be run as the caller likes.
    pub fn etcdctl_command(&self, arguments: &[&str]) -> Command {
        let running = self.members.iter().filter(|member| member.process().is_some());
        let endpoints: Vec<_> = running.map(|member| member.client.to_string()).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", endpoints.join(",")).args(arguments);
        command
    }

    /// Saves a snapshot of the cluster's data.
    ///
    /// # Panics
    /// When `etcdctl` fails.
    pub fn snapshot(&self) -> PathBuf {
        let path = self.directory.path().join("snapshot.db");
        let address = self.members[0].client.to_string();
        let _ = std::fs::remove_file(&path);
        let mut save = self.etcdctl_command(&["snapshot", "save", &path.to_string_lossy()]);
        let output =
            save.env("ETCDCTL_ENDPOINTS", address).output().expect("the package etcd-client must be installed");
        assert!(output.status.success(), "etcdctl snapshot save: {}", complaint(&output));
        path
    }

    /// Ends all members and starts them again with the data of a snapshot: the cluster as it was then.
    ///
    /// # Panics
    /// When `etcdctl` fails, or the cluster does not answer.
    pub fn restore(&self, snapshot: &Path) {
        let cluster = self.initial_cluster();
        for (number, member) in self.members.iter().enumerate() {
            self.kill(number);
            let data = tempfile::tempdir_in(self.directory.path()).expect("a directory").keep().join("data");
            let (name, peer) = (&*member.name, self.peer(number));
            let data_text = data.to_string_lossy().into_owned();
            let what = ["snapshot", "restore", &snapshot.to_string_lossy(), "--name", name, "--data-dir", &data_text]
                .map(str::to_owned);
            let whose = ["--initial-cluster", &cluster, "--initial-advertise-peer-urls", &peer].map(str::to_owned);
            let arguments: Vec<&str> = what.iter().chain(&whose).map(String::as_str).collect();
            let mut restore = self.etcdctl_command(&arguments);
            let output = restore.env_remove("ETCDCTL_ENDPOINTS").output().expect("the package etcd-client");
            assert!(output.status.success(), "etcdctl snapshot restore: {}", complaint(&output));
            *member.data() = data;
        }
        (0..self.members.len()).for_each(|member| self.spawn(member));
        (0..self.members.len()).for_each(|member| self.wait_for(member));
    }

    /// Puts values until the quota of its disk is used up, and it takes no write any more.
    ///
    /// # Errors
    /// In words, when it takes more than any quota of ours.
    pub fn fill(&self) -> Result<(), String> {
        let value = self.directory.path().join("filling");
        std::fs::write(&value, vec![b'x'; 1 << 20]).map_err(|error| error.to_string())?;
        for number in 0..64 {
            let value = std::fs::File::open(&value).map_err(|error| error.to_string())?;
            let mut put = self.etcdctl_command(&["put", &format!("{FILLING}{number}")]);
            let output = put.stdin(value).output().map_err(|error| error.to_string())?;
            if complaint(&output).contains("database space exceeded") {
                return Ok(());
            }
        }
        Err("it takes 64 MB and is not full".to_owned())
    }

    /// Removes those values, and makes it serve again.
    ///
    /// # Panics
    /// When `etcdctl` fails.
    pub fn clear(&self) {
        self.etcdctl(&["del", "--prefix", FILLING]);
        let status = self.etcdctl(&["get", FILLING, "--write-out=fields"]);
        let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        self.etcdctl(&["compaction", "--physical", revision.expect("an answer has a revision").trim()]);
        self.etcdctl(&["defrag"]);
        self.etcdctl(&["alarm", "disarm"]);
    }

    /// What all members said, or the end of that.
    pub fn log(&self) -> String {
        log::read(self.directory.path())
    }

    fn initial_cluster(&self) -> String {
        let peers =
            (0..self.members.len()).map(|number| format!("{}={}", self.members[number].name, self.peer(number)));
        peers.collect::<Vec<_>>().join(",")
    }

    /// Where the others reach a member.
    fn peer(&self, number: usize) -> String {
        let address = self.ways.as_ref().map_or(self.members[number].peer, |ways| ways.addresses[number]);
        format!("http://{address}")
    }

    fn spawn(&self, number: usize) {
        let member = &self.members[number];
        let scheme = if self.tls { "https" } else { "http" };
        let (client, peer) = (format!("{scheme}://{}", member.client), format!("http://{}", member.peer));
        // One member alone elects itself after the election timeout; several on a busy machine need a longer one.
        let (heartbeat, election) = if self.members.len() == 1 { ("20", "200") } else { ("60", "600") };
        let mut etcd = Command::new("etcd");
        log::keep(&mut etcd, self.directory.path()).expect("a log");
        if let Some(clock) = &self.clock {
            clock.govern(&mut etcd);
        }
        etcd.args(["--name", &member.name, "--data-dir", &member.data().to_string_lossy()])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &self.peer(number)])
            .args(["--initial-cluster", &self.initial_cluster(), "--initial-cluster-state", "new"])
            .args(["--listen-metrics-urls", &format!("http://{}", member.metrics)])
            .args(["--heartbeat-interval", heartbeat, "--election-timeout", election])
            .args(["--logger", "zap", "--log-level", "error"])
            .args(&self.settings)
            .stdin(Stdio::null());
        let process = member.place.spawn(&mut etcd, "KILL").expect("the package etcd-server must be installed");
        if let Some(ways) = &self.ways {
            ways.runs_as(number, process.id());
        }
        *member.process() = Some(process);
    }

    fn is_healthy_soon(&self, number: usize) -> bool {
        let member = &self.members[number];
        for _ in 0..1500 {
            if get(member.metrics, "/health").is_ok_and(|text| text.contains("\"true\"")) {
                return true;
            }
            let ended = |process: &mut Child| process.try_wait().is_ok_and(|ended| ended.is_some());
            if member.process().as_mut().is_none_or(ended) {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn signal(&self, member: usize, signal: Signal) {
        let pid = self.pid(member).and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("the member runs");
        kill_process(pid, signal).expect("a process of ours");
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }
}

/// etcd waits for the disk at each write, which says nothing about a lock: in memory where there is such a place.
fn directory() -> TempDir {
    let builder = || tempfile::Builder::new().prefix("etcd-").to_owned();
    builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir()).expect("a temporary directory")
}

fn member(number: usize, directory: &Path, place: &Place) -> Member {
    let name = format!("m{number}");
    let data = Mutex::new(directory.join(&name));
    let (client, peer, metrics) = (place.free_address(), place.free_address(), place.free_address());
    Member { name, client, peer, metrics, data, place: place.clone(), process: Mutex::default() }
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
