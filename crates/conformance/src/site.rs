//! Where a store under test lives, and what can be done to it from outside.

use fencepost_core::{capabilities::Capabilities, name::LockName, name::Namespace, store::BoxFuture};
use fencepost_servers::Network;

/// Whether a rule applies to a site. A broken rule panics.
pub type Verdict<T = ()> = Result<T, DoesNotApply>;

/// Why a rule, or a step of it, does not apply to a site.
#[derive(Clone, Copy, Debug)]
pub struct DoesNotApply(pub &'static str);

/// A store's place. Every method is what somebody other than our clients would do.
pub trait Site: Send + Sync + 'static {
    /// The facts about the store.
    fn capabilities(&self) -> Capabilities;

    /// Where clients find it. Each opening of this URL is a client of its own, as another process would have.
    fn url(&self) -> String;

    /// The prefix that this site's locks live below.
    fn namespace(&self) -> Namespace {
        Namespace::new("conformance").expect("a valid namespace")
    }

    /// Whether other processes reach the same locks.
    ///
    /// # Errors
    /// When they cannot.
    fn apart(&self) -> Verdict {
        Ok(())
    }

    /// Does to the store what an administrator, a bug elsewhere or a broken disk would do.
    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict>;

    /// What is recorded as held or waiting, as an administrator would list it; empty when all was given back.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>>;

    /// A network between clients and the store that can be disturbed.
    ///
    /// # Errors
    /// When there is none.
    fn network(&self) -> Verdict<&Network> {
        Err(DoesNotApply("no network lies between the client and the store"))
    }

    /// Where clients find the store behind that network.
    ///
    /// # Errors
    /// When there is none.
    fn disturbed_url(&self) -> Verdict<String> {
        Err(DoesNotApply("no network lies between the client and the store"))
    }

    /// The server behind it.
    ///
    /// # Errors
    /// When there is none.
    fn server(&self) -> Verdict<&dyn Server> {
        Err(DoesNotApply("there is no server"))
    }

    /// URLs that the store must refuse for lack of rights.
    ///
    /// # Errors
    /// When it knows no rights.
    fn forbidden_url(&self) -> Verdict<String> {
        Err(DoesNotApply("the site has no user without rights"))
    }
}

/// What can be done to a store from outside.
#[derive(Clone, Copy, Debug)]
pub enum Tampering<'a> {
    /// Remove the record of a lock's holder with the store's own tools.
    Delete(&'a LockName),
    /// Put something of somebody else's where the record of a lock belongs.
    PlantForeign(&'a LockName),
    /// Put something of another type there.
    PlantWrongType(&'a LockName),
    /// Make the record of a lock's last fence unreadable.
    CorruptFence(&'a LockName),
    /// Take the expiry off a holder's record.
    MakePermanent(&'a LockName),
    /// Forget every script the server has seen.
    FlushScripts,
    /// Cut the connections that carry wake-ups.
    CutMessages,
}

/// A server process of the site's own.
pub trait Server: Send + Sync {
    /// Ends it as `kill -9` does.
    fn kill(&self);

    /// Starts it again on the same address with the data it had written by then, and waits until it answers.
    fn start(&self);

    /// How many connections it serves, this question's own left out.
    fn connections(&self) -> usize;
}
