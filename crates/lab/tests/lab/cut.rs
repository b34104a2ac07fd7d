//! Networks are cut by the kernel or by relays, and what is found is the same.

use fencepost_history::{Event, What};
use fencepost_lab::{
    AgentCommand, CutBy, SUBJECTS, Verdict, Wish,
    agent::Client,
    run::{Cell, Faults, Plan, cells},
    scenarios,
};

use crate::matrix::played;

/// Runs `work` on a thread, and a runtime of it, that are in namespaces of their own where that was wished and is possible.
pub(crate) fn apart<T: Send>(wish: Wish, work: impl AsyncFnOnce(CutBy) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let apart = scope.spawn(|| {
            let cut_by = CutBy::choose(wish);
            eprintln!("{}", cut_by.said());
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
            runtime.block_on(work(cut_by))
        });
        apart.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The cells of this library whose danger is a network that is cut.
async fn cut(cut_by: CutBy) -> Vec<Cell> {
    let agent = AgentCommand { program: env!("CARGO_BIN_EXE_fencepost-agent").into(), arguments: Vec::new() };
    let chosen: Vec<_> = scenarios::ALL.iter().copied().filter(|scenario| scenario.cuts_the_network()).collect();
    let ours: Vec<_> = SUBJECTS.iter().copied().filter(|on| on.client == Client::Library).collect();
    let plan =
        Plan { cells: cells(&chosen, &ours), trials: 1, seed: 1, at_once: 6, agent, cut_by, faults: Faults::Made };
    played(&plan).await
}

/// What a history says of the way.
fn says(cell: &Cell, word: &str) -> bool {
    let says = |event: &Event| match &event.what {
        What::Note { text } => text.contains(word),
        What::Fault { fault, .. } => fault.contains(word),
        _ => false,
    };
    cell.worst().is_some_and(|trial| trial.events.iter().any(says))
}

#[test]
fn relays_and_namespaces_find_the_same() {
    let by_relays = apart(Wish::Relays, cut);
    for cell in &by_relays {
        assert!(says(cell, "relays were asked for; cut by relays instead"), "{}", name(cell));
    }
    let by_kernel = apart(Wish::Namespaces, async |cut_by| match cut_by {
        CutBy::Namespaces(_) => Some(cut(cut_by).await),
        other => {
            eprintln!("SKIPPED, nothing to compare with: {}", other.said());
            None
        }
    });
    let Some(by_kernel) = by_kernel else { return };
    let mut really = 0;
    for (relays, kernel) in by_relays.iter().zip(&by_kernel) {
        if says(kernel, "by network namespaces") {
            really += 1;
        } else {
            // Of stores whose servers find each other by addresses that relays stand for.
            assert!(says(kernel, "are not put on hosts of their own; cut by relays instead"), "{}", name(kernel));
        }
        assert_eq!(kernel.verdict(), relays.verdict(), "{}", name(kernel));
    }
    assert!(really >= 12, "{really} of {} cells were cut by the kernel", by_kernel.len());
}

/// Who demands what is not to be had gets no verdict at all.
#[test]
fn a_demand_for_namespaces_is_not_met_by_relays() {
    let why = "the kernel refuses a network of our own".to_owned();
    for cell in apart(Wish::Relays, async |_| cut(CutBy::Nothing { why }).await) {
        assert_eq!(cell.verdict(), Verdict::NotRun, "{}", name(&cell));
        assert!(cell.worst().is_some_and(|trial| trial.why.contains("the kernel refuses")), "{}", name(&cell));
    }
}

fn name(cell: &Cell) -> String {
    format!("{} on {}: {}", cell.scenario.about().name, cell.subject, cell.worst().map_or("", |trial| &trial.why))
}
