//! Where a lock lies and how its nodes are named (C3).
//!
//! `CHROOT/NAMESPACE/NAME` is a container; each claim is an ephemeral sequential node in it. The node's name begins with
//! the claim's owner value, so that a node whose creation was never answered can be found again, and says how the lock is
//! wanted: a listing alone shows who stands in whose way.
//!
//! `CHROOT/NAMESPACE/NAME/slots` is a container with an ephemeral node for each permit that is held, called by its number.
//!
//! `CHROOT/NAMESPACE/%cells/NAME` is a cell, with one node below it that is called after the change that wrote it. No lock
//! can be called so: what begins with a percent sign is two hexadecimal digits in capitals, or no name.

use fencepost_core::{
    claim::Mode,
    name::{LockName, Namespace},
    owner::{OWNER_BYTES, Owner},
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// What ends a part of a path or does not print; the percent sign makes the encoding reversible. Everything beyond ASCII
/// is encoded as well: ZooKeeper refuses some of it.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'/').add(b'"').add(b'\'').add(b'\\');

/// Whose nodes look like ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recipe {
    /// Nodes that only Fencepost makes; others are passed over.
    #[default]
    Fencepost,
    /// As Curator's `InterProcessMutex` has them; every node with a number in its name counts, whoever made it.
    Curator,
}

/// The paths of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    chroot: String,
    /// Where the namespace lies.
    pub(crate) namespace: String,
    recipe: Recipe,
}

/// A node that stands for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    /// The number that the server appended.
    pub(crate) number: i64,
    /// Whose it is; `None` for a node that another program made.
    pub(crate) owner: Option<Owner>,
    /// How the lock is wanted; `None` where only a later version of this program knows.
    pub(crate) mode: Option<Mode>,
}

impl Layout {
    pub(crate) fn new(chroot: &str, namespace: &Namespace, recipe: Recipe) -> Self {
        let namespace = match namespace.as_str() {
            // The servers keep their own things there.
            "zookeeper" if chroot.is_empty() => "%7Aookeeper".to_owned(),
            namespace => encoded(namespace),
        };
        Self { chroot: chroot.to_owned(), namespace: format!("{chroot}/{namespace}"), recipe }
    }

    /// The path that must be there before we come.
    pub(crate) fn chroot(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// The container of a lock's nodes.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        let mut path = String::with_capacity(self.namespace.len() + 1 + name.as_str().len());
        path.push_str(&self.namespace);
        path.push('/');
        push_encoded(&mut path, name.as_str());
        path
    }

    /// Where all cells lie.
    pub(crate) fn cells(&self) -> String {
        format!("{}/{CELLS}", self.namespace)
    }

    /// A cell.
    pub(crate) fn cell(&self, name: &LockName) -> String {
        let mut path = self.cells();
        path.push('/');
        push_encoded(&mut path, name.as_str());
        path
    }

    /// The name behind a child of the namespace; `None` for what is not ours.
    pub(crate) fn name(&self, child: &str) -> Option<LockName> {
        let name = LockName::new(percent_decode_str(child).decode_utf8().ok()?).ok()?;
        (encoded(name.as_str()) == child).then_some(name)
    }

    /// Whose nodes look like ours.
    pub(crate) fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// What a claim's node is to be called; the server appends ten digits.
    pub(crate) fn node(&self, owner: &Owner, mode: Mode) -> String {
        match self.recipe {
            Recipe::Fencepost => match mode {
                Mode::Exclusive => format!("{owner}-{EXCLUSIVE}-"),
                Mode::Shared => format!("{owner}-{SHARED}-"),
                Mode::Permits { count, of } => format!("{owner}-{PERMITS}{count}{OF}{of}-"),
            },
            // Of that recipe, which has no other modes.
            Recipe::Curator => {
                let hex = owner.to_string();
                let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32], &hex[32..]];
                format!("{CURATOR}{}{CURATOR_LOCK}", parts.join("-"))
            }
        }
    }

    /// The claim behind a child of a lock; `None` for what is none.
    pub(crate) fn contender(&self, name: String) -> Option<Contender> {
        let (owner, mode, number) = match self.recipe {
            Recipe::Fencepost => {
                let (owner, rest) = (name.get(..2 * OWNER_BYTES)?, name.get(2 * OWNER_BYTES..)?);
                let (wanted, number) = rest.strip_prefix('-')?.split_once('-')?;
                (Some(owner.parse().ok()?), mode(wanted), appended(number)?)
            }
            Recipe::Curator => (curator_owner(&name), Some(Mode::Exclusive), trailing(&name)?),
        };
        Some(Contender { name, number, owner, mode })
    }
}

/// Where the permits of a lock's container lie that are held.
pub(crate) fn slots(lock: &str) -> String {
    format!("{lock}/slots")
}

const CELLS: &str = "%cells";

/// Between owner value and number: how the lock is wanted. Permits are as in `p2of5`.
const EXCLUSIVE: &str = "x";
const SHARED: &str = "r";
const PERMITS: &str = "p";
const OF: &str = "of";
const CURATOR: &str = "_c_";
const CURATOR_LOCK: &str = "-lock-";

