//! PostgreSQL servers of their own.

mod protocol;

use std::{
    ffi::OsStr,
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{lan::Place, small_disk::SmallDisk, wall_clock::WallClock};

/// The user and group `nobody` of every Linux: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

/// For speed; a process that is killed loses nothing that was written to the kernel.
const SETTINGS: &[&str] = &["fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=200"];

/// A cluster of its own with the superuser `postgres`, whom it trusts, and the database `postgres`.
#[derive(Debug)]
pub struct PostgresServer {
    address: SocketAddr,
    settings: Vec<String>,
    data: PathBuf,
    directory: TempDir,
    /// What the data are on, where that is no ordinary disk.
    _disk: Option<Arc<SmallDisk>>,
    /// Where it does not run on the machine's wall clock.
    clock: Option<Arc<WallClock>>,
    place: Place,
    process: Mutex<Option<Child>>,
}

/// The superuser, with a connection of its own for each statement.
#[derive(Clone, Copy, Debug)]
pub struct Administrator(SocketAddr);

impl Administrator {
    /// Sends one statement, or several. The rows are the last one's.
    ///
    /// # Panics
    /// When the server refuses it.
    pub fn sql(self, database: &str, text: &str) -> Rows {
        self.try_sql(database, text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    /// Sends one statement, or several. The rows are the last one's.
    ///
    /// # Errors
    /// What the server said.
    pub fn try_sql(self, database: &str, text: &str) -> Result<Rows, String> {
        protocol::query(self.0, database, text)
    }
}

/// The rows of an answer, as text.
pub type Rows = Vec<Vec<Option<String>>>;

impl PostgresServer {
    /// Starts one.
    ///
    /// # Panics
    /// When the executables are missing, or the server does not answer.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with settings beyond the harness's own, as `name=value`.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn start_with(settings: &[&str]) -> Self {
        Self::on_new_data(settings, None, &Place::default(), None, initialized)
    }

    /// Starts one on a wall clock of its own.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn start_on(clock: &Arc<WallClock>) -> Self {
        Self::on_new_data(&[], Some(clock), &Place::default(), None, initialized)
    }

    /// Starts one on a host of a network that can be cut.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn start_in(place: &Place) -> Self {
        Self::on_new_data(&[], None, place, None, |data| {
            initialized(data);
            if place.host().is_some() {
                let file = data.join("pg_hba.conf");
                let others = fs::read_to_string(&file).expect("the server's data");
                let everybody = "host all,replication all 10.0.0.0/8 trust";
                fs::write(&file, format!("{everybody}\n{others}")).expect("the server's data");
            }
        })
    }

    /// Starts one whose data are on this disk.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn start_on_disk(disk: &Arc<SmallDisk>) -> Self {
        give_away(disk.path());
        // What it keeps ready for later is room that others need.
        let settings = ["min_wal_size=2MB", "max_wal_size=4MB"];
        Self::on_new_data(&settings, None, &Place::default(), Some(disk), initialized)
    }

    /// Starts a standby of this server, which streams from it. `name` is what `synchronous_standby_names` knows it by.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn standby(&self, name: &str) -> Self {
        self.standby_in(name, &Place::default())
    }

    /// The same on a host of a network that can be cut.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn standby_in(&self, name: &str, place: &Place) -> Self {
        let (primary, ip) = (self.address, self.address.ip().to_string());
        let standby = Self::on_new_data(&[], None, place, None, |data| {
            run(base_backup(primary, data).arg("--write-recovery-conf"));
            let port = primary.port();
            let connection =
                format!("primary_conninfo = 'host={ip} port={port} user=postgres application_name={name}'");
            fs::write(data.join("postgresql.auto.conf"), connection).expect("the standby's directory");
        });
        standby.wait_for("SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'");
        standby
    }

    /// Turns a standby into a primary, and waits until it is one.
    ///
    /// # Panics
    /// When it does not become one.
    pub fn promote(&self) {
        self.sql("postgres", "SELECT pg_promote()");
        self.wait_for("SELECT NOT pg_is_in_recovery()");
    }

    /// A database as SQL, as `pg_dump` writes it.
    ///
    /// # Panics
    /// When it cannot be dumped.
    pub fn dump(&self, database: &str) -> String {
        let mut dump = unprivileged("pg_dump");
        dump.args(["-h", "127.0.0.1", "-p", &self.address.port().to_string(), "-U", "postgres", "--inserts"]);
        let text = String::from_utf8(run(dump.arg(database))).expect("a database in UTF-8");
        // Commands of psql, which only psql understands.
        text.lines().filter(|line| !line.starts_with('\\')).map(|line| format!("{line}\n")).collect()
    }

    /// Demands a password of this role from now on.
    ///
    /// # Panics
    /// When its data are gone.
    pub fn demand_passwords_of(&self, role: &str) {
        self.demand(&format!("host all {role} 127.0.0.1/32 scram-sha-256"));
    }

    /// Puts rules for logins before the one that trusts everybody, as they stand in `pg_hba.conf`.
    ///
    /// # Panics
    /// When its data are gone.
    pub fn demand(&self, rules: &str) {
        let file = self.data.join("pg_hba.conf");
        let others = fs::read_to_string(&file).expect("the server's data");
        // A login that was trusted before must not be needed to make the change known.
        fs::write(&file, format!("{rules}\n{others}")).expect("the server's data");
        signal(self.pid().expect("the server runs"), "HUP");
    }

    /// Offers TLS from now on.
    ///
    /// # Panics
    /// When the files cannot be copied.
    pub fn encrypt(&self, certificate: &Path, key: &Path, authority: &Path) {
        for (from, name) in [(certificate, "server.crt"), (key, "server.key"), (authority, "root.crt")] {
            let to = self.data.join(name);
            fs::copy(from, &to).expect("a certificate");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).expect("our file");
            give_away(&to);
        }
        let settings = "ALTER SYSTEM SET ssl = on";
        self.sql("postgres", settings);
        self.sql("postgres", "ALTER SYSTEM SET ssl_ca_file = 'root.crt'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT current_setting('ssl') = 'on'");
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a database for clients.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address)
    }

    /// The process id of its first process while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Child::id)
    }

    /// Ends it as a crash does: all its processes at once, without a checkpoint. Its data stay.
    pub fn kill(&self) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Not KILL, after which the shared memory and the other processes stay.
            signal(process.id(), "QUIT");
            let _ = process.wait();
        }
    }

    /// Stops it and all its processes as a frozen machine would stop: connections stay open and nothing is answered.
    pub fn freeze(&self) {
        self.signal_all("STOP");
    }

    /// Lets it run on.
    pub fn thaw(&self) {
        self.signal_all("CONT");
    }

    /// The first process first: stopped, it starts no others.
    fn signal_all(&self, name: &str) {
        let Some(first) = self.pid() else { return };
        signal(first, name);
        children_of(first).into_iter().for_each(|child| signal(child, name));
    }

    /// A copy of its data as they are, as `pg_basebackup` makes it.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn back_up(&self) -> PathBuf {
        let backup = self.data.with_file_name("backup");
        run(&mut base_backup(self.address, &backup));
        backup
    }

    /// Puts a copy in the place of its data. For a server that was killed.
    ///
    /// # Errors
    /// When it cannot be moved there.
    pub fn restore(&self, backup: &Path) -> std::io::Result<()> {
        fs::remove_dir_all(&self.data)?;
        fs::rename(backup, &self.data)
    }

    /// Begins anew with nothing. For a server that was killed.
    ///
    /// # Errors
    /// When its data cannot be removed.
    pub fn forget(&self) -> std::io::Result<()> {
        fs::remove_dir_all(&self.data)?;
        initialized(&self.data);
        Ok(())
    }

    /// Starts it again on the same address with the data it had.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn launch(&self) {
        assert!(self.try_launch(), "postgres does not answer: {}", self.log());
    }

    /// Who can go to another thread and send statements from there.
    pub fn administrator(&self) -> Administrator {
        Administrator(self.address)
    }

    /// As [`Administrator::sql`].
    ///
    /// # Panics
    /// When the server refuses it.
    pub fn sql(&self, database: &str, text: &str) -> Rows {
        self.administrator().sql(database, text)
    }

    /// As [`Administrator::try_sql`].
    ///
    /// # Errors
    /// What the server said.
    pub fn try_sql(&self, database: &str, text: &str) -> Result<Rows, String> {
        self.administrator().try_sql(database, text)
    }

    /// The first column of the first row.
    ///
    /// # Panics
    /// When there is none, or the server refuses it.
    pub fn value(&self, database: &str, text: &str) -> String {
        let first = self.sql(database, text).into_iter().next().and_then(|row| row.into_iter().next());
        first.flatten().unwrap_or_else(|| panic!("{text}: no value"))
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("data.log")
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn on_new_data(
        settings: &[&str],
        clock: Option<&Arc<WallClock>>,
        place: &Place,
        disk: Option<&Arc<SmallDisk>>,
        make: impl Fn(&Path),
    ) -> Self {
        let settings: Vec<String> = SETTINGS.iter().chain(settings).map(|setting| (*setting).to_owned()).collect();
        // Between looking for a free port and binding it another server may take it: try anew then.
        for _ in 0..10 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            give_away(directory.path());
            let data = disk.map_or(directory.path(), |disk| disk.path()).join("data");
            let _ = fs::remove_dir_all(&data); // of an earlier try
            make(&data);
            let server = Self {
                address: place.free_address(),
                settings: settings.clone(),
                data,
                directory,
                _disk: disk.cloned(),
                clock: clock.cloned(),
                place: place.clone(),
                process: Mutex::default(),
            };
            if server.try_launch() {
                return server;
            }
            if !server.log().contains("could not bind") {
                panic!("postgres does not start: {}", server.log());
            }
        }
        panic!("postgres does not answer")
    }

    fn try_launch(&self) -> bool {
        let log = fs::File::create(self.log_file()).expect("a log");
        let mut postgres = unprivileged("postgres");
        postgres.arg("-D").arg(&self.data).args(["-p", &self.address.port().to_string()]);
        // No socket file: the directory's name may be too long for one.
        let listens = format!("listen_addresses={}", self.address.ip());
        for setting in self.settings.iter().map(String::as_str).chain([&*listens, "unix_socket_directories="]) {
            postgres.args(["-c", setting]);
        }
        if let Some(clock) = &self.clock {
            clock.govern(&mut postgres);
        }
        postgres.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut process = self.place.spawn(&mut postgres, "QUIT").expect("postgres can be run");
        for _ in 0..1000 {
            if self.try_sql("postgres", "SELECT 1").is_ok() {
                *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
                return true;
            }
            if process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        signal(process.id(), "QUIT");
        let _ = process.wait();
        false
    }

    /// Waits for a condition that nothing announces.
    ///
    /// # Panics
    /// When it does not come true within ten seconds.
    pub fn wait_for(&self, condition: &str) {
        for _ in 0..1000 {
            let answer = self.try_sql("postgres", condition);
            if answer.is_ok_and(|rows| rows.first().and_then(|row| row[0].as_deref()) == Some("t")) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{condition} did not come true: {}", self.log());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The data of a new server.
fn initialized(data: &Path) {
    let mut initdb = unprivileged("initdb");
    initdb.arg("-D").arg(data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]);
    run(initdb.args(["--no-sync", "--wal-segsize=1"]));
}

/// An executable of the newest PostgreSQL, run as a user that PostgreSQL accepts.
fn unprivileged(executable: &str) -> Command {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let newest = installed.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok()).max();
        newest.map_or_else(PathBuf::new, |version| format!("/usr/lib/postgresql/{version}/bin").into())
    });
    unprivileged_program(directory.join(executable))
}

/// A program that refuses to run as root.
pub(crate) fn unprivileged_program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    command.current_dir("/").env("LC_ALL", "C");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Makes a directory the property of whom such a program runs as.
pub(crate) fn give_away(directory: &Path) {
    if is_root() {
        chown(directory, Some(NOBODY), Some(NOBODY)).expect("the directory is ours");
    }
}

/// Runs to its end; answers what it wrote.
fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("the package postgresql must be installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Copies a running server's data to `to`.
fn base_backup(server: SocketAddr, to: &Path) -> Command {
    let mut copy = unprivileged("pg_basebackup");
    copy.args(["-h", &server.ip().to_string(), "-p", &server.port().to_string(), "-U", "postgres", "-c", "fast"]);
    copy.arg("-D").arg(to).args(["--no-sync", "--wal-method=stream"]);
    copy
}

fn children_of(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    children.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}

fn is_root() -> bool {
    // The owner of what this process makes.
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| {
        use std::os::unix::fs::MetadataExt;
        tempfile::tempfile().and_then(|file| file.metadata()).is_ok_and(|made| made.uid() == 0)
    })
}

pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address")
}
