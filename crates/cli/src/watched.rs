//! Descriptors that the runtime watches for something to read.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use tokio::net::unix::pipe::Receiver;

/// A descriptor in non-blocking mode, watched by the runtime.
///
/// What watches a pipe for the runtime watches any descriptor that can be polled: a socket, a signal descriptor,
/// a process.
#[derive(Debug)]
pub(crate) struct Watched(Receiver);

impl Watched {
    /// Begins to watch, inside a runtime.
    ///
    /// # Errors
    /// When the system cannot watch it.
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        Receiver::from_owned_fd_unchecked(descriptor).map(Self)
    }

    /// The first answer of `read` other than that there is nothing yet. Cancel safe.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) async fn read<T>(&self, mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        loop {
            self.0.readable().await?;
            match self.0.try_io(|| read(self.0.as_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                answer => return answer,
            }
        }
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
