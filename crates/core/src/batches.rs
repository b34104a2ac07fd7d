//! Claims in batches, for stores whose requests have room for so many locks.

use std::{iter, sync::Arc};

use crate::claim::Claim;

/// The claims in order, as many at a time as have no more than `most` locks together. One that has more by itself stands alone: a claim
/// is renewed as a whole.
pub fn batches(mut claims: &[Arc<Claim>], most: usize) -> impl Iterator<Item = &[Arc<Claim>]> {
    iter::from_fn(move || {
        let mut locks = 0;
        let fit = claims.iter().take_while(|claim| {
            locks += claim.holding.wants().len();
            locks <= most
        });
        let (batch, rest) = claims.split_at_checked(fit.count().max(1))?;
        claims = rest;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        claim::{Claimant, Holding, Mode, Want},
        limits::Ttl,
        name::LockName,
        owner::Owner,
    };

    #[test]
    fn locks_are_counted_and_no_claim_is_divided() {
        let claim = |locks: usize| {
            let want = |number| Want { name: LockName::new(format!("{number}")).unwrap(), mode: Mode::Exclusive };
            let holding = Holding::several((0..locks).map(want).collect(), Owner::random().unwrap()).unwrap();
            Arc::new(Claim { holding, ttl: Ttl::default(), claimant: Arc::new(Claimant::default()) })
        };
        let sizes = |locks: &[usize]| {
            let claims: Vec<_> = locks.iter().map(|locks| claim(*locks)).collect();
            let together: Vec<_> = batches(&claims, 3).flatten().map(|claim| *claim.owner()).collect();
            assert_eq!(together, claims.iter().map(|claim| *claim.owner()).collect::<Vec<_>>(), "each once, in order");
            batches(&claims, 3).map(<[_]>::len).collect::<Vec<_>>()
        };
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&[1, 1, 1, 1]), [3, 1]);
        assert_eq!(sizes(&[2, 2, 1]), [1, 2]);
        assert_eq!(sizes(&[1, 5, 1]), [1, 1, 1]);
    }
}
