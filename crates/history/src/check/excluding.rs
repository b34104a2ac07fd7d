//! Which of many holds a hold may not be beside: answered for one that is foremost in some way, without a look at all of them.

use std::collections::HashMap;

use crate::holds::Manner;

/// One of each manner. Slots are looked up by their numbers.
const MANNERS: [Manner<'static>; 3] = [Manner::Alone, Manner::Shared, Manner::Permits(&[])];

/// The foremost hold of each manner, and of each slot: its rank, and its place among all holds.
#[derive(Default)]
pub(super) struct Foremost {
    of_manners: [Option<(u64, usize)>; 3],
    of_slots: HashMap<u32, (u64, usize)>,
}

impl Foremost {
    /// Those that may not be beside what is held like this.
    pub(super) fn excluding<'a>(&'a self, manner: Manner<'a>) -> impl Iterator<Item = (u64, usize)> + 'a {
        let by_manner = MANNERS.iter().zip(self.of_manners).filter(move |(other, _)| manner.excludes(**other));
        let by_slot = slots(manner).iter().filter_map(|slot| self.of_slots.get(slot).copied());
        by_manner.filter_map(|(_, foremost)| foremost).chain(by_slot)
    }

    /// Adds one.
    pub(super) fn add(&mut self, rank: u64, place: usize, manner: Manner<'_>) {
        let foremost = match manner {
            Manner::Alone => &mut self.of_manners[0],
            Manner::Shared => &mut self.of_manners[1],
            Manner::Permits(_) => &mut self.of_manners[2],
        };
        if foremost.is_none_or(|(old, _)| rank > old) {
            *foremost = Some((rank, place));
        }
        for slot in slots(manner) {
            let old = self.of_slots.entry(*slot).or_insert((rank, place));
            if rank > old.0 {
                *old = (rank, place);
            }
        }
    }
}

fn slots(manner: Manner<'_>) -> &[u32] {
    match manner {
        Manner::Permits(slots) => slots,
        Manner::Alone | Manner::Shared => &[],
    }
}
