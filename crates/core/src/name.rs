//! Names of locks and the namespace they live in (C3).

use std::{fmt, sync::Arc};

use crate::error::{Error, ErrorKind, Operation};

/// The longest name or namespace, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 512;
/// By how much a name [of a kind](LockName::of_kind) can be longer, its slash left aside.
pub const MAX_KIND_BYTES: usize = 15;

/// The name of a lock: non-empty UTF-8 without control characters, at most
/// [`MAX_NAME_BYTES`] bytes.
///
/// Two names are the same lock exactly when their bytes are equal; nothing is folded, trimmed
/// or normalised. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks `name` and takes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when the name is empty, too long or holds a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        checked("lock name", name.as_ref()).map(Self)
    }

    /// The name of something else that belongs to this one: `kind/name`, a few bytes longer than a name may be. Names
    /// of different kinds never meet.
    pub fn of_kind(&self, kind: &'static str) -> Self {
        debug_assert!(!kind.contains('/') && kind.len() <= MAX_KIND_BYTES, "a kind is a short word");
        Self(format!("{kind}/{self}").into())
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The prefix below which everything lies that a store keeps for one application.
///
/// The same rules as for a [`LockName`] apply. The default is `fencepost`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks `namespace` and takes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], as for [`LockName::new`].
    pub fn new(namespace: impl AsRef<str>) -> Result<Self, Error> {
        checked("namespace", namespace.as_ref()).map(Self)
    }

    /// The namespace as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Arc::from("fencepost"))
    }
}

fn checked(what: &str, text: &str) -> Result<Arc<str>, Error> {
    let problem = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > MAX_NAME_BYTES {
        format!("has {} bytes; the limit is {MAX_NAME_BYTES}", text.len())
    } else if let Some(c) = text.chars().find(|c| c.is_control()) {
        format!("holds the control character {}", c.escape_unicode())
    } else {
        return Ok(Arc::from(text));
    };
    Err(Error::new(ErrorKind::InvalidInput, Operation::Parse, format!("the {what} {problem}")).not_applied())
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c3_names_are_checked_at_the_edge() {
        for bad in ["", "a\nb", "\0", "a\u{85}", &"x".repeat(513)] {
            let error = LockName::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
        for good in ["a", "orders/1001", "이름", " ", "{x}", &"x".repeat(512)] {
            assert_eq!(LockName::new(good).unwrap().as_str(), good);
        }
    }
}
