//! Which scenarios, on which stores: from words to what they name.

use fencepost_lab::{SUBJECTS, Scenario, Subject, scenarios};

use crate::{
    arguments::Global,
    exit::{Ending, say},
};

/// The scenarios of these names, each once; all without any.
pub(super) fn scenarios(names: &[String]) -> Result<Vec<&'static dyn Scenario>, Ending> {
    if names.is_empty() {
        return Ok(scenarios::ALL.to_vec());
    }
    let mut chosen: Vec<&'static dyn Scenario> = Vec::new();
    for name in names {
        let scenario = scenarios::named(name).map_err(|near| unknown("scenario", name, &near))?;
        if chosen.iter().all(|other| other.about().name != name) {
            chosen.push(scenario);
        }
    }
    Ok(chosen)
}

/// The subjects that `--store` names, each once; all without it.
pub(super) fn subjects(global: &Global) -> Result<Vec<Subject>, Ending> {
    let Some(said) = global.stated_store() else { return Ok(SUBJECTS.to_vec()) };
    if said.contains(':') {
        say("the laboratory starts servers of its own: the URL of a store is not used");
        return Ok(SUBJECTS.to_vec());
    }
    let mut chosen: Vec<Subject> = Vec::new();
    for word in said.split(',') {
        let named = |on: &&Subject| on.to_string() == word || on.store.word() == word;
        if !SUBJECTS.iter().any(|on| named(&on)) {
            let known: Vec<_> = SUBJECTS.iter().map(Subject::to_string).collect();
            return Err(unknown("store", word, &scenarios::nearest(word, known.iter().map(String::as_str))));
        }
        chosen.extend(SUBJECTS.iter().filter(named));
    }
    Ok(SUBJECTS.iter().copied().filter(|on| chosen.contains(on)).collect())
}

fn unknown(what: &str, name: &str, near: &[&str]) -> Ending {
    let near = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
    Ending::usage(format!("there is no {what} {name:?}{near} `fencepost lab list` shows all"))
}
