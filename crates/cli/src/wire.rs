//! The line between this command and the process it forked: whole messages, with the descriptors that go along.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::watched::Watched;

/// More than the longest message: owner values and fences of 250 locks, or the slots of 1,000 permits.
const LONGEST: usize = 32 * 1024;
/// The most descriptors that the kernel takes along with one message (unix(7), `SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

/// What the command tells the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// What the command needs is held: start it. The locks' descriptors come along where there are any.
    Start(Start),
    /// The lease was extended: its end in nanoseconds of the boot clock.
    Deadline(u64),
    /// Pass this signal to the command.
    Signal(i32),
    /// The lease is lost for certain.
    Lost,
}

/// What the command is started with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) told: Told,
    /// How many descriptors come along.
    pub(crate) descriptors: usize,
    /// The lease's end in nanoseconds of the boot clock, where it has one.
    pub(crate) deadline: Option<u64>,
    /// Whether the command gets the terminal.
    pub(crate) terminal: bool,
}

/// What the command learns of the grant, beside the names of the locks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The owner value for each lock, in the order of their names.
    pub(crate) owners: Vec<String>,
    /// The fence for each lock; none where the store issues none, or nobody has written yet.
    pub(crate) fences: Vec<u64>,
    /// The slots of permits.
    pub(crate) slots: Vec<u32>,
    /// The term of a leader.
    pub(crate) term: Option<u64>,
}

/// What the guardian tells the command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command runs, as the leader of the process group of this number.
    Started(i32),
    /// It could not be started: the system's error number.
    NotStarted(i32),
    /// It was not started: the lease had ended, or was about to.
    TooLate,
    /// It was stopped by this signal.
    Stopped(i32),
    /// Nothing of it runs any more, but for what is listed.
    Ended(Ended),
}

/// How the command ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// Its exit code; 128+n after signal n.
    pub(crate) code: u8,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Whether the guardian ended it because the lease was lost or about to be.
    pub(crate) for_the_lease: bool,
    /// How many processes the command had left behind that had to be ended.
    pub(crate) left_behind: usize,
    /// Processes that could not be ended.
    pub(crate) unkillable: Vec<i32>,
}

/// What the keeper tells the command that started it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Kept {
    /// The lock is held and kept.
    Granted(Told),
    /// It is not, and this is how the command ends.
    Failed(crate::exit::Ending),
}

/// One end of the line. It never blocks.
#[derive(Debug)]
pub(crate) struct Line<D = OwnedFd>(D);

impl Line {
    /// Both ends.
    ///
    /// # Errors
    /// When no descriptors are to be had.
    pub(crate) fn pair() -> io::Result<(Line, Line)> {
        // Close-on-exec, so that the command never inherits it: it would keep the line open for a dead process.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Line(a), Line(b)))
    }

    /// The same end, watched by the runtime.
    ///
    /// # Errors
    /// When the system cannot watch it.
    pub(crate) fn watched(self) -> io::Result<Line<Watched>> {
        Watched::new(self.0).map(Line)
    }

    /// Says nothing more; the other side sees the end of the line and can still speak.
    pub(crate) fn hang_up(&self) {
        // It fails when the other side is gone, who needs no telling.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }

    /// Receives one message; `None` when the other side is gone.
    ///
    /// # Errors
    /// `WouldBlock` when there is none yet.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        receive(self.0.as_fd())
    }
}

impl Line<Watched> {
    /// The next message; `None` when the other side is gone. Cancel safe.
    pub(crate) async fn next<T: DeserializeOwned>(&self) -> Option<T> {
        let received = self.0.read(|descriptor| receive(descriptor)).await;
        received.ok().flatten().map(|(message, _)| message)
    }
}

impl<D: AsFd> Line<D> {
    /// Sends one message.
    ///
    /// # Errors
    /// `WouldBlock` when the other side does not read, `BrokenPipe` when it is gone.
    pub(crate) fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other(format!("more than {MOST_DESCRIPTORS} descriptors for one message")));
        }
        // A dead other side is seen as the end of the line, not as a signal that kills us.
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl<D: AsFd> AsFd for Line<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn receive<T: DeserializeOwned>(line: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut receive = || rustix::net::recvmsg(line, &mut [IoSliceMut::new(&mut text)], &mut control, flags);
    let received = match receive() {
        // The other side is gone and had not read all of ours. The kernel says so once, ahead of its last words.
        Err(Errno::CONNRESET) => receive(),
        received => received,
    }?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    Ok(Some((serde_json::from_slice(&text[..received.bytes])?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_arrive_from_who_did_not_listen_any_more() {
        let (near, far) = Line::pair().unwrap();
        near.send(&Order::Deadline(7), &[]).unwrap();
        far.send(&Report::TooLate, &[]).unwrap();
        drop(far);
        assert!(matches!(near.receive::<Report>(), Ok(Some((Report::TooLate, none))) if none.is_empty()));
        assert!(near.receive::<Report>().unwrap().is_none());
    }

    #[test]
    fn a_message_arrives_with_all_its_descriptors_and_then_the_end() {
        let (near, far) = Line::pair().unwrap();
        assert_eq!(far.receive::<Order>().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.send(&Order::Deadline(7), &[near.as_fd(); MOST_DESCRIPTORS]).unwrap();
        let (order, descriptors) = far.receive::<Order>().unwrap().unwrap();
        assert!(matches!(order, Order::Deadline(7)) && descriptors.len() == MOST_DESCRIPTORS);
        assert!(near.send(&Order::Deadline(8), &[near.as_fd(); MOST_DESCRIPTORS + 1]).is_err());
        drop((near, descriptors));
        assert!(far.receive::<Order>().unwrap().is_none());
        assert_eq!(far.send(&Order::Lost, &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
