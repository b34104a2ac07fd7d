//! The names of keys and channels (C3): everything lies below `NAMESPACE:`, so that an ACL limited to
//! `~NAMESPACE:*` and `&NAMESPACE:*` covers it; the keys of one lock share one hash tag.

use fencepost_core::name::{LockName, Namespace};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// What would end a hash tag or a part of a key, be a wildcard of `SCAN` and ACLs, or not print. The percent sign
/// makes the encoding reversible, so that two names never meet.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'%')
    .add(b':')
    .add(b'{')
    .add(b'}')
    .add(b'*')
    .add(b'?')
    .add(b'[')
    .add(b']')
    .add(b'^')
    .add(b'\\')
    .add(b'"')
    .add(b'\'');

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        Self { prefix: format!("{}:", encoded(namespace.as_str())) }
    }

    /// The lock itself.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        self.tagged(name, "")
    }

    /// The lock, its queue and its waiters: the keys of each script that knows the queue.
    pub(crate) fn all(&self, name: &LockName) -> [String; 3] {
        [self.tagged(name, ""), self.tagged(name, ":queue"), self.tagged(name, ":waiters")]
    }

    /// A cell and its watchers.
    pub(crate) fn cell(&self, name: &LockName) -> [String; 2] {
        let cell = format!("{}cell:{{{}}}", self.prefix, utf8_percent_encode(name.as_str(), ENCODED));
        let watchers = format!("{cell}:watchers");
        [cell, watchers]
    }

    /// One that is never there: no lock's key lacks its braces.
    pub(crate) fn probe(&self) -> String {
        format!("{}probe", self.prefix)
    }

    /// By hand, since every command needs keys and formatting costs more than the rest of it.
    fn tagged(&self, name: &LockName, what: &str) -> String {
        let mut key = String::with_capacity(self.prefix.len() + name.as_str().len() + what.len() + 2);
        key.push_str(&self.prefix);
        key.push('{');
        key.extend(utf8_percent_encode(name.as_str(), ENCODED));
        key.push('}');
        key.push_str(what);
        key
    }

    /// The name behind the key of a lock; `None` for the other keys, and for foreign ones that only look similar.
    pub(crate) fn name(&self, key: &str) -> Option<LockName> {
        let inner = key.strip_prefix(&self.prefix)?.strip_prefix('{')?.strip_suffix('}')?;
        let name = LockName::new(percent_decode_str(inner).decode_utf8().ok()?).ok()?;
        (self.lock(&name) == key).then_some(name)
    }

    /// A pattern for `SCAN` that every lock matches.
    pub(crate) fn pattern(&self) -> String {
        format!("{}{{*}}", self.prefix)
    }

    /// The channel on which one client hears of hand-overs and losses.
    pub(crate) fn channel(&self, client: &str) -> String {
        format!("{}wake:{client}", self.prefix)
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(namespace: &str) -> Keys {
        Keys::new(&Namespace::new(namespace).unwrap())
    }

    #[test]
    fn c3_every_key_of_a_lock_has_one_hash_tag() {
        let name = LockName::new("a}b{c:d%7B 이").unwrap();
        let [lock, queue, waiters] = keys("shop").all(&name);
        assert_eq!(lock, "shop:{a%7Db%7Bc%3Ad%257B%20%EC%9D%B4}");
        for key in [&lock, &queue, &waiters] {
            assert_eq!(key.matches(['{', '}']).count(), 2, "{key}");
            assert!(key.starts_with("shop:"));
        }
        assert_eq!(keys("shop").name(&lock), Some(name));
        for foreign in [&queue, &waiters, "shop:{a:b}", "shop:x", "other:{a}", "shop:{}", "shop:{%zz}"] {
            assert_eq!(keys("shop").name(foreign), None, "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn c3_names_never_collide(a in "\\PC{1,40}", b in "\\PC{1,40}", n in "\\PC{1,10}", m in "\\PC{1,10}") {
            let (Ok(a), Ok(b)) = (LockName::new(a), LockName::new(b)) else { return Ok(()) };
            prop_assert_eq!(keys(&n).name(&keys(&n).lock(&a)), Some(a.clone()));
            let ours: Vec<_> = keys(&n).all(&a).into_iter().chain([keys(&n).channel("c")]).collect();
            let theirs: Vec<_> = keys(&m).all(&b).into_iter().chain([keys(&m).channel("d")]).collect();
            if (&a, &n) != (&b, &m) {
                prop_assert!(ours.iter().all(|key| !theirs.contains(key)));
            }
        }
    }
}
