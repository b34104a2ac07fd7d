//! Which key a claim gets.
//!
//! etcd remembers each key that ever was until it is compacted, and every look below a prefix walks over all of them. A key
//! of its own for each claim would make a busy lock slower with every grant. So a client's claims on a lock take turns on a
//! few keys: a *seat* is one of them, held by one claim at a time, and the lowest that is free is given out.
//!
//! A seat is given out again only when nothing that was sent for its last claim can be carried out any more; else a removal
//! that comes late would take the next claim's key away. Where that is not known, all seats of this client are given up for
//! others with new names.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    fmt,
};

use fencepost_core::{name::LockName, owner::Owner};

/// One of a client's keys below a lock: displayed in 40 hexadecimal digits, the client's own first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// 96 random bits.
    client: u128,
    /// How often the client has given up its seats.
    round: u32,
    number: u32,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:024x}{:08x}{:08x}", self.client, self.round, self.number)
    }
}

/// The seats of one client at all locks.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    client: Option<u128>,
    round: u32,
    locks: HashMap<LockName, Taken>,
}

/// The seats at one lock, of one round, while any is taken.
#[derive(Debug, Default)]
struct Taken {
    /// The revision that created the claim that was last seen to be the first: whoever came before it is gone for good.
    first: i64,
    round: u32,
    /// How many numbers were given out, from 0 on.
    numbers: u32,
    /// Those of them that came back.
    free: BinaryHeap<Reverse<u32>>,
}

impl Seats {
    /// A seat for the claim of this owner.
    pub(crate) fn take(&mut self, lock: &LockName, owner: &Owner) -> Seat {
        // The first claim's randomness is as good as any.
        let client = *self
            .client
            .get_or_insert_with(|| owner.as_bytes()[..12].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)));
        let taken = self.locks.entry(lock.clone()).or_default();
        if taken.round != self.round {
            *taken = Taken { round: self.round, first: taken.first, ..Taken::default() };
        }
        let number = taken.free.pop().map_or(taken.numbers, |Reverse(number)| number);
        taken.numbers = taken.numbers.max(number + 1);
        Seat { client, round: self.round, number }
    }

    /// The seat is free, and nothing that was sent for its claim can take effect any more.
    pub(crate) fn give_back(&mut self, lock: &LockName, seat: Seat) {
        let Some(taken) = self.locks.get_mut(lock).filter(|taken| taken.round == seat.round) else { return };
        taken.free.push(Reverse(seat.number));
        if taken.free.len() == taken.numbers as usize {
            self.locks.remove(lock);
        }
    }

    /// Whether any seat at this lock is taken.
    pub(crate) fn any_taken(&self, lock: &LockName) -> bool {
        self.locks.contains_key(lock)
    }

    /// The claim that this revision created was seen to be the first.
    pub(crate) fn is_first(&mut self, lock: &LockName, created: i64) {
        if let Some(taken) = self.locks.get_mut(lock) {
            taken.first = created;
        }
    }

    /// The claim that was last seen to be the first, by the revision that created it; 0 where none is known.
    pub(crate) fn first(&self, lock: &LockName) -> i64 {
        self.locks.get(lock).map_or(0, |taken| taken.first)
    }

    /// Something that was sent for a seat's claim may take effect yet.
    pub(crate) fn give_up(&mut self) {
        self.round = self.round.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_taken_again_and_again_needs_one_key() {
        let mut seats = Seats::default();
        let (a, b) = (LockName::new("a").unwrap(), LockName::new("b").unwrap());
        let take = |seats: &mut Seats, lock| seats.take(lock, &Owner::random().unwrap());
        let first = take(&mut seats, &a);
        assert_eq!(take(&mut seats, &b).number, 0, "each lock has its own");
        let second = take(&mut seats, &a);
        assert_eq!((first.number, second.number), (0, 1));
        assert_eq!(first.to_string().len(), 40);
        assert_ne!(first.to_string(), second.to_string());
        seats.give_back(&a, first);
        assert_eq!(take(&mut seats, &a), first);
        seats.give_back(&a, second);
        seats.give_back(&a, first);
        assert_eq!(seats.locks.len(), 1, "only b's is left");
    }

    #[test]
    fn c1_a_seat_in_doubt_is_never_used_again() {
        let mut seats = Seats::default();
        let lock = LockName::new("a").unwrap();
        let owner = Owner::random().unwrap();
        let (doubted, sound) = (seats.take(&lock, &owner), seats.take(&lock, &owner));
        seats.give_up();
        let mut later = Vec::new();
        for _ in 0..3 {
            later.push(seats.take(&lock, &owner));
        }
        seats.give_back(&lock, sound); // of a round that is over
        later.push(seats.take(&lock, &owner));
        for seat in later.drain(..) {
            assert!(seat != doubted && seat != sound, "{seat}");
            seats.give_back(&lock, seat);
        }
        assert!(seats.take(&lock, &owner) != doubted);
    }
}
