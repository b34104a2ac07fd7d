//! Beside us: kazoo's lock, in a Python process of its own that holds one session.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use fencepost::{Error, ErrorKind, clock::Moment, error::Operation};

use crate::{
    floor::{Beside, Cycle, Measuring},
    samples::{Samples, now},
};

/// What a script does, as in `etcdctl lock x true`.
const ONCE: &str = r#"
import subprocess, sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start()
with client.Lock(sys.argv[2]):
    subprocess.run(["true"], check=True)
client.stop()
"#;

/// Takes a lock and gives it back again and again, for as long as each line says. Answers how many nanoseconds each took.
const OVER_AND_OVER: &str = r#"
import sys, time
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start()
for line in sys.stdin:
    path, seconds = line.split()
    lock, took, before = client.Lock(path), [], time.perf_counter_ns()
    until = before + float(seconds) * 1e9
    while not took or before < until:
        lock.acquire()
        lock.release()
        after = time.perf_counter_ns()
        took.append(str(after - before))
        before = after
    print(" ".join(took), flush=True)
client.stop()
"#;

/// An ensemble as kazoo is told of it, where a Python is installed that has kazoo.
#[derive(Debug)]
pub(super) struct Kazoo {
    hosts: String,
    python: OnceLock<Option<&'static str>>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Kazoo {
    pub(super) fn new(servers: &[(String, u16)], chroot: &str) -> Self {
        let hosts: Vec<_> = servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        Self { hosts: format!("{}{chroot}", hosts.join(",")), python: OnceLock::new(), running: Mutex::default() }
    }

    pub(super) fn is_installed(&self) -> bool {
        self.python().is_some()
    }

    /// One lock for one command, as a script would.
    pub(super) fn once(&self, name: &str) -> Option<Beside> {
        let mut command = Command::new(self.python()?);
        command.args(["-c", ONCE, &self.hosts, &format!("/kazoo-{name}")]);
        Some(Beside { what: "a Python script with kazoo's Lock around true", command, goal: None })
    }

    /// Debian's package is for Debian's Python, which need not be the first on the path.
    fn python(&self) -> Option<&'static str> {
        let knows_kazoo = |python: &&str| {
            Command::new(python).args(["-c", "import kazoo"]).output().is_ok_and(|tried| tried.status.success())
        };
        *self.python.get_or_init(|| ["python3", "/usr/bin/python3"].into_iter().find(knows_kazoo))
    }

    fn start(&self) -> std::io::Result<Running> {
        let python = self.python().ok_or(std::io::ErrorKind::NotFound)?;
        let mut process = Command::new(python)
            .args(["-c", OVER_AND_OVER, &self.hosts])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, answers) = (process.stdin.take(), process.stdout.take());
        let (Some(orders), Some(answers)) = (orders, answers) else {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        };
        Ok(Running { process, orders, answers: BufReader::new(answers) })
    }

    fn take_turns(&self, name: &str, span: Duration) -> std::io::Result<String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match &mut *running {
            Some(running) => running,
            none => none.insert(self.start()?),
        };
        writeln!(running.orders, "/kazoo-{} {}", name.replace('/', "-"), span.as_secs_f64())?;
        let mut line = String::new();
        match running.answers.read_line(&mut line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }
}

/// It blocks the thread: nothing else is to be done while it is its turn.
impl Cycle for Kazoo {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            let took = self.take_turns(name, until.since(now())).map_err(failed)?;
            took.split_whitespace()
                .filter_map(|nanos| nanos.parse().ok())
                .for_each(|nanos| samples.record(Duration::from_nanos(nanos)));
            Ok(())
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended by itself needs no more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn failed(source: std::io::Error) -> Error {
    Error::new(ErrorKind::Misconfigured, Operation::Run, "kazoo's lock, which is measured beside, did not run")
        .caused_by(source)
}
