//! Where a lock's keys lie.
//!
//! | key | what |
//! |---|---|
//! | `NAMESPACE/locks/NAME/SEAT` | a claim: the oldest of a lock's claims holds it, the others wait in the order of their creation |
//! | `NAMESPACE/cells/NAME` | a cell: which change wrote it, in 40 digits, and its value |
//! | `NAMESPACE/sessions/LEASE` | a session's barrier, written only after a request of unknown outcome |
//!
//! In `NAME`, `%` and `/` are percent-encoded, so that no name lies below another. `SEAT` is 40 hexadecimal digits (see
//! `seats`); whose claim it is says the record. What does not look like that is a stray: it neither blocks nor counts.
//!
//! With `recipe=etcd` claims lie at `NAMESPACE/NAME/SEAT`, where etcd's own clients keep theirs as
//! `NAMESPACE/NAME/LEASE` in hexadecimal digits. Names are not encoded then, and barriers are
//! `NAMESPACE/.fencepost/session-LEASE`, which looks like nobody's claim.

use fencepost_core::name::{LockName, Namespace};

use crate::{config::Recipe, seats::Seat};

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

    /// The claim on a seat.
    pub(crate) fn claim(&self, name: &LockName, seat: Seat) -> Vec<u8> {
        let mut key = self.lock(name);
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
        key.strip_prefix(prefix).is_some_and(|tail| self.is_tail(tail))
    }

    /// The lock that a key is a claim of.
    pub(crate) fn name(&self, key: &[u8]) -> Option<LockName> {
        let below = key.strip_prefix(&*self.all())?;
        let slash = below.iter().rposition(|byte| *byte == b'/')?;
        let (name, tail) = (std::str::from_utf8(&below[..slash]).ok()?, &below[slash + 1..]);
        if !self.is_tail(tail) {
            return None;
        }
        match self.recipe {
            Recipe::Fencepost => LockName::new(decoded(name)?).ok(),
            Recipe::Etcd => LockName::new(name).ok(),
        }
    }

    fn is_tail(&self, tail: &[u8]) -> bool {
        let hexadecimal = tail.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
        match self.recipe {
            Recipe::Fencepost => hexadecimal && tail.len() == 40,
            Recipe::Etcd => hexadecimal && !tail.is_empty(),
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

    #[test]
    fn c3_names_read_back_and_do_not_nest() {
        let owner = Owner::random().unwrap();
        for recipe in [Recipe::Fencepost, Recipe::Etcd] {
            let keys = keys(recipe);
            for text in ["a", "a/b", "/", "%", "%2F", "%252F", "이름", "..", " ", "a/0"] {
                let name = LockName::new(text).unwrap();
                let key = keys.claim(&name, Seats::default().take(&name, &owner));
                assert_eq!(keys.name(&key), Some(name.clone()), "{text}");
                assert!(keys.is_claim(&keys.lock(&name), &key));
            }
        }
        let keys = keys(Recipe::Fencepost);
        assert_eq!(keys.lock(&LockName::new("a/b").unwrap()), b"app/x/locks/a%2Fb/");
    }

    #[test]
    fn strays_are_no_claims() {
        let ours = keys(Recipe::Fencepost);
        let owner = "0".repeat(40);
        for stray in ["app/x/locks/a/", "app/x/locks/a/readme", &format!("app/x/locks/a/b/{owner}"), &owner] {
            assert_eq!(ours.name(stray.as_bytes()), None, "{stray}");
        }
        assert_eq!(ours.name(format!("app/x/locks/%2f/{owner}").as_bytes()), None, "only one spelling is ours");
        let etcds = keys(Recipe::Etcd);
        assert_eq!(etcds.name(b"app/x/a/694d7e1f"), Some(LockName::new("a").unwrap()));
        assert_eq!(etcds.name(&etcds.barrier(255)), None);
        assert_eq!(etcds.name(b"app/x/a/readme"), None);
    }
}
