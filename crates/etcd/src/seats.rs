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

/// One of a client's keys below a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// How often the client has given up its seats.
    round: u32,
    number: u32,
}

/// A seat as its key has it: 40 hexadecimal digits, the client's own first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    client: u128,
    seat: Seat,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:024x}{:08x}{:08x}", self.client, self.seat.round, self.seat.number)
    }
}

/// The seats of one client at all locks.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// 96 random bits, once a seat was taken.
    client: u128,
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
    /// Those of them that came back, while others are taken.
    free: Option<Box<Free>>,
}

/// Numbers that came back, of which the lowest goes out first.
#[derive(Debug, Default)]
struct Free(BinaryHeap<Reverse<u32>>);

impl Seats {
    /// A seat for the claim of this owner.
    pub(crate) fn take(&mut self, lock: &LockName, owner: &Owner) -> Seat {
        if self.client == 0 {
            // The first claim's randomness is as good as any.
            self.client = owner.as_bytes()[..12].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte));
        }
        let taken = self.locks.entry(lock.clone()).or_default();
        if taken.round != self.round {
            *taken = Taken { round: self.round, first: taken.first, ..Taken::default() };
        }
        let free = taken.free.as_mut().and_then(|free| free.0.pop());
        let number = free.map_or(taken.numbers, |Reverse(number)| number);
        taken.numbers = taken.numbers.max(number + 1);
        Seat { round: self.round, number }
    }

    pub(crate) fn label(&self, seat: Seat) -> Label {
        Label { client: self.client, seat }
    }

    /// The seat is free, and nothing that was sent for its claim can take effect any more.
    pub(crate) fn give_back(&mut self, lock: &LockName, seat: Seat) {
        let Some(taken) = self.locks.get_mut(lock).filter(|taken| taken.round == seat.round) else { return };
        let free = taken.free.as_ref().map_or(0, |free| free.0.len());
        if free + 1 == taken.numbers as usize {
            self.locks.remove(lock);
        } else {
            taken.free.get_or_insert_default().0.push(Reverse(seat.number));
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
        let labels = [first, second].map(|seat| seats.label(seat).to_string());
        assert_eq!(labels[0].len(), 40);
        assert_ne!(labels[0], labels[1]);
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
            assert!(seat != doubted && seat != sound, "{seat:?}");
            seats.give_back(&lock, seat);
        }
        assert!(seats.take(&lock, &owner) != doubted);
    }
}
