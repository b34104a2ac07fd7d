//! The command `fencepost run x -- true` next to `flock x true`, and its memory while it holds.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use fencepost::{Error, ErrorKind, error::Operation};

use crate::{
    floor::Beside,
    ground::Ground,
    plan::Plan,
    process,
    report::{Figure, Goal, Outcome},
    samples::{Samples, median, now},
};

/// The most rounds; the time may allow fewer.
const ROUNDS: usize = 200;

pub(super) fn measure(ground: &Ground, plan: &Plan, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let Some(fencepost) = &plan.command else {
        outcome.notes.push("left out: it needs the command `fencepost`".into());
        return Ok(outcome);
    };
    let name = ground.name();
    let until = now().after(span);
    let (mut ours, mut theirs, mut differences) = (Samples::default(), Samples::default(), Vec::new());
    let mut beside = ground.beside(&name);
    if beside.as_mut().is_some_and(|beside| timed(&mut beside.command).is_err()) {
        beside = None; // it is not installed
    }
    for _ in 0..ROUNDS {
        let ran = timed(ours_with(fencepost, ground, plan, &name).arg("true"))?;
        ours.record(ran);
        if let Some(beside) = &mut beside {
            let bare = timed(&mut beside.command)?;
            theirs.record(bare);
            differences.push(ran.as_secs_f64() * 1e3 - bare.as_secs_f64() * 1e3);
        }
        if now() >= until {
            break;
        }
    }
    outcome.latency = Some(ours.latency());
    match beside {
        Some(Beside { what, goal, .. }) => {
            outcome.figures.push(Figure::new(what, theirs.p50_us() / 1e3, "ms"));
            let more = Figure::new(format!("more than {what}"), median(differences), "ms");
            outcome.figures.push(match goal {
                Some(goal) => more.with(goal),
                None => more,
            });
        }
        None => outcome.notes.push("no floor: the store has no such program, or it is not installed".into()),
    }
    memory(&mut outcome, ours_with(fencepost, ground, plan, &name))?;
    Ok(outcome)
}

/// What the command's processes have resident while the job runs. Two processes of one program share most of it,
/// so that the sum counts each page's share (PSS).
fn memory(outcome: &mut Outcome, mut command: Command) -> Result<(), Error> {
    command.args(["sh", "-c", "echo holding; read end"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    let program = std::fs::read_link(format!("/proc/{}/exe", child.id())).ok();
    let family = process::family_of(child.id()).into_iter().map(|process| process.to_string());
    let of_ours: Vec<_> =
        family.filter(|process| std::fs::read_link(format!("/proc/{process}/exe")).ok() == program).collect();
    let largest = of_ours.iter().filter_map(|process| process::memory_of(process, "Rss:")).max();
    let sum: u64 = of_ours.iter().filter_map(|process| process::memory_of(process, "Pss:")).sum();
    // Its end of the pipe closes, and the job ends.
    drop(child.stdin.take());
    child.wait().map_err(failed)?;
    if let Some(largest) = largest {
        let figure = Figure::new("resident while holding, largest process", largest as f64 / 1024.0, "MiB");
        outcome.figures.push(figure.with(Goal::AtMost(10.0)));
        outcome.figures.push(Figure::new("resident while holding, all its processes", sum as f64 / 1024.0, "MiB"));
    }
    Ok(())
}

fn ours_with(fencepost: &Path, ground: &Ground, plan: &Plan, name: &str) -> Command {
    let mut command = Command::new(fencepost);
    command.env("FENCEPOST_STORE", &plan.url).env("FENCEPOST_NAMESPACE", ground.namespace().as_str());
    command.args(["run", name, "--"]);
    command
}

fn timed(command: &mut Command) -> Result<Duration, Error> {
    let before = now();
    let status = command.stdin(Stdio::null()).status().map_err(failed)?;
    let took = now().since(before);
    if status.success() { Ok(took) } else { Err(failed(std::io::Error::other(format!("{command:?}: {status}")))) }
}

fn failed(source: std::io::Error) -> Error {
    Error::new(ErrorKind::Misconfigured, Operation::Run, "a command that is measured did not run").caused_by(source)
}
