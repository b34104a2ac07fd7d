//! Shards: the parts of a group's work, each held by the member that owns it.

use std::{
    collections::{BTreeSet, HashMap},
    future::Future,
    pin::Pin,
    time::Duration,
};

use fencepost_core::{
    error::{Error, ErrorKind, Operation},
    purpose::{Correctness, Efficiency, Purpose},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::Member;
use crate::{lease::Lease, request::Attempt};

macro_rules! members_for {
    ($purpose:ty) => {
        impl Member<$purpose> {
            /// The work in `count` shards, numbered from 0, of which this member takes those that are its own: each by
            /// the lock `GROUP/shard/NUMBER`, held with `ttl`. All members must state the same count.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidInput`] for no shards, or more than [`MOST_SHARDS`].
            pub fn shards(&self, count: u32, ttl: Duration) -> Result<Shards<'_, $purpose>, Error> {
                let locks = self.members.locks.clone();
                let group = self.members.name.clone();
                let ask = move |shard: u32| -> Asking<Answer<$purpose>> {
                    let request =
                        locks.lock(format!("{group}/shard/{shard}")).ttl(ttl).label("shard", shard.to_string());
                    Box::pin(async move { (shard, request.acquire().await) })
                };
                Shards::new(self, count, Box::new(ask))
            }
        }
    };
}

members_for!(Correctness);
members_for!(Efficiency);

/// A shard and what became of asking for its lock.
type Answer<P> = (u32, Result<Attempt<Lease<P>>, Error>);
type Asking<A> = Pin<Box<dyn Future<Output = A> + Send>>;

/// The most shards of one group.
pub const MOST_SHARDS: u32 = 100_000;

/// The shards of one member: which it gains, and which it shall leave.
pub struct Shards<'a, P> {
    member: &'a Member<P>,
    count: u32,
    ask: Box<dyn Fn(u32) -> Asking<Answer<P>> + Send + Sync>,
    /// Handed out and not yet to be left.
    given: BTreeSet<u32>,
    asked: HashMap<u32, oneshot::Sender<()>>,
    /// An answer of `None` means that it was not wanted any more.
    asking: FuturesUnordered<Asking<Option<Answer<P>>>>,
    seen: Option<BTreeSet<String>>,
    to_leave: Vec<u32>,
}

/// What happened to a member's shards.
#[derive(Debug)]
pub enum ShardEvent<P> {
    /// The shard is this member's now, under this lease. The fence is higher than that of whoever had it before.
    Gained {
        /// Its number.
        shard: u32,
        /// Its lock. Watch it as any lease: it can be lost.
        lease: Lease<P>,
    },
    /// The shard is another's now, who waits for it: finish what is under way and release its lease.
    Leave {
        /// Its number.
        shard: u32,
    },
}

impl<'a, P: Purpose> Shards<'a, P> {
    fn new(
        member: &'a Member<P>,
        count: u32,
        ask: Box<dyn Fn(u32) -> Asking<Answer<P>> + Send + Sync>,
    ) -> Result<Self, Error> {
        if count == 0 || count > MOST_SHARDS {
            let said = format!("{count} shards are outside the limits of 1 to {MOST_SHARDS}");
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Claim, said).not_applied());
        }
        Ok(Self {
            member,
            count,
            ask,
            given: BTreeSet::new(),
            asked: HashMap::new(),
            asking: FuturesUnordered::new(),
            seen: None,
            to_leave: Vec::new(),
        })
    }

    /// The next change. Nothing is taken or left without calling it.
    ///
    /// # Errors
    /// As for [`LockRequest::acquire`](crate::LockRequest::acquire), for one of the shards, which is asked for again
    /// by the next call. [`ErrorKind::Closed`] when the locks were closed, after what is to be left.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Result<ShardEvent<P>, Error> {
        loop {
            let view = self.member.present();
            if self.seen.as_ref() != Some(&view) {
                self.divide(&view);
                self.seen = Some(view);
            }
            if let Some(shard) = self.to_leave.pop() {
                return Ok(ShardEvent::Leave { shard });
            }
            let (seen, client) = (self.seen.clone().unwrap_or_default(), self.member.members.locks.client());
            tokio::select! {
                biased; // what is to be left goes before the end
                Some(answer) = self.asking.next() => {
                    let Some((shard, answer)) = answer else { continue };
                    self.asked.remove(&shard);
                    match answer {
                        Ok(Attempt::Acquired(lease)) => {
                            self.given.insert(shard);
                            return Ok(ShardEvent::Gained { shard, lease });
                        }
                        Ok(Attempt::Busy(_)) => self.seen = None, // ask again
                        Err(error) => {
                            self.seen = None;
                            return Err(error);
                        }
                    }
                }
                () = self.member.changed(&seen) => {}
                error = client.closed() => return Err(error),
            }
        }
    }

    /// Says that a shard's lease was lost or given back by itself, so that it is asked for again if it is still this
    /// member's.
    pub fn lost(&mut self, shard: u32) {
        self.given.remove(&shard);
        self.seen = None;
    }

    /// Asks for what is ours now, and gives up what is not.
    fn divide(&mut self, view: &BTreeSet<String>) {
        for shard in 0..self.count {
            let ours = owner_of(view.iter().map(String::as_str), &shard.to_string()) == Some(self.member.id());
            let (given, asked) = (self.given.contains(&shard), self.asked.contains_key(&shard));
            match (ours, given, asked) {
                (true, false, false) => self.start_asking(shard),
                (false, true, _) => {
                    self.given.remove(&shard);
                    self.to_leave.push(shard);
                }
                // Its place in the queue is given back.
                (false, false, true) => drop(self.asked.remove(&shard)),
                _ => {}
            }
        }
    }

    fn start_asking(&mut self, shard: u32) {
        let (wanted, unwanted) = oneshot::channel();
        let asking = (self.ask)(shard);
        self.asked.insert(shard, wanted);
        self.asking.push(Box::pin(async move {
            tokio::select! {
                biased; // a lock that comes just when it is another's is none to be had
                _ = unwanted => None,
                answer = asking => Some(answer),
            }
        }));
    }
}

