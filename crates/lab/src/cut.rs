//! How networks are cut: by the kernel where it lets us, by relays where it does not.

use fencepost_servers::Namespaces;

use crate::scenario::Stop;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Network namespaces where they are to be had, relays elsewhere.
    #[default]
    Either,
    /// Network namespaces. A cell that has none is not run.
    Namespaces,
    /// Relays.
    Relays,
}

/// What there is.
#[derive(Clone, Debug)]
pub enum CutBy {
    /// Servers and clients are on hosts of their own, each with a network namespace, and a cable is taken away.
    Namespaces(Namespaces),
    /// Relays between them lose what comes.
    Relays {
        /// Why.
        why: String,
    },
    /// Nothing that was asked for.
    Nothing {
        /// Why.
        why: String,
    },
}

impl CutBy {
    /// Chooses. With namespaces this thread, and all that it starts from now on, moves into them: what is to play scenarios
    /// (a runtime's threads) is started afterwards.
    pub fn choose(wish: Wish) -> Self {
        if wish == Wish::Relays {
            return CutBy::Relays { why: "relays were asked for".to_owned() };
        }
        match Namespaces::enter() {
            Ok(within) => CutBy::Namespaces(within),
            Err(why) if wish == Wish::Namespaces => CutBy::Nothing { why },
            Err(why) => CutBy::Relays { why: format!("no privileges for network namespaces: {why}") },
        }
    }

    /// Where disks of our own can be mounted.
    ///
    /// # Errors
    /// Why they cannot.
    pub(crate) fn namespaces(&self) -> Result<Namespaces, Stop> {
        match self {
            CutBy::Namespaces(within) => Ok(*within),
            CutBy::Relays { why } | CutBy::Nothing { why } => Err(Stop::NotInstalled(format!(
                "a small disk is mounted in namespaces of our own, and there are none: {why}"
            ))),
        }
    }

    /// The choice in a sentence.
    pub fn said(&self) -> String {
        match self {
            CutBy::Namespaces(_) => "networks are cut by the kernel, between network namespaces".to_owned(),
            CutBy::Relays { why } => format!("{why}; cut by relays instead"),
            CutBy::Nothing { why } => format!("no privileges for network namespaces: {why}"),
        }
    }
}
