//! What a store writes of a claimant, for people.

use std::sync::{Arc, Mutex, PoisonError};

use crate::claim::Claimant;

/// The last claimant as a store writes it. A client's claims share one claimant unless they carry labels, so that it is written
/// once and not for each claim.
#[derive(Debug, Default)]
pub struct Particulars(Mutex<Option<(Arc<Claimant>, Arc<str>)>>);

impl Particulars {
    /// What `write` makes of the claimant, or made of it the last time.
    pub fn of(&self, claimant: &Arc<Claimant>, write: impl FnOnce(&Claimant) -> String) -> Arc<str> {
        // What is in here is written whole.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((whose, written)) if Arc::ptr_eq(whose, claimant) => written.clone(),
            _ => {
                let written: Arc<str> = write(claimant).into();
                *last = Some((claimant.clone(), written.clone()));
                written
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimant_is_written_once_for_as_long_as_it_is_the_same() {
        let (particulars, one, other) =
            (Particulars::default(), Arc::new(Claimant::here()), Arc::new(Claimant::here()));
        let mut times = 0;
        for claimant in [&one, &one, &other, &one] {
            let written = particulars.of(claimant, |claimant| {
                times += 1;
                format!("{} {times}", claimant.pid)
            });
            assert_eq!(*written, *format!("{} {times}", claimant.pid));
        }
        assert_eq!(times, 3);
    }
}
