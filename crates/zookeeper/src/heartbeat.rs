//! What proves that a session lives, and since when (T1).
//!
//! Only the leader expires sessions, and it hears of a client on another server with delay: a follower answers pings by
//! itself, keeps a list of who gave a sign of life, and hands it over when the leader next asks, twice in a tick. A
//! follower that is cut off from its leader goes on answering for up to `syncLimit` ticks, while the leader may expire
//! the session and the lock passes on. So an answer alone proves nothing. A heartbeat is two requests in a row:
//!
//! 1. A `sync`, which the leader answers. The next one is sent after that answer only, a quarter of the timeout or more
//!    after the heartbeat before.
//! 2. An empty transaction, which needs a quorum: a leader that was deposed cannot answer it, and a new one gives every
//!    session its whole timeout anew.
//!
//! The way from the follower to the leader keeps order. When the second request is answered, every list that the follower
//! handed over before it was sent has arrived. The leader asks for one at least every half tick, which is a quarter of the
//! shortest timeout that a server grants by default; so one was handed over after the *previous* heartbeat, and carries it.
//! The session therefore lasts a whole timeout from the sending of the previous heartbeat's transaction, and that is what
//! leases count from: never less than about half of the timeout is left while all is well.

use std::time::Duration;

use fencepost_core::clock::{Moment, Sent};

/// The heartbeat of one session, as a pure state machine: answers with times in, what to send and what is proven out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heartbeat {
    interval: Duration,
    /// What the heartbeat under way, or the next one, proves.
    candidate: Sent,
    rests_since: Moment,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Resting,
    Synchronizing,
    Committing(Sent),
}

impl Heartbeat {
    /// A session that was asked for at `sent` and greeted at `now`: making it was a transaction, so that much is proven.
    pub(crate) fn of_a_new_session(timeout: Duration, sent: Sent, now: Moment) -> Self {
        Self { interval: timeout / 4, candidate: sent, rests_since: now, step: Step::Resting }
    }

    /// A connection was made anew at `sent`. Its server asked the leader whether the session lives, which is a sign of
    /// life; a transaction must show that the leader still leads. It is to be sent at `now`.
    pub(crate) fn reconnected(&mut self, sent: Sent, now: Sent) {
        self.candidate = sent;
        self.step = Step::Committing(now);
    }

    /// Whether the `sync` is to be sent.
    pub(crate) fn begin(&mut self, now: Moment) -> bool {
        let due = self.step == Step::Resting && now >= self.rests_since.after(self.interval);
        if due {
            self.step = Step::Synchronizing;
        }
        due
    }

    /// The `sync` was answered; the transaction is to be sent at `now`.
    pub(crate) fn synchronized(&mut self, now: Sent) {
        self.step = Step::Committing(now);
    }

    /// The transaction was answered. The session lasts a timeout from the instant that comes back.
    pub(crate) fn committed(&mut self, now: Moment) -> Option<Sent> {
        let Step::Committing(sent) = self.step else { return None };
        let proven = std::mem::replace(&mut self.candidate, sent);
        (self.rests_since, self.step) = (now, Step::Resting);
        Some(proven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn sent(ms: u64) -> Sent {
        Sent::at(at(ms))
    }

    #[test]
    fn t1_a_heartbeat_proves_the_one_before() {
        let mut heart = Heartbeat::of_a_new_session(Duration::from_millis(4000), sent(0), at(5));
        assert!(!heart.begin(at(1004)), "a quarter after the last answer");
        assert!(heart.begin(at(1005)));
        assert!(!heart.begin(at(1006)), "one at a time");
        heart.synchronized(sent(1010));
        assert_eq!(heart.committed(at(1020)), Some(sent(0)), "the session's beginning");
        assert!(!heart.begin(at(2019)) && heart.begin(at(2020)));
        heart.synchronized(sent(2030));
        assert_eq!(heart.committed(at(2040)), Some(sent(1010)), "not its own sending");
    }

    #[test]
    fn t1_a_new_connection_counts_from_its_own_request_once_a_quorum_agrees() {
        let mut heart = Heartbeat::of_a_new_session(Duration::from_millis(4000), sent(0), at(5));
        assert!(heart.begin(at(1005)));
        heart.reconnected(sent(2000), sent(2010)); // the sync of the broken connection is forgotten
        assert!(!heart.begin(at(9000)), "the transaction is under way");
        assert_eq!(heart.committed(at(2020)), Some(sent(2000)));
        assert_eq!(heart.committed(at(2021)), None);
    }
}