fn mode(wanted: &str) -> Option<Mode> {
    match wanted {
        EXCLUSIVE => Some(Mode::Exclusive),
        SHARED => Some(Mode::Shared),
        permits => {
            let (count, of) = permits.strip_prefix(PERMITS)?.split_once(OF)?;
            Some(Mode::Permits { count: count.parse().ok()?, of: of.parse().ok()? })
        }
    }
}

/// Ten digits; once the server's counter has run over, ten characters or more of which the first is a sign.
fn appended(number: &str) -> Option<i64> {
    let (digits, least) = number.strip_prefix('-').map_or((number, 10), |digits| (digits, 9));
    let sound = (least..=10).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    sound.then(|| number.parse().ok())?
}

/// The number at the end of any sequential node's name. What is left of it is somebody else's business; a sign belongs
/// to the number only behind another dash, as in `-lock--2147483648`.
fn trailing(name: &str) -> Option<i64> {
    let at = name.len().checked_sub(10)?;
    let number = appended(name.get(at..)?)?;
    let before = &name[..at];
    let negative = number > 0 && (before.ends_with("--") || before.ends_with("_-"));
    Some(if negative { -number } else { number })
}

/// The owner value in a name of ours: a UUID as Curator has it, and the rest behind it.
fn curator_owner(name: &str) -> Option<Owner> {
    let rest = name.strip_prefix(CURATOR)?;
    let (value, _) = rest.split_once(CURATOR_LOCK)?;
    value.replace('-', "").parse().ok()
}

fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    push_encoded(&mut encoded, text);
    encoded
}

fn push_encoded(path: &mut String, text: &str) {
    match text {
        "." => path.push_str("%2E"),
        ".." => path.push_str("%2E%2E"),
        text => path.extend(utf8_percent_encode(text, ENCODED)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(recipe: Recipe) -> Layout {
        Layout::new("/apps", &Namespace::new("shop").unwrap(), recipe)
    }

    const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 2, of: 1_000 }];

    #[test]
    fn a_node_is_found_by_its_owner_value() {
        for (recipe, modes) in [(Recipe::Fencepost, &MODES[..]), (Recipe::Curator, &MODES[..1])] {
            let owner = Owner::random().unwrap();
            for (number, mode) in ["0000000007", "2147483647", "-2147483648", "-000000001"]
                .iter()
                .flat_map(|number| modes.iter().map(move |mode| (number, *mode)))
            {
                let contender = layout(recipe).contender(format!("{}{number}", layout(recipe).node(&owner, mode)));
                let contender = contender.expect("a claim's node");
                assert_eq!((contender.owner, contender.number), (Some(owner), number.parse().unwrap()), "{recipe:?}");
                assert_eq!(contender.mode, Some(mode));
            }
        }
    }

    /// A later version's kind of claim is known to be a claim: passing it over could let two in.
    #[test]
    fn a_claim_of_a_kind_that_is_not_known_is_one() {
        for kind in ["y", "", "p2", "p2of", "pxof3", "x2"] {
            let contender = layout(Recipe::Fencepost).contender(format!("{}-{kind}-0000000001", "a".repeat(40)));
            assert_eq!(contender.expect("a claim's node").mode, None, "{kind}");
        }
    }

    #[test]
    fn what_is_no_claim_is_passed_over() {
        let ours = layout(Recipe::Fencepost);
        for stray in ["", "config", "lock-0000000001", &"é".repeat(20), &format!("{}-x0000000001", "a".repeat(40))] {
            assert_eq!(ours.contender(stray.to_owned()), None, "{stray}");
        }
        let curator = layout(Recipe::Curator);
        let kazoo = curator.contender("0f3b__lock__0000000012".to_owned()).expect("kazoo's node counts");
        assert_eq!((kazoo.owner, kazoo.number), (None, 12));
        assert_eq!(curator.contender("config".to_owned()), None);
    }

    #[test]
    fn c3_the_servers_own_place_is_left_alone() {
        let namespace = Namespace::new("zookeeper").unwrap();
        assert_eq!(Layout::new("", &namespace, Recipe::Fencepost).namespace, "/%7Aookeeper");
        assert_eq!(layout(Recipe::Fencepost).lock(&LockName::new("..").unwrap()), "/apps/shop/%2E%2E");
        assert_eq!(
            layout(Recipe::Fencepost).lock(&LockName::new("orders/1 é").unwrap()),
            "/apps/shop/orders%2F1%20%C3%A9"
        );
    }

    #[test]
    fn c3_the_place_of_cells_is_no_locks() {
        assert_eq!(layout(Recipe::Fencepost).name(CELLS), None);
        let cell = LockName::new("word/x").unwrap();
        assert_eq!(layout(Recipe::Fencepost).cell(&cell), "/apps/shop/%cells/word%2Fx");
    }

    proptest! {
        #[test]
        fn c3_names_never_collide(a in "\\PC{1,40}") {
            let Ok(name) = LockName::new(&a) else { return Ok(()) };
            let path = layout(Recipe::Fencepost).lock(&name);
            let child = path.strip_prefix("/apps/shop/").unwrap();
            prop_assert!(!child.contains('/') && child.is_ascii());
            prop_assert_eq!(layout(Recipe::Fencepost).name(child), Some(name));
        }
    }
}
