//! Which interval that began early enough lasts longest: answered for any instant after one sort.

/// Intervals with an id each.
pub(super) struct Intervals {
    /// Begins, ascending.
    begins: Vec<u64>,
    /// For each, the two that last longest among it and those before, of different ids.
    longest: Vec<[Option<(u64, u32)>; 2]>,
}

impl Intervals {
    /// `(begin, end, id)` each.
    pub(super) fn of(mut all: Vec<(u64, u64, u32)>) -> Self {
        all.sort_unstable();
        let mut best: [Option<(u64, u32)>; 2] = [None, None];
        let mut longest = Vec::with_capacity(all.len());
        for (_, end, id) in &all {
            let new = (*end, *id);
            match best {
                [None, _] => best[0] = Some(new),
                [Some(first), _] if first.1 == new.1 => best[0] = Some(first.max(new)),
                [Some(first), _] if new.0 > first.0 => best = [Some(new), Some(first)],
                [Some(_), second] => best[1] = Some(second.map_or(new, |second| second.max(new))),
            }
            longest.push(best);
        }
        Self { begins: all.into_iter().map(|one| one.0).collect(), longest }
    }

    /// One, other than `not`, that begins at `begin` or before and ends at `end` or later.
    pub(super) fn covering(&self, begin: u64, end: u64, not: Option<u32>) -> Option<u32> {
        let last = self.begins.partition_point(|one| *one <= begin).checked_sub(1)?;
        let candidates = self.longest[last].iter().flatten();
        candidates.filter(|(until, id)| *until >= end && Some(*id) != not).map(|(_, id)| *id).next()
    }
}
