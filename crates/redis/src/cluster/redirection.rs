//! What an answer says of where a command is to go, and what a refusal of a node means.

use fencepost_core::error::{Applied, ErrorKind};
use redis::{RedisError, ServerErrorKind};

use crate::{failure::Failure, replicas::Trouble};

/// Whether a command was sent to a node that is only about to get the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    Yes,
    No,
}

/// What an answer says of where to go.
pub(super) enum Redirection {
    /// Nothing was done; do it there.
    To(String, Asking),
    /// Nothing was done; the cluster is not ready for it.
    Wait,
    /// The master may be another one.
    Perhaps {
        /// It may have been done all the same.
        sent: bool,
        /// A new connection to the same one may do.
        reconnect: bool,
    },
    None,
}

impl Redirection {
    pub(super) fn of(trouble: &Trouble) -> Self {
        use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
        let error = match trouble {
            Trouble::Unsent(failure) if failure.kind == ErrorKind::Unavailable => {
                return Self::Perhaps { sent: false, reconnect: false };
            }
            Trouble::Unsent(_) => return Self::None,
            Trouble::Answered(error) => error,
        };
        match (error.kind(), error.redirect_node()) {
            (redis::ErrorKind::Server(Moved), Some((address, _))) => Self::To(address.to_owned(), Asking::No),
            (redis::ErrorKind::Server(Ask), Some((address, _))) => Self::To(address.to_owned(), Asking::Yes),
            (redis::ErrorKind::Server(TryAgain | ClusterDown), _) => Self::Wait,
            (redis::ErrorKind::Server(ReadOnly | MasterDown), _) => Self::Perhaps { sent: false, reconnect: false },
            _ if error.is_connection_dropped() => Self::Perhaps { sent: true, reconnect: true },
            _ if error.is_timeout() => Self::Perhaps { sent: true, reconnect: false },
            _ => Self::None,
        }
    }
}

pub(super) fn failure_of(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Unsent(failure) => failure,
        Trouble::Answered(error) => cluster_failure(&error).unwrap_or_else(|| Failure::answered(&error)),
    }
}

/// What a refusal means when it comes from a node of a cluster.
pub(super) fn cluster_failure(error: &RedisError) -> Option<Failure> {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    let redis::ErrorKind::Server(kind) = error.kind() else { return None };
    let said = match kind {
        Moved | Ask | TryAgain => "the key's slot is being moved to another node of the cluster",
        ClusterDown => "the cluster is down: some of its slots have no master",
        ReadOnly | MasterDown => "the key's master in the cluster is being replaced",
        _ => return None,
    };
    Some(Failure::new(ErrorKind::Unavailable, Applied::No, said))
}
