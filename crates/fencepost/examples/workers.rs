//! Three workers share the jobs A to F, and one of them is killed in the midst.
//!
//! Each job takes a number of steps and belongs to one worker at a time: the one that holds its shard's lock. Which
//! worker that should be follows from who is there, so that the jobs of the one that was killed move to the others, and
//! no other job moves. Whoever takes a job over goes on where its journal ends. The journal refuses steps that come with
//! an older fence than it has seen, as every resource should.
//!
//! ```text
//! cargo run -p fencepost --example workers
//! cargo run -p fencepost --example workers -- --store etcd://127.0.0.1:2379
//! ```
//!
//! Exit codes: 0 when every step of every job was done once, by one owner at a time; 1 when not, or something failed.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use clap::Parser;
use fencepost::{Correctness, Fence, Lease, Locks, ShardEvent, owner_of};
use serde::Serialize;
use tokio::{sync::oneshot, task::JoinSet};

const JOBS: [&str; 6] = ["A", "B", "C", "D", "E", "F"];
const WORKERS: [&str; 3] = ["worker-1", "worker-2", "worker-3"];
/// How many steps a job takes, and how long one of them.
const STEPS: u32 = 60;
const STEP: Duration = Duration::from_millis(25);
/// How long a member counts as there without a sign of life, and how long its leases last.
const TTL: Duration = Duration::from_secs(2);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, Parser)]
#[command(name = "workers", about = "Spreads jobs over workers, kills one of them, and checks who did what")]
struct Arguments {
    /// Where the locks live, on a store with fences [default: a directory of its own]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Be the worker of this name; how the parent starts itself again
    #[arg(long, hide = true, requires_all = ["journals", "store", "group"])]
    worker: Option<String>,
    /// Where the journals of the jobs are
    #[arg(long, hide = true)]
    journals: Option<PathBuf>,
    /// The group that the workers join
    #[arg(long, hide = true)]
    group: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (&arguments.worker, &arguments.journals, &arguments.store, &arguments.group) {
        (Some(name), Some(journals), Some(store), Some(group)) => work(name, journals, store, group).await,
        _ => oversee(&arguments).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One worker, until its stdin ends.
async fn work(name: &str, journals: &Path, store: &str, group: &str) -> Outcome<()> {
    let locks = Locks::open(store).await?.fenced()?;
    let member = locks.members(group)?.join(name, TTL).await?;
    // Whoever came first would take all jobs, only to hand most of them over.
    let mut present = member.present();
    while present.len() < WORKERS.len() {
        member.changed(&present).await;
        present = member.present();
    }
    let mut shards = member.shards(JOBS.len() as u32, TTL)?;
    let mut at_work = JoinSet::new();
    let mut leaving = HashMap::new();
    let (wanted, mut unwanted) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]); // at the end of this worker's time, or with the parent's
        drop(wanted);
    });
    loop {
        tokio::select! {
            event = shards.next() => match event? {
                ShardEvent::Gained { shard, lease } => {
                    let (leave, left) = oneshot::channel();
                    leaving.insert(shard, leave);
                    let journal = Journal::of(journals, JOBS[shard as usize]);
                    let name = name.to_owned();
                    at_work.spawn(async move { (shard, do_job(&journal, &name, lease, left).await) });
                }
                // It stops after the step that is under way and gives the shard's lock to whoever waits for it.
                ShardEvent::Leave { shard } => drop(leaving.remove(&shard)),
            },
            Some(done) = at_work.join_next() => {
                let (shard, done) = done?;
                if let Err(error) = done {
                    eprintln!("{name}: {}: {error}", JOBS[shard as usize]);
                    shards.lost(shard); // asks for it again if it is still ours
                }
            }
            _ = &mut unwanted => break,
        }
    }
    drop(shards);
    drop(member);
    locks.close().await;
    Ok(())
}

/// The steps of a job that are left, for as long as the lease lasts and nobody else shall have it.
async fn do_job(
    journal: &Journal,
    name: &str,
    mut lease: Lease<Correctness>,
    mut left: oneshot::Receiver<()>,
) -> Outcome<()> {
    let fence = lease.fence();
    let first = journal.entries()?.last().map_or(1, |last| last.step + 1);
    for step in first..=STEPS {
        lease.run(tokio::time::sleep(STEP)).await?; // the work
        lease.check()?;
        journal.append(Entry { step, fence, worker: name.to_owned() })?;
        if left.try_recv() != Err(oneshot::error::TryRecvError::Empty) {
            break;
        }
    }
    lease.release().await?;
    Ok(())
}

/// What was done of a job: a line for each step.
struct Journal(PathBuf);

#[derive(Clone, Debug)]
struct Entry {
    step: u32,
    fence: Fence,
    worker: String,
}

impl Journal {
    fn of(journals: &Path, job: &str) -> Self {
        Self(journals.join(job))
    }

