//! Does the suite catch what it should? Plants one bug after another and expects the test of its rule to fail.
//!
//! `cargo run -p fencepost-conformance --bin planted-bugs [WORD]` works on a copy of the tree below
//! `target/planted-bugs`, which keeps its own build between runs; with WORD, only on bugs whose name or rule contains
//! it. Each named test is first shown to pass without the bug. A test that cannot be compiled, that does not exist, or
//! a bug whose place is not found exactly once, ends the run as an error: the list has rotted then.
//! The bug in the clock survives where there is no right to make a time namespace; run as root to see it caught.

mod bugs;
mod tree;

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use bugs::{BUGS, Bug, Test};
use tree::Tree;

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(survivors) => {
            eprintln!("{survivors} of the planted bugs survived");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the run is worth nothing: {error}");
            ExitCode::from(2)
        }
    }
}

/// The number of survivors.
fn run() -> Result<usize, String> {
    let only = std::env::args().nth(1).unwrap_or_default();
    let wanted: Vec<&Bug> =
        BUGS.iter().copied().flatten().filter(|bug| bug.name.contains(&only) || bug.rule.contains(&only)).collect();
    let tree = Tree::copied()?;
    for bug in &wanted {
        tree.check(bug)?;
    }
    // Tests of one crate after each other, so that little is built anew.
    let tests: BTreeSet<Test> = wanted.iter().map(|bug| bug.test).collect();
    println!("{} bugs; first the {} tests without them", wanted.len(), tests.len());
    for test in &tests {
        match outcome(tree.path(), test)? {
            Outcome::Passed => println!("  passes   {}", test.name),
            Outcome::Failed => return Err(format!("{} fails without a bug", test.name)),
        }
    }
    let mut survivors = 0;
    println!("{:<9} {:<5} {:<58} test", "", "rule", "bug");
    for bug in wanted {
        let planted = tree.plant(bug)?;
        let outcome = outcome(tree.path(), &bug.test);
        planted.restore()?;
        let verdict = match outcome? {
            Outcome::Failed => "caught",
            Outcome::Passed => {
                survivors += 1;
                "SURVIVED"
            }
        };
        println!("{verdict:<9} {:<5} {:<58} {}", bug.rule, bug.name, bug.test.name);
    }
    Ok(survivors)
}

enum Outcome {
    Passed,
    Failed,
}

/// Builds and runs one test. Only a test that ran and failed counts as failed.
fn outcome(tree: &Path, test: &Test) -> Result<Outcome, String> {
    let cargo = |last: &[&str], output: Stdio| {
        Command::new(env!("CARGO"))
            .args(["test", "--quiet", "--offline", "--package", test.package])
            .args(test.target)
            .args(last)
            .current_dir(tree)
            .env("CARGO_TARGET_DIR", tree.with_file_name("build"))
            .stderr(output)
            .output()
            .map_err(|error| format!("cargo cannot be run: {error}"))
    };
    let built = cargo(&["--no-run"], Stdio::piped())?;
    if !built.status.success() {
        let errors = String::from_utf8_lossy(&built.stderr).into_owned();
        return Err(format!("{} cannot be built:\n{errors}", test.name));
    }
    let ran = cargo(&["--", "--exact", test.name], Stdio::null())?;
    let said = String::from_utf8_lossy(&ran.stdout);
    let counted = |what: &str| said.lines().any(|line| line.starts_with("test result:") && line.contains(what));
    match (ran.status.success(), counted("1 passed"), counted("1 failed")) {
        (true, true, false) => Ok(Outcome::Passed),
        (false, false, true) => Ok(Outcome::Failed),
        _ => Err(format!("{} did not run as one test:\n{said}", test.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that moves a bug's place is noticed by the ordinary tests, not by the next long run.
    #[test]
    fn every_bug_has_its_place() {
        for bug in BUGS.iter().copied().flatten() {
            Tree::source().check(bug).unwrap();
        }
    }
}
