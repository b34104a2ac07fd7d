//! A fault that silently does nothing is noticed: no cell is believed because of it.

use fencepost_lab::{
    AgentCommand, SUBJECTS, Verdict, Wish,
    run::{Cell, Faults, Plan, play},
    scenarios,
};

use crate::cut::apart;

/// A scenario for each kind of fault, on a store that is soon started.
const FAULTS: [(&str, &str); 22] = [
    ("kleppmann-pause", "redis"),
    ("holder-killed", "redis"),
    ("cut-off", "redis"),
    ("server-frozen", "redis"),
    ("restart", "redis"),
    ("restart-without-data", "redis"),
    ("restart-without-data", "file"),
    ("snapshot-restored", "redis"),
    ("store-is-full", "redis"),
    ("store-is-full", "file"),
    ("server-clock-jumps", "redis"),
    ("server-clock-goes-back", "etcd"),
    ("client-clock-jumps", "redis"),
    ("machine-suspended", "redis"),
    ("late-reply", "redis"),
    ("duplicate-request", "redis"),
    ("leader-dies", "etcd-cluster"),
    ("leader-in-a-minority", "etcd-cluster"),
    ("leaders-disk-is-slow", "etcd-cluster"),
    ("planned-failover", "sentinel"),
    ("crash-before-replication", "sentinel"),
    ("redlock-clock-jump", "redlock"),
];

#[test]
fn where_no_fault_is_made_nothing_is_proved() {
    let agent = AgentCommand { program: env!("CARGO_BIN_EXE_fencepost-agent").into(), arguments: Vec::new() };
    let cells: Vec<_> = FAULTS
        .iter()
        .map(|(scenario, on)| {
            let on = SUBJECTS.iter().find(|subject| subject.to_string() == *on).expect("a subject");
            (scenarios::named(scenario).expect("a scenario"), *on)
        })
        .collect();
    let done = apart(Wish::Either, async |cut_by| {
        let plan = Plan { cells, trials: 1, seed: 1, at_once: 6, agent, cut_by, faults: Faults::Pretended };
        let mut done = play(&plan, &mut |cell| eprintln!("{}", name(cell))).await;
        // A machine under load can keep a client from coming at all: such a cell is played once more, by itself.
        for cell in done.iter_mut().filter(|cell| cell.verdict() == Verdict::Infrastructure) {
            let plan = Plan { cells: vec![(cell.scenario, cell.subject)], at_once: 1, ..plan.clone() };
            *cell = play(&plan, &mut |cell| eprintln!("{}", name(cell))).await.remove(0);
        }
        done
    });
    assert_eq!(done.len(), FAULTS.len());
    for cell in &done {
        let trial = cell.worst().expect("a trial");
        // Where something is missing, or a disk cannot be mounted, it is not run at all.
        assert!(matches!(trial.verdict, Verdict::Vacuous | Verdict::NotRun), "{}", name(cell));
    }
    let vacuous = done.iter().filter(|cell| cell.verdict() == Verdict::Vacuous).count();
    assert!(vacuous >= 15, "only {vacuous} of them were played, and came to nothing");
}

fn name(cell: &Cell) -> String {
    let why = cell.worst().map_or("", |trial| &trial.why);
    format!("{} on {}: {} {why}", cell.scenario.about().name, cell.subject, cell.verdict())
}
