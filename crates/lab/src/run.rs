//! Playing scenarios on subjects, several times, with seeds that can be repeated.

use std::{path::Path, sync::Arc, time::Duration};

use fencepost_history::{Event, Findings, Options, check};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use crate::{
    cut::CutBy,
    player::AgentCommand,
    recorder::{self, Recorder},
    scenario::{Expected, Reached, Scenario, Stop},
    stage::{Stage, panicked},
    subject::Subject,
    verdict::Verdict,
};

/// Longer than any scenario takes.
const LIMIT: Duration = Duration::from_secs(90);

/// What shall be played.
#[derive(Clone)]
pub struct Plan {
    /// The cells: each a scenario on a subject.
    pub cells: Vec<(&'static dyn Scenario, Subject)>,
    /// How often each.
    pub trials: u32,
    /// The seed of the first trial; the next ones count up from it.
    pub seed: u64,
    /// How many at once. Most of a scenario is waiting.
    pub at_once: usize,
    /// How client processes are started.
    pub agent: AgentCommand,
    /// How networks are cut.
    pub cut_by: CutBy,
    /// Whether faults are made, or only said to be. The latter is how it is tested that nobody believes in them unseen.
    pub faults: Faults,
}

/// What becomes of a fault that is ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faults {
    /// It is made.
    #[default]
    Made,
    /// Nothing is done, silently.
    Pretended,
}

/// One playing of a scenario on a subject.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What came of it.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub why: String,
    /// Its seed.
    pub seed: u64,
    /// All that happened.
    pub events: Vec<Event>,
    /// What the store's servers said, each under a name, where it did not come out as expected.
    pub logs: Vec<(String, String)>,
    /// What the checker found.
    pub findings: Findings,
    /// How long it took, starting the servers included.
    pub took: Duration,
}

/// A cell of the matrix.
#[derive(Clone)]
pub struct Cell {
    /// The scenario.
    pub scenario: &'static dyn Scenario,
    /// The subject.
    pub subject: Subject,
    /// What was expected.
    pub expected: Expected,
    /// What came.
    pub trials: Vec<Trial>,
}

impl Cell {
    /// The worst of its trials.
    pub fn verdict(&self) -> Verdict {
        self.worst().map_or(Verdict::NotRun, |trial| trial.verdict)
    }

    /// The trial that says most against the store; a failure of the laboratory says more than that.
    pub fn worst(&self) -> Option<&Trial> {
        self.trials.iter().max_by_key(|trial| trial.verdict)
    }

    /// Whether every trial came out as expected.
    pub fn as_expected(&self) -> bool {
        !self.trials.is_empty() && self.trials.iter().all(|trial| trial.verdict == self.expected.verdict)
    }

    /// The command that repeats a trial of it.
    pub fn again(&self, trial: &Trial) -> String {
        format!("fencepost lab run {} --store {} --seed {}", self.scenario.about().name, self.subject, trial.seed)
    }
}

/// The cells of all scenarios on all subjects to which they apply.
pub fn cells(scenarios: &[&'static dyn Scenario], subjects: &[Subject]) -> Vec<(&'static dyn Scenario, Subject)> {
    let of = |scenario: &&'static dyn Scenario| {
        let scenario = *scenario;
        subjects.iter().filter(move |on| scenario.expects(**on).is_ok()).map(move |on| (scenario, *on))
    };
    scenarios.iter().flat_map(of).collect()
}

