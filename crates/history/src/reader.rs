//! Reading a history that may be broken.

use std::{
    borrow::Cow,
    fmt,
    io::{self, BufRead, Read},
};

use serde::{Deserialize, Serialize};

use crate::{event::Event, foreign::Foreign, history::History, line::Line};

/// The version of the format that this crate writes. It reads every earlier one.
pub const VERSION: u32 = 2;

/// A line is not longer than this. What has no lines at all would have to be held as one.
const LONGEST: u64 = 1 << 20;

/// So many lines that cannot be read, and none that can, are enough to see what a file is.
const ENOUGH: usize = 1000;

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
    /// What it looks like, when there is something in it and not one line could be read.
    pub foreign: Option<Foreign>,
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

/// The line that says which format follows. Without one it is version 1, which had no such line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head<'a> {
    format: Cow<'a, str>,
    version: u32,
}

impl Default for Head<'_> {
    fn default() -> Self {
        Self { format: Cow::Borrowed(Self::FORMAT), version: VERSION }
    }
}

impl Head<'_> {
    const FORMAT: &'static str = "fencepost-history";

    fn checked(&self) -> Result<(), String> {
        if self.format != Self::FORMAT {
            return Err(format!("it begins a file of the format {:?}", self.format));
        }
        if self.version > VERSION {
            let Self { version, .. } = self;
            return Err(format!(
                "it is written in version {version} of the format, and this build reads up to {VERSION}: a newer one is needed"
            ));
        }
        Ok(())
    }
}

/// Reads JSON lines. Empty lines are passed over; the order of the lines does not matter.
pub fn read(from: impl BufRead) -> Reading {
    let (mut history, mut broken, mut foreign) = (History::default(), Vec::new(), None);
    let mut lines = Lines { from, text: Vec::new(), cut: false };
    let mut read = false;
    for line in 1.. {
        let outcome = match lines.next() {
            Ok(false) => break,
            Ok(true) if lines.text.trim_ascii().is_empty() => continue,
            Ok(true) if lines.cut => Err(format!("it is longer than {LONGEST} bytes")),
            Ok(true) => parse(lines.text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&lines.text)),
            Err(error) => {
                broken.push(BrokenLine { line, why: format!("cannot be read: {error}") });
                break;
            }
        };
        match outcome {
            Ok(event) => {
                read = true;
                event.into_iter().for_each(|event| history.push(event, line));
            }
            Err(why) => {
                foreign.get_or_insert_with(|| Foreign::of(&lines.text));
                broken.push(BrokenLine { line, why });
                if !read && (broken.len() >= ENOUGH || lines.cut) {
                    break;
                }
            }
        }
    }
    history.sort();
    Reading { history, broken, foreign: foreign.filter(|_| !read) }
}

/// A file line by line.
struct Lines<R> {
    from: R,
    text: Vec<u8>,
    /// Whether the line is longer than its text, and the rest of it is yet to be passed over.
    cut: bool,
}

impl<R: BufRead> Lines<R> {
    /// Whether there is one more.
    fn next(&mut self) -> io::Result<bool> {
        while self.cut && self.piece()? {}
        self.piece()
    }

    fn piece(&mut self) -> io::Result<bool> {
        self.text.clear();
        let length = self.from.by_ref().take(LONGEST).read_until(b'\n', &mut self.text)?;
        self.cut = length as u64 == LONGEST && !self.text.ends_with(b"\n");
        Ok(length > 0)
    }
}

/// The event of a line; none when the line only says which format it is.
fn parse(text: &[u8]) -> Result<Option<Event<Text<'_>>>, String> {
    if let Some(event) = serde_json::from_slice::<Line<'_>>(text).ok().and_then(Line::event) {
        return Ok(Some(event));
    }
    serde_json::from_slice(text).map(Some).or_else(|error| match serde_json::from_slice::<Head<'_>>(text) {
        Ok(head) => head.checked().map(|()| None),
        Err(_) => Err(said(&error)),
    })
}

fn said(error: &serde_json::Error) -> String {
    if error.is_eof() {
        "it ends in the middle: the file was truncated, or is still being written".to_owned()
    } else if error.is_syntax() {
        format!("it is not JSON: {error}")
    } else {
        format!("it is not an event of a history: {error}")
    }
}

/// Text that is copied only when it is a new name.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

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