    fn entries(&self) -> Outcome<Vec<Entry>> {
        let text = match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        text.lines()
            .map(|line| Entry::read(line).ok_or_else(|| format!("not a line of a journal: {line:?}").into()))
            .collect()
    }

    /// Refuses whoever is late. A database would do the look and the write in one transaction.
    fn append(&self, entry: Entry) -> Outcome<()> {
        let last = self.entries()?.pop();
        if last.is_some_and(|last| last.fence > entry.fence || last.step + 1 != entry.step) {
            return Err(format!("step {} with fence {} comes too late", entry.step, entry.fence).into());
        }
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&self.0)?;
        // One write, which a kill does not split.
        file.write_all(format!("{} {} {}\n", entry.step, entry.fence, entry.worker).as_bytes())?;
        Ok(())
    }
}

impl Entry {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let step = words.next()?.parse().ok()?;
        let fence = Fence::new(words.next()?.parse().ok()?)?;
        Some(Self { step, fence, worker: words.next()?.to_owned() })
    }
}

/// The steps that one owner did in a row.
#[derive(Debug, Serialize)]
struct Stretch {
    worker: String,
    fence: u64,
    first: u32,
    last: u32,
}

#[derive(Debug, Serialize)]
struct Report {
    killed: &'static str,
    jobs: BTreeMap<&'static str, Vec<Stretch>>,
}

/// Starts the workers, kills one in the midst of its work, and checks the journals.
async fn oversee(arguments: &Arguments) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let own = format!("file:{}/locks", directory.path().display());
    let store = arguments.store.as_deref().unwrap_or(&own);
    let group = format!("workers-{}", std::process::id());
    let mut workers = HashMap::new();
    for name in WORKERS {
        workers.insert(name, Worker::start(name, directory.path(), store, &group)?);
    }
    // Whoever has job A, by the rule that the workers follow as well.
    let killed = owner_of(WORKERS.into_iter(), "0").and_then(|owner| WORKERS.into_iter().find(|name| *name == owner));
    let killed = killed.ok_or("nobody owns job A")?;
    let journals: Vec<_> = JOBS.iter().map(|job| (*job, Journal::of(directory.path(), job))).collect();
    let a = &journals[0].1;
    until(&mut workers, || Ok(a.entries()?.len() >= 3)).await?;
    drop(workers.remove(killed));
    until(&mut workers, || {
        let done = |journal: &Journal| Ok(journal.entries()?.len() >= STEPS as usize);
        journals.iter().map(|(_, journal)| done(journal)).try_fold(true, |all, done: Outcome<bool>| Ok(all && done?))
    })
    .await?;
    for (_, worker) in workers {
        worker.end()?;
    }
    let jobs = journals.iter().map(|(job, journal)| Ok((*job, stretches(&journal.entries()?)?)));
    let report = Report { killed, jobs: jobs.collect::<Outcome<_>>()? };
    tell(&report, arguments.json);
    if report.jobs["A"].len() < 2 {
        return Err(format!("{killed} was killed, and nobody took job A over").into());
    }
    Ok(())
}

/// Asks until it is so. A worker that ended by itself is an error.
async fn until(workers: &mut HashMap<&str, Worker>, mut is_so: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    while !is_so()? {
        for (name, worker) in &mut *workers {
            if let Some(status) = worker.0.try_wait()? {
                return Err(format!("{name} ended: {status}").into());
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A process, killed when dropped.
struct Worker(Child);

impl Worker {
    fn start(name: &str, journals: &Path, store: &str, group: &str) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--worker", name, "--store", store, "--group", group, "--journals"]).arg(journals);
        Ok(Self(command.stdin(Stdio::piped()).spawn()?))
    }

    /// Lets it leave by itself.
    fn end(mut self) -> Outcome<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a worker ended with {status}").into()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It fails for one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who did what, or what is wrong with it: each step once and in order, and never an owner after a later one.
fn stretches(entries: &[Entry]) -> Outcome<Vec<Stretch>> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (entry, expected) in entries.iter().zip(1..) {
        let Entry { step, fence, worker } = entry.clone();
        if step != expected {
            return Err(format!("step {step} stands where step {expected} should be").into());
        }
        match stretches.last_mut() {
            Some(last) if last.fence == fence.get() && last.worker == worker => last.last = step,
            Some(last) if last.fence >= fence.get() => {
                return Err(format!("step {step} has fence {fence} after fence {}", last.fence).into());
            }
            _ => stretches.push(Stretch { worker, fence: fence.get(), first: step, last: step }),
        }
    }
    Ok(stretches)
}

fn tell(report: &Report, json: bool) {
    if json {
        println!("{}", serde_json::to_string(report).unwrap_or_default());
        return;
    }
    println!("{} was killed in the midst.", report.killed);
    for (job, stretches) in &report.jobs {
        let told = stretches.iter().map(|Stretch { worker, fence, first, last }| {
            format!("steps {first} to {last} by {worker} with fence {fence}")
        });
        println!("job {job}: {}", told.collect::<Vec<_>>().join(", then "));
    }
}