/// Plays the plan. `progress` is called with each cell as soon as it is done. The answer is in the plan's order.
pub async fn play(plan: &Plan, progress: &mut (dyn FnMut(&Cell) + Send)) -> Vec<Cell> {
    let room = Arc::new(Semaphore::new(plan.at_once.max(1)));
    let mut running = JoinSet::new();
    for (place, (scenario, subject)) in plan.cells.iter().copied().enumerate() {
        let Ok(expected) = scenario.expects(subject) else { continue };
        let (room, plan) = (room.clone(), plan.clone());
        running.spawn(async move {
            let mut trials = Vec::new();
            for number in 0..plan.trials.max(1) {
                let _place = room.acquire().await;
                trials.push(trial(scenario, subject, plan.seed.wrapping_add(number.into()), &plan).await);
            }
            (place, Cell { scenario, subject, expected, trials })
        });
    }
    let mut done = Vec::new();
    while let Some(cell) = running.join_next().await {
        // A task that only waits for another one does not panic.
        if let Ok((place, cell)) = cell {
            progress(&cell);
            done.push((place, cell));
        }
    }
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, cell)| cell).collect()
}

async fn trial(scenario: &'static dyn Scenario, subject: Subject, seed: u64, plan: &Plan) -> Trial {
    let begin = crate::agent::now();
    let recorder = Recorder::default();
    let played = {
        let (recorder, plan) = (recorder.clone(), plan.clone());
        let (doubts, mut doubtful) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut stage = Stage::set(scenario, subject, seed, &plan, recorder, doubts).await?;
            let reached = tokio::time::timeout(LIMIT, async {
                let reached = tokio::select! {
                    reached = scenario.play(&mut stage) => reached,
                    Some(stop) = doubtful.recv() => Err(stop),
                };
                // Where a fault was none, it is no wonder that the story went another way.
                stage.proven().await.and(reached)
            });
            let reached = reached.await;
            let logs = stage.logs();
            // Dropping the stage ends servers, which blocks.
            let _ended = tokio::task::spawn_blocking(move || drop(stage)).await;
            let reached = reached.unwrap_or_else(|_| Err(Stop::Failed(format!("no end within {LIMIT:?}"))));
            Ok((reached, logs))
        })
    };
    let (reached, mut logs) = match played.await {
        Ok(Ok(played)) => played,
        Ok(Err(stop)) => (Err(stop), Vec::new()),
        Err(error) => (Err(Stop::Failed(panicked(error))), Vec::new()),
    };
    let events = recorder.events();
    let findings = check(&recorder::history(&events), &Options::default());
    let (verdict, why) = judge(reached, &findings, scenario.idle_limit());
    let took = Duration::from_nanos(crate::agent::now() - begin);
    if scenario.expects(subject).is_ok_and(|expected| expected.verdict == verdict) {
        logs.clear();
    }
    Trial { verdict, why, seed, events, logs, findings, took }
}

fn judge(reached: Result<Reached, Stop>, findings: &Findings, idle_limit: Duration) -> (Verdict, String) {
    match reached {
        Err(Stop::Missing(why)) => (Verdict::NotRun, why),
        Err(stop @ Stop::NotInstalled(_)) => (Verdict::NotRun, stop.to_string()),
        Err(stop @ Stop::Ineffective(_)) => (Verdict::Vacuous, stop.to_string()),
        Err(Stop::Failed(why)) => (Verdict::Infrastructure, why),
        Ok(Reached::No(why)) => (Verdict::Vacuous, why),
        Ok(Reached::Yes) => {
            let limit = u64::try_from(idle_limit.as_nanos()).unwrap_or(u64::MAX);
            let verdict = Verdict::of(findings, limit);
            let idle = findings.measures.longest_idle / 1_000_000;
            let said = || findings.list.iter().map(|finding| finding.said.as_str()).collect::<Vec<_>>().join("; ");
            let why = match verdict {
                Verdict::Blocked => format!("nobody had the lock for {idle} ms while somebody wanted it"),
                Verdict::Ok => format!("nothing was wrong; unused while wanted for {idle} ms at most"),
                _ => said(),
            };
            (verdict, why)
        }
    }
}

/// Writes a trial's history as JSON lines.
///
/// # Errors
/// When the file cannot be written.
pub fn save(trial: &Trial, path: &Path) -> std::io::Result<()> {
    recorder::write(&trial.events, path)
}
