//! ZooKeeper servers under control.

mod admin;
mod ensemble;

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use crate::zookeeper::{
    admin::{Admin, Refused},
    ensemble::ZooKeeperEnsemble,
};
use crate::{lan::Place, log, restore, small_disk::SmallDisk, snapshot, wall_clock::WallClock};

/// Where Debian puts the classes.
const JARS: &str = "/usr/share/java";

/// What a server needs, of Debian's packages `zookeeper`, `libslf4j-java` and what they depend on.
const CLASSES: [&str; 13] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-nop",
    "metrics-core",
    "snappy-java",
    // A server with TLS speaks through Netty.
    "netty-all",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
];

/// Where a server keeps its data, below its directory.
const DATA: &str = "version-2";

/// How long a tick is. Sessions last two at least.
pub const TICK: Duration = Duration::from_millis(100);

/// One ZooKeeper server, alone or of an ensemble.
#[derive(Debug)]
pub struct ZooKeeperServer {
    address: SocketAddr,
    directory: TempDir,
    /// Where it does not run on the machine's wall clock.
    clock: Option<Arc<WallClock>>,
    place: Place,
    /// What its data are on, where that is no ordinary disk.
    disk: Option<Arc<SmallDisk>>,
    process: Mutex<Option<Child>>,
}

impl ZooKeeperServer {
    /// Starts one that stands alone.
    ///
    /// # Panics
    /// When Java or the classes are missing, or the server does not answer.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with lines of configuration beyond the harness's own.
    ///
    /// # Panics
    /// As [`start`](ZooKeeperServer::start).
    pub fn start_with(lines: &[String]) -> Self {
        Self::start_all(lines, None, &Place::default())
    }

    /// Starts one that stands alone, on a wall clock of its own.
    ///
    /// # Panics
    /// As [`start`](ZooKeeperServer::start).
    pub fn start_on(clock: &Arc<WallClock>) -> Self {
        Self::start_all(&[], Some(clock), &Place::default())
    }

    /// Starts one that stands alone, on a host of a network that can be cut.
    ///
    /// # Panics
    /// As [`start`](ZooKeeperServer::start).
    pub fn start_in(place: &Place) -> Self {
        Self::start_all(&[], None, place)
    }

    /// Starts one that stands alone, whose data are on this disk.
    ///
    /// # Panics
    /// As [`start`](ZooKeeperServer::start).
    pub fn start_on_disk(disk: &Arc<SmallDisk>) -> Self {
        // The last line with a name counts.
        let mut server = Self::start_all(&[format!("dataDir={}", disk.path().display())], None, &Place::default());
        server.disk = Some(disk.clone());
        server
    }

    fn start_all(lines: &[String], clock: Option<&Arc<WallClock>>, place: &Place) -> Self {
        // Between looking for a free port and binding it another server may take it: try anew then.
        for _ in 0..10 {
            let mut server = Self::prepared(place, lines);
            server.clock = clock.cloned();
            server.spawn();
            if server.answers_soon() {
                return server;
            }
        }
        panic!("ZooKeeper does not answer")
    }

    /// One that stands alone and that everybody in this process who asks meanwhile shares: a Java virtual machine is dear.
    ///
    /// # Panics
    /// As [`start`](ZooKeeperServer::start).
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<ZooKeeperServer>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Not running yet.
    fn prepared(place: &Place, lines: &[String]) -> Self {
        let address = place.free_address();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut config = format!(
            "tickTime={}\ndataDir={}\nclientPortAddress={}\nclientPort={}\n",
            TICK.as_millis(),
            directory.path().display(),
            address.ip(),
            address.port(),
        );
        config.push_str("admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n");
        // The rules of locks need short sessions and long ones.
        config.push_str("minSessionTimeout=200\nmaxSessionTimeout=2147483647\n");
        for line in lines {
            let _ = writeln!(config, "{line}");
        }
        std::fs::write(directory.path().join("zoo.cfg"), config).expect("a file");
        Self { address, directory, clock: None, place: place.clone(), disk: None, process: Mutex::default() }
    }

    /// Where it listens to clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.address)
    }

    /// Where its data are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Child::id)
    }

    /// Ends it as `kill -9` does. Its data stay.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Removes its data. For a server that was killed.
    pub fn forget(&self) {
        let _ = std::fs::remove_dir_all(self.directory.path().join(DATA));
    }

    /// A copy of its data as they are.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn snapshot(&self) -> std::io::Result<TempDir> {
        snapshot(&self.directory.path().join(DATA))
    }

    /// Puts the data of a copy in the place of its own. For a server that was killed.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn restore(&self, copy: &Path) -> std::io::Result<()> {
        restore(copy, &self.directory.path().join(DATA))
    }

    /// Stops it as SIGSTOP does: its connections stay open and say nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts it again on the same address with the data it had, and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    pub fn launch(&self) {
        self.spawn();
        assert!(self.answers_soon(), "ZooKeeper does not answer");
    }

    /// The server's answer to one of its four-letter commands; `None` when it does not answer.
    pub fn command(&self, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// A figure of the server's own, by its name in `mntr`.
    pub fn figure(&self, name: &str) -> Option<f64> {
        let figures = self.command("mntr")?;
        let line = figures.lines().find(|line| line.split('\t').next() == Some(name))?;
        line.split('\t').nth(1)?.trim().parse().ok()
    }

    /// `leader`, `follower` or `standalone`; `None` while it serves nobody.
    pub fn mode(&self) -> Option<String> {
        let answer = self.command("srvr")?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// What it said, or the end of that.
    pub fn log(&self) -> String {
        log::read(self.directory.path())
    }

    /// A client for an administrator's errands.
    ///
    /// # Panics
    /// When the server gives no session.
    pub fn admin(&self) -> Admin {
        Admin::connect(self.address).expect("ZooKeeper gives a session")
    }

    fn spawn(&self) {
        let mut classes = String::new();
        for class in CLASSES {
            let jar = format!("{JARS}/{class}.jar");
            assert!(Path::new(&jar).exists(), "{jar} is missing: install the package zookeeper");
            let _ = write!(classes, "{jar}:");
        }
        let mut java = Command::new("java");
        log::keep(&mut java, self.directory.path()).expect("a log");
        if let Some(clock) = &self.clock {
            clock.govern(&mut java);
        }
        java
            // Short lived: little heap, little compiling, what is shared between virtual machines is.
            .args(["-Xmx192m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"])
            // A killed process loses nothing that was written.
            .args(["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64"])
            // An election waits neither for a server that does not answer nor for a vote that went astray.
            .args(["-Dzookeeper.cnxTimeout=500", "-Dzookeeper.fastleader.maxNotificationInterval=400"])
            .args(["-cp", &classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .arg(self.directory.path().join("zoo.cfg"))
            .stdin(Stdio::null());
        let process = self.place.spawn(&mut java, "KILL").expect("the package default-jre-headless must be installed");
        *self.process() = Some(process);
    }

    fn answers_soon(&self) -> bool {
        for _ in 0..1500 {
            if self.mode().is_some() {
                return true;
            }
            if self.process().as_mut().is_none_or(|process| process.try_wait().is_ok_and(|ended| ended.is_some())) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        false
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid as i32)).expect("the server runs");
        kill_process(pid, signal).expect("a signal to our own child");
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ZooKeeperServer {
    fn drop(&mut self) {
        self.kill();
    }
}
