//! Where a lock's keys lie.
//!
//! | key | what |
//! |---|---|
//! | `NAMESPACE/locks/NAME/SEAT` | an exclusive claim |
//! | `NAMESPACE/locks/NAME/shared/SEAT` | a reader's |
//! | `NAMESPACE/locks/NAME/permits/SEAT` | one for permits |
//! | `NAMESPACE/cells/NAME` | a cell: which change wrote it, in 40 digits, and its value |
//! | `NAMESPACE/sessions/LEASE` | a session's barrier, written only after a request of unknown outcome |
//!
//! A name's claims stand in the order of their creation, wherever they lie. What kind they are says their key, so that the
//! cluster can look for a writer among a thousand readers.
//!
//! In `NAME`, `%` and `/` are percent-encoded, so that no name lies below another. `SEAT` is 40 hexadecimal digits (see
//! `seats`); whose claim it is says the record. What does not look like that is a stray: it neither blocks nor counts.
//!
//! With `recipe=etcd` claims lie at `NAMESPACE/NAME/SEAT`, where etcd's own clients keep theirs as
//! `NAMESPACE/NAME/LEASE` in hexadecimal digits. Names are not encoded then, and barriers are
//! `NAMESPACE/.fencepost/session-LEASE`, which looks like nobody's claim. All claims are exclusive there.

use fencepost_core::{
    claim::Mode,
    name::{LockName, Namespace},
};

use crate::{
    api::{RangeRequest, below},
    config::Recipe,
    seats::Label,
};

/// What kind of claim a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Shared,
    Permits,
}

impl Kind {
    pub(crate) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permits { .. } => Self::Permits,
        }
    }

    /// The folder below the lock.
    fn folder(self) -> &'static [u8] {
        match self {
            Self::Exclusive => b"",
            Self::Shared => b"shared/",
            Self::Permits => b"permits/",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: Namespace,
    recipe: Recipe,
}

impl Keys {
    pub(crate) fn new(namespace: &Namespace, recipe: Recipe) -> Self {
        Self { namespace: namespace.clone(), recipe }
    }

    /// What all keys of all locks begin with.
    pub(crate) fn all(&self) -> Vec<u8> {
        match self.recipe {
            Recipe::Fencepost => format!("{}/locks/", self.namespace).into_bytes(),
            Recipe::Etcd => format!("{}/", self.namespace).into_bytes(),
        }
    }

    /// What all claims of a lock begin with.
    pub(crate) fn lock(&self, name: &LockName) -> Vec<u8> {
        let mut prefix = self.all();
        match self.recipe {
            Recipe::Fencepost => prefix.extend_from_slice(encoded(name.as_str()).as_bytes()),
            Recipe::Etcd => prefix.extend_from_slice(name.as_str().as_bytes()),
        }
        prefix.push(b'/');
        prefix
    }

    /// What all claims for permits of a semaphore begin with.
    pub(crate) fn permits(&self, name: &LockName) -> Vec<u8> {
        [&self.lock(name), Kind::Permits.folder()].concat()
    }

    /// What all claims of readers begin with.
    pub(crate) fn readers(&self, name: &LockName) -> Vec<u8> {
        [&self.lock(name), Kind::Shared.folder()].concat()
    }

    /// All exclusive claims of a lock, and no others: their seats begin with a digit, the folders with a later letter.
    pub(crate) fn writers(&self, name: &LockName) -> RangeRequest {
        let lock = self.lock(name);
        match self.recipe {
            Recipe::Fencepost => {
                RangeRequest { key: [&*lock, b"0"].concat(), range_end: [&*lock, b"g"].concat(), ..Default::default() }
            }
            Recipe::Etcd => below(&lock),
        }
    }

    /// The claim on a seat.
    pub(crate) fn claim(&self, name: &LockName, kind: Kind, seat: Label) -> Vec<u8> {
        let mut key = self.lock(name);
        key.extend_from_slice(kind.folder());
        key.extend_from_slice(seat.to_string().as_bytes());
        key
    }

    /// A cell.
    pub(crate) fn cell(&self, name: &LockName) -> Vec<u8> {
        let name = encoded(name.as_str());
        match self.recipe {
            Recipe::Fencepost => format!("{}/cells/{name}", self.namespace).into_bytes(),
            Recipe::Etcd => format!("{}/.fencepost/cell-{name}", self.namespace).into_bytes(),
        }
    }

    /// A session's barrier.
    pub(crate) fn barrier(&self, lease: i64) -> Vec<u8> {
        match self.recipe {
            Recipe::Fencepost => format!("{}/sessions/{lease:x}", self.namespace).into_bytes(),
            Recipe::Etcd => format!("{}/.fencepost/session-{lease:x}", self.namespace).into_bytes(),
        }
    }

