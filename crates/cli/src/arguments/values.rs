//! What stands behind a flag, from text to type.

use std::time::Duration;

use fencepost::{Fence, LockName, Namespace, Owner, Ttl, url::parse_span};

pub(super) fn name(text: &str) -> Result<LockName, String> {
    LockName::new(text).map_err(|error| error.to_string())
}

pub(super) fn namespace(text: &str) -> Result<Namespace, String> {
    Namespace::new(text).map_err(|error| error.to_string())
}

pub(super) fn owner(text: &str) -> Result<Owner, String> {
    text.parse().map_err(|error: fencepost::Error| error.to_string())
}

pub(super) fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(span(text)?).map_err(|error| error.to_string())
}

pub(crate) fn span(text: &str) -> Result<Duration, String> {
    parse_span(text).ok_or_else(|| "a time span is a number with a unit, such as 150ms, 30s, 1m30s or 2h".into())
}

pub(super) fn positive_span(text: &str) -> Result<Duration, String> {
    span(text).and_then(|span| if span.is_zero() { Err("it must not be zero".into()) } else { Ok(span) })
}

/// Beyond a second the run's own time limits would be measured.
pub(super) fn distance(text: &str) -> Result<Duration, String> {
    let far =
        |span: Duration| if span > Duration::from_secs(1) { Err("it is one second at most".into()) } else { Ok(span) };
    positive_span(text).and_then(far)
}

pub(super) fn fence(text: &str) -> Result<Fence, String> {
    text.parse().ok().and_then(Fence::new).ok_or_else(|| "a fence is a whole number from 1 to 2^63 - 1".into())
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    let fits = |part: &str, most: usize| part.len() <= most && !part.chars().any(char::is_control);
    if key.is_empty() || !fits(key, 64) || !fits(value, 256) {
        return Err("a label's key has 1 to 64 bytes, its value at most 256, neither with control characters".into());
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// The label that shows a candidate's priority.
pub(super) const PRIORITY: &str = "priority";

/// A candidate's place among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// It never leads.
    Never,
    /// The highest leads next.
    Of(i32),
}

pub(super) fn priority(text: &str) -> Result<Priority, String> {
    match text {
        "never" => Ok(Priority::Never),
        number => number.parse().map(Priority::Of).map_err(|_| "a priority is a whole number, or `never`".into()),
    }
}

/// The most bytes of a leader's word.
const WORD: usize = 4096;

pub(super) fn word(text: &str) -> Result<String, String> {
    let fits = text.len() <= WORD;
    fits.then(|| text.to_owned()).ok_or_else(|| format!("the word has {} bytes; {WORD} is the most", text.len()))
}
