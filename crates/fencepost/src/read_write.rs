//! Many readers or one writer.

use std::sync::Arc;

use fencepost_core::{
    claim::Mode,
    error::{Error, ErrorKind, Operation},
    purpose::{Correctness, Efficiency},
};

use crate::{
    hold::{Exclusive, Shared},
    locks::Locks,
    request::LockRequest,
};

/// A read-write lock, as one owner sees it. Made by [`Locks::read_write`]; clones are the same owner.
///
/// First come, first served, where the store serves in that order: a writer that waits lets no later reader pass, so
/// writers get their turn. Dead readers go as dead holders do. A plain [`lock`](Locks::lock) of the same name is its
/// writer.
///
/// There is no upgrade. Two readers that both waited for the other to leave would wait forever, so an owner that
/// reads is refused as writer until its readers are back: give the reader back, take the writer, and read again.
/// The other way there is [`downgrade`](crate::Lease::downgrade), without a gap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Acquired, Locks};
///
/// let locks = Locks::open("memory:read-write").await?.fenced()?;
/// let prices = locks.read_write("prices");
/// if let Acquired(writer) = prices.write().acquire().await? {
///     println!("writing with fence {}", writer.fence());
///     let reader = writer.downgrade().await?;
///     println!("read back under the same fence, {:?}", reader.fence());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReadWrite<P> {
    locks: Locks<P>,
    owner: Arc<Reading>,
}

/// One owner, and the readers it has.
#[derive(Debug)]
struct Reading {
    name: String,
    /// Shared with each reader, and with each that is being asked for.
    readers: Arc<()>,
}

impl<P> ReadWrite<P> {
    pub(crate) fn new(locks: Locks<P>, name: &str) -> Self {
        Self { locks, owner: Arc::new(Reading { name: name.to_owned(), readers: Arc::default() }) }
    }

    /// Why this owner cannot write now.
    fn upgrade(&self) -> Option<Error> {
        (Arc::strong_count(&self.owner.readers) > 1).then(|| {
            let said = "this owner still reads, and a reader cannot become the writer: it would wait for itself";
            Error::new(ErrorKind::InvalidInput, Operation::Claim, said)
                .not_applied()
                .advise("give the reader back, take the writer, and read again")
        })
    }
}

macro_rules! read_write_for {
    ($purpose:ty) => {
        impl ReadWrite<$purpose> {
            /// To be taken beside other readers.
            pub fn read(&self) -> LockRequest<$purpose, Shared> {
                LockRequest::new(self.locks.client().clone(), &self.owner.name, Mode::Shared)
                    .counted_by(self.owner.readers.clone())
            }

            /// To be taken alone. It is refused ([`ErrorKind::InvalidInput`], by
            /// [`acquire`](LockRequest::acquire)) when this owner has a reader, or asks for one, at the time of this
            /// call.
            pub fn write(&self) -> LockRequest<$purpose, Exclusive> {
                LockRequest::new(self.locks.client().clone(), &self.owner.name, Mode::Exclusive).refused(self.upgrade())
            }
        }
    };
}

read_write_for!(Correctness);
read_write_for!(Efficiency);