    /// Whether a key below a lock's prefix is a claim and no stray.
    pub(crate) fn is_claim(&self, prefix: &[u8], key: &[u8]) -> bool {
        self.kind(prefix, key).is_some()
    }

    /// What kind of claim a key below a lock's prefix is; `None` for a stray.
    pub(crate) fn kind(&self, prefix: &[u8], key: &[u8]) -> Option<Kind> {
        self.kind_of(key.strip_prefix(prefix)?)
    }

    /// The lock that a key is a claim of, and of which kind.
    pub(crate) fn parsed(&self, key: &[u8]) -> Option<(LockName, Kind)> {
        let below = key.strip_prefix(&*self.all())?;
        let slash = match self.recipe {
            Recipe::Fencepost => below.iter().position(|byte| *byte == b'/')?,
            Recipe::Etcd => below.iter().rposition(|byte| *byte == b'/')?,
        };
        let (name, kind) = (std::str::from_utf8(&below[..slash]).ok()?, self.kind_of(&below[slash + 1..])?);
        let name = match self.recipe {
            Recipe::Fencepost => LockName::new(decoded(name)?),
            Recipe::Etcd => LockName::new(name),
        };
        Some((name.ok()?, kind))
    }

    fn kind_of(&self, tail: &[u8]) -> Option<Kind> {
        let hexadecimal = |seat: &[u8]| seat.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
        match self.recipe {
            Recipe::Fencepost => [Kind::Permits, Kind::Shared, Kind::Exclusive].into_iter().find(|kind| {
                tail.strip_prefix(kind.folder()).is_some_and(|seat| seat.len() == 40 && hexadecimal(seat))
            }),
            Recipe::Etcd => (hexadecimal(tail) && !tail.is_empty()).then_some(Kind::Exclusive),
        }
    }
}

fn encoded(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

/// `None` for what [`encoded`] never writes, so that one lock has one key.
fn decoded(text: &str) -> Option<String> {
    let name = text.replace("%2F", "/").replace("%25", "%");
    (encoded(&name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use fencepost_core::owner::Owner;

    use super::*;
    use crate::seats::Seats;

    fn keys(recipe: Recipe) -> Keys {
        Keys::new(&Namespace::new("app/x").unwrap(), recipe)
    }

    fn label(lock: &LockName) -> Label {
        let mut seats = Seats::default();
        let seat = seats.take(lock, &Owner::random().unwrap());
        seats.label(seat)
    }

    #[test]
    fn c3_names_read_back_and_do_not_nest() {
        for recipe in [Recipe::Fencepost, Recipe::Etcd] {
            let keys = keys(recipe);
            for text in ["a", "a/b", "/", "%", "%2F", "%252F", "이름", "..", " ", "a/0"] {
                let name = LockName::new(text).unwrap();
                let key = keys.claim(&name, Kind::Exclusive, label(&name));
                assert_eq!(keys.parsed(&key), Some((name.clone(), Kind::Exclusive)), "{text}");
                assert!(keys.is_claim(&keys.lock(&name), &key));
            }
        }
        let keys = keys(Recipe::Fencepost);
        let name = LockName::new("a").unwrap();
        for kind in [Kind::Exclusive, Kind::Shared, Kind::Permits] {
            let key = keys.claim(&name, kind, label(&name));
            assert_eq!(
                (keys.parsed(&key), keys.kind(&keys.lock(&name), &key)),
                (Some((name.clone(), kind)), Some(kind))
            );
            let writers = keys.writers(&name);
            assert_eq!((writers.key..writers.range_end).contains(&key), kind == Kind::Exclusive);
        }
        assert_eq!(keys.lock(&LockName::new("a/b").unwrap()), b"app/x/locks/a%2Fb/");
    }

    #[test]
    fn strays_are_no_claims() {
        let ours = keys(Recipe::Fencepost);
        let owner = "0".repeat(40);
        for stray in ["app/x/locks/a/", "app/x/locks/a/readme", &format!("app/x/locks/a/b/{owner}"), &owner] {
            assert_eq!(ours.parsed(stray.as_bytes()), None, "{stray}");
        }
        assert_eq!(ours.parsed(format!("app/x/locks/%2f/{owner}").as_bytes()), None, "only one spelling is ours");
        let etcds = keys(Recipe::Etcd);
        assert_eq!(etcds.parsed(b"app/x/a/694d7e1f"), Some((LockName::new("a").unwrap(), Kind::Exclusive)));
        assert_eq!(etcds.parsed(&etcds.barrier(255)), None);
        assert_eq!(etcds.parsed(b"app/x/a/readme"), None);
    }
}
