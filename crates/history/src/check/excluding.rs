//! Which of many holds a hold may not be beside: answered for one that is foremost in some way, without a look at all of them.

use std::collections::HashMap;

use crate::{event::Holding, holds::Hold};

/// The foremost hold of each way to hold, and of each slot. What is foremost is said when one is added.
#[derive(Default)]
pub(super) struct Foremost {
    alone: Option<usize>,
    shared: Option<usize>,
    permits: Option<usize>,
    slots: HashMap<u32, usize>,
}

impl Foremost {
    /// Those that `hold` may not be beside, by their places.
    pub(super) fn excluding<'a>(&'a self, hold: &'a Hold) -> impl Iterator<Item = usize> + 'a {
        let (shared, permits) = match hold.holding {
            Holding::Alone => (self.shared, self.permits),
            Holding::Shared => (None, self.permits),
            Holding::Permits { .. } => (self.shared, None),
        };
        let slots = hold.slots.iter().flatten().filter_map(|slot| self.slots.get(slot).copied());
        self.alone.into_iter().chain(shared).chain(permits).chain(slots)
    }

    /// Adds one; `before` says whether the new one is before the old one.
    pub(super) fn add(&mut self, place: usize, hold: &Hold, before: impl Fn(usize, usize) -> bool) {
        let of_kind = match hold.holding {
            Holding::Alone => &mut self.alone,
            Holding::Shared => &mut self.shared,
            Holding::Permits { .. } => &mut self.permits,
        };
        if of_kind.is_none_or(|old| before(place, old)) {
            *of_kind = Some(place);
        }
        for slot in hold.slots.iter().flatten() {
            let old = self.slots.entry(*slot).or_insert(place);
            if before(place, *old) {
                *old = place;
            }
        }
    }
}
