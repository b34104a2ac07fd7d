use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{lan::Place, log, restore, snapshot, wall_clock::WallClock};

/// Where a server keeps its append-only file, below its directory.
const DATA: &str = "appendonlydir";

/// A `redis-server` of its own. Every write is on disk before it is answered, so that a kill loses nothing.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    arguments: Vec<String>,
    directory: TempDir,
    /// What it demands from an administrator.
    password: Option<String>,
    /// Where it does not run on the machine's wall clock.
    clock: Option<Arc<WallClock>>,
    place: Place,
    process: Mutex<Option<Child>>,
}

/// A reply of the server, as far as an administrator's commands need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A number.
    Number(i64),
    /// A line or a string.
    Text(String),
    /// A list.
    List(Vec<Reply>),
    /// What the server refused, and why.
    Refused(String),
}

impl RedisServer {
    /// Starts one.
    ///
    /// # Panics
    /// When the executable is missing, or the server does not answer.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with settings beyond the harness's own, as on the command line.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn start_with(settings: &[&str]) -> Self {
        // Between looking for a free port and binding it another server may take it: try anew then.
        (0..10).find_map(|_| Self::start_at(free_address(), settings)).expect("redis-server answers")
    }

    /// Starts one on a wall clock of its own.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn start_on(clock: &Arc<WallClock>) -> Self {
        let start = |_| Self::start_at_on(free_address(), &[], Some(clock.clone()), Place::default());
        (0..10).find_map(start).expect("redis-server answers")
    }

    /// Starts one on a host of a network that can be cut.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn start_in(place: &Place) -> Self {
        // Nobody but we and those on its network can reach it, and it shall serve all of them.
        let open = ["--protected-mode", "no"];
        let start = |_| Self::start_at_on(place.free_address(), &open, None, place.clone());
        (0..10).find_map(start).expect("redis-server answers")
    }

    /// Starts one at a given address; `None` when it does not answer there.
    pub(crate) fn start_at(address: SocketAddr, settings: &[&str]) -> Option<Self> {
        Self::start_at_on(address, settings, None, Place::default())
    }

    fn start_at_on(
        address: SocketAddr,
        settings: &[&str],
        clock: Option<Arc<WallClock>>,
        place: Place,
    ) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (port, path) = (address.port().to_string(), directory.path().to_string_lossy().into_owned());
        let ip = address.ip().to_string();
        let fixed = ["--port", &port, "--bind", &ip, "--dir", &path, "--save", "", "--appendonly", "yes"];
        // A killed process loses nothing that was written.
        let fixed = fixed.into_iter().chain(["--appendfsync", "no", "--daemonize", "no"]);
        let arguments = fixed.chain(settings.iter().copied()).map(str::to_owned).collect();
        let server = Self { address, arguments, directory, password: None, clock, place, process: Mutex::default() };
        server.try_launch().then_some(server)
    }

    /// Starts a Sentinel with the lines of its configuration; `None` when it does not answer.
    pub(crate) fn start_sentinel(address: SocketAddr, lines: &str, password: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("sentinel.conf");
        let head = format!("port {}\nbind 127.0.0.1\ndir {}\n", address.port(), directory.path().display());
        std::fs::write(&file, head + lines).expect("the configuration is written");
        let arguments = vec![file.to_string_lossy().into_owned(), "--sentinel".to_owned()];
        let password = password.map(str::to_owned);
        let (clock, place) = (None, Place::default());
        let server = Self { address, arguments, directory, password, clock, place, process: Mutex::default() };
        server.try_launch().then_some(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Child::id)
    }

    /// Ends it as `kill -9` does. Its data stay.
    pub fn kill(&self) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Stops it as a frozen machine would stop: connections stay open and nothing is answered.
    ///
    /// # Panics
    /// When it does not run.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it run on.
    ///
    /// # Panics
    /// When it does not run.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).expect("the server runs");
        kill_process(pid, signal).expect("a signal to our own child");
    }

    /// Starts it again on the same address with the data it had.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn launch(&self) {
        assert!(self.try_launch(), "redis-server does not answer");
    }

    /// Removes its data. For a server that was killed.
    pub fn forget(&self) {
        let _ = std::fs::remove_dir_all(self.directory.path().join(DATA));
    }

    /// What it said, or the end of that.
    pub fn log(&self) -> String {
        log::read(self.directory.path())
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

    /// Sends one command on a connection of its own.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn command(&self, words: &[&str]) -> Reply {
        self.try_command(words).expect("redis-server answers")
    }

    fn try_launch(&self) -> bool {
        let mut command = Command::new("redis-server");
        if let Some(clock) = &self.clock {
            clock.govern(&mut command);
        }
        log::keep(&mut command, self.directory.path()).expect("a log");
        let process = self.place.spawn(command.args(&self.arguments).stdin(Stdio::null()), "KILL");
        let mut process = process.expect("the package redis-server must be installed");
        for _ in 0..500 {
            if self.is_up_as(process.id()) {
                *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
                return true;
            }
            if process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = process.kill();
        let _ = process.wait();
        false
    }

    /// Whether it answers, has read its data, and is the process that was started: another test's server may have
    /// taken the port just before.
    fn is_up_as(&self, pid: u32) -> bool {
        match self.try_command(&["INFO"]) {
            Ok(Reply::Text(info)) => {
                let says = |what: &str| info.lines().any(|line| line.trim() == what);
                says(&format!("process_id:{pid}")) && !says("loading:1")
            }
            Ok(Reply::Refused(why)) => !why.contains("LOADING"),
            _ => false,
        }
    }

    /// As [`command`](RedisServer::command), for a server that may be down.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn try_command(&self, words: &[&str]) -> std::io::Result<Reply> {
        Ok(self.try_commands(&[words])?.remove(0))
    }

    /// The text that it answers; empty when it answers something else or nothing.
    pub(crate) fn said(&self, words: &[&str]) -> String {
        match self.try_command(words) {
            Ok(Reply::Text(text)) => text,
            _ => String::new(),
        }
    }

    /// The time by its wall clock, in seconds; `None` when it does not answer.
    pub fn seconds(&self) -> Option<i64> {
        let Ok(Reply::List(parts)) = self.try_command(&["TIME"]) else { return None };
        match parts.first()? {
            Reply::Text(seconds) => seconds.parse().ok(),
            _ => None,
        }
    }

    /// Sends commands one after another on one connection, and answers as many replies.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn try_commands(&self, commands: &[&[&str]]) -> std::io::Result<Vec<Reply>> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut replies = BufReader::new(stream.try_clone()?);
        let mut exchange = |words: &[&str]| {
            let mut request = format!("*{}\r\n", words.len());
            words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
            stream.write_all(request.as_bytes())?;
            read_reply(&mut replies)
        };
        if let Some(password) = &self.password {
            exchange(&["AUTH", password])?;
        }
        commands.iter().map(|words| exchange(words)).collect()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for what several servers must agree on first.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if happened() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("not within 30 s: {what}")
}

pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address")
}

fn read_reply(stream: &mut impl BufRead) -> std::io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.trim_end();
    let (sort, rest) = line.split_at_checked(1).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let number = || rest.parse::<i64>().map_err(std::io::Error::other);
    Ok(match sort {
        "+" => Reply::Text(rest.to_owned()),
        "-" => Reply::Refused(rest.to_owned()),
        ":" => Reply::Number(number()?),
        "$" | "*" if number()? < 0 => Reply::Nil,
        "$" => {
            let mut bytes = vec![0; usize::try_from(number()?).map_err(std::io::Error::other)? + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => Reply::List((0..number()?).map(|_| read_reply(stream)).collect::<Result<_, _>>()?),
        _ => return Err(std::io::ErrorKind::InvalidData.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever starts one then tries the next port.
    #[test]
    fn a_port_that_is_taken_is_noticed() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = taken.local_addr().expect("an address");
        assert!(RedisServer::start_at(address, &[]).is_none());
    }
}
