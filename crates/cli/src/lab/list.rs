//! `lab list`: the scenarios, and what is expected.

use fencepost_lab::{Expected, Scenario, Subject, Verdict, scenarios};
use serde::Serialize;

use super::choice;
use crate::{arguments::Global, exit::Ending, listing};

/// A scenario for programs.
#[derive(Serialize)]
struct Listed {
    scenario: &'static str,
    title: &'static str,
    why: &'static str,
    steps: &'static [&'static str],
    source: &'static str,
    stores: Vec<On>,
}

/// What is expected of it on a store.
#[derive(Serialize)]
struct On {
    store: String,
    expected: Verdict,
    because: &'static str,
}

pub(super) fn list(global: &Global) -> Result<Ending, Ending> {
    let subjects = choice::subjects(global)?;
    let all = scenarios::ALL.iter().map(|scenario| listed(*scenario, &subjects));
    let all: Vec<Listed> = all.filter(|scenario| !scenario.stores.is_empty()).collect();
    let text = if global.json { format!("{}\n", listing::to_json(&all)) } else { all.iter().map(in_words).collect() };
    Ok(crate::print(&text))
}

fn listed(scenario: &dyn Scenario, subjects: &[Subject]) -> Listed {
    let about = scenario.about();
    let on = |subject: &Subject| {
        let Expected { verdict, because } = scenario.expects(*subject).ok()?;
        Some(On { store: subject.to_string(), expected: verdict, because })
    };
    Listed {
        scenario: about.name,
        title: about.title,
        why: about.why,
        steps: about.steps,
        source: about.source,
        stores: subjects.iter().filter_map(on).collect(),
    }
}

fn in_words(scenario: &Listed) -> String {
    let mut text = format!("{}\n    {}: {}\n", scenario.scenario, scenario.title, scenario.why);
    for On { store, expected, because } in &scenario.stores {
        text.push_str(&format!("    {store:16} {expected:15} {because}\n"));
    }
    text
}
