//! The history while it is made.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use fencepost_history::{Event, Head, History, What};

/// Collects events from everybody. Clones are the same recorder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Recorder {
    /// Something that happens just now.
    pub(crate) fn tell(&self, by: &str, what: What) {
        // Under the mutex, so that the order of what one resource does is the order of its times.
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(Event { at: crate::agent::now(), by: by.to_owned(), what });
    }

    /// Something that happened in another process.
    pub(crate) fn add(&self, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// All of it, in the order of its times.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.sort_by_key(|event| event.at);
        events
    }
}

/// Writes a history as JSON lines.
pub(crate) fn write(events: &[Event], path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut file, &Head::default())?;
    file.write_all(b"\n")?;
    for event in events {
        serde_json::to_writer(&mut file, event)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// A history to be checked.
pub(crate) fn history(events: &[Event]) -> History {
    History::of(events.iter().cloned())
}