impl<P> std::fmt::Debug for Shards<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("count", &self.count).field("given", &self.given).finish_non_exhaustive()
    }
}

/// Which of `members` owns `key`: the one whose hash with the key is the highest. It is the same on every machine and
/// in every version: the first eight bytes, as a big-endian number, of the SHA-256 of the member, a zero byte and the
/// key. `None` when there are no members.
pub fn owner_of<'a>(members: impl Iterator<Item = &'a str>, key: &str) -> Option<&'a str> {
    members.max_by_key(|member| {
        let digest = Sha256::new().chain_update(member).chain_update([0]).chain_update(key).finalize();
        // The member decides where two hashes are equal.
        (u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes")), *member)
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::locks::Locks;

    /// Both are ready at once: the lock, and that it is not wanted any more.
    #[tokio::test]
    async fn a_shard_that_has_become_anothers_is_never_gained() {
        let locks = Locks::open("memory:unwanted").await.unwrap().fenced().unwrap();
        let view = |id: &str| BTreeSet::from([id.to_owned()]);
        for _ in 0..40 {
            let member = Member {
                members: locks.members("group").unwrap(),
                id: "me".to_owned(),
                view: watch::channel(view("me")).0,
                _alive: oneshot::channel().0,
            };
            let mut before = locks.lock("group/shard/0").acquire().await.unwrap().acquired().unwrap();
            let mut shards = member.shards(1, Duration::from_secs(30)).unwrap();
            let queued = async {
                while locks.store().inspect(None).await.unwrap()[0].waiters.is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                event = shards.next() => panic!("it is held: {event:?}"),
                () = queued => {}
            }
            member.view.send_replace(view("another"));
            before.release().await.unwrap();
            let given_back = async {
                while !locks.store().inspect(None).await.unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                event = shards.next() => panic!("it is another's: {event:?}"),
                () = given_back => {}
            }
        }
    }

    #[test]
    fn only_the_keys_of_whoever_comes_or_goes_move() {
        let all = ["a", "b", "c", "d"];
        let without: Vec<_> = all.into_iter().filter(|member| *member != "c").collect();
        let mut of_c = 0;
        for key in 0..1000 {
            let key = key.to_string();
            let (before, after) = (owner_of(all.into_iter(), &key), owner_of(without.iter().copied(), &key));
            if before == Some("c") {
                of_c += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        assert!((200..300).contains(&of_c), "about a quarter: {of_c}");
        assert_eq!(owner_of(std::iter::empty(), "x"), None);
    }

    /// Another version of this library, or another language, must come to the same answers.
    #[test]
    fn the_hash_is_what_it_was() {
        let owners: String =
            (0..12).filter_map(|key| owner_of(["a", "b", "c"].into_iter(), &key.to_string())).collect();
        assert_eq!(owners, "bbaacbbbccba");
    }
}
