//! Reading a history that may be broken.

use std::{borrow::Cow, fmt, io::BufRead};

use serde::Deserialize;

use crate::{event::Event, history::History};

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLine {
    /// Counted from 1.
    pub line: u32,
    /// What is wrong with it.
    pub why: String,
}

/// Some lines could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BrokenLines(pub Vec<BrokenLine>);

/// What was read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// What could be read.
    pub history: History,
    /// What could not.
    pub broken: Vec<BrokenLine>,
}

impl Reading {
    /// The history, if all of it could be read.
    ///
    /// # Errors
    /// The lines that could not. Whoever can do with the rest takes [`Reading::history`].
    pub fn whole(self) -> Result<History, BrokenLines> {
        if self.broken.is_empty() { Ok(self.history) } else { Err(BrokenLines(self.broken)) }
    }
}

/// Reads JSON lines. Empty lines are passed over; the order of the lines does not matter.
pub fn read(mut from: impl BufRead) -> Reading {
    let (mut history, mut broken) = (History::default(), Vec::new());
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        match from.read_until(b'\n', &mut text) {
            Ok(0) => break,
            Ok(_) if text.trim_ascii().is_empty() => continue,
            Ok(_) => match parse(&text) {
                Ok(event) => history.push(event, line),
                Err(why) => broken.push(BrokenLine { line, why }),
            },
            Err(error) => {
                broken.push(BrokenLine { line, why: format!("cannot be read: {error}") });
                break;
            }
        }
    }
    history.sort();
    Reading { history, broken }
}

fn parse(text: &[u8]) -> Result<Event<Text<'_>>, String> {
    serde_json::from_slice(text).map_err(|error| {
        if error.is_eof() {
            "it ends in the middle: the file was truncated, or is still being written".to_owned()
        } else if error.is_syntax() {
            format!("it is not JSON: {error}")
        } else {
            format!("it is not an event of a history: {error}")
        }
    })
}

/// Text that is copied only when it is a new name.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Text<'_>> for String {
    fn from(text: Text<'_>) -> Self {
        text.0.into_owned()
    }
}

/// How many broken lines a message lists.
const LISTED: usize = 5;

impl fmt::Display for BrokenLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(lines) = self;
        for (index, broken) in lines.iter().take(LISTED).enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}line {}: {}", broken.line, broken.why)?;
        }
        if lines.len() > LISTED { write!(f, "; and {} more", lines.len() - LISTED) } else { Ok(()) }
    }
}
