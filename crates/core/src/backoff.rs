//! Growing pauses between tries, with jitter so that many clients do not try in step.

use std::time::Duration;

/// Pauses that double from `first` up to `most`, each drawn from the upper half of its size.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    /// Pauses from `first` to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, most }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let size = self.next.min(self.most);
        self.next = size.saturating_mul(2);
        size.mul_f64(0.5 + jitter() / 2.0)
    }
}

/// A random number from 0 up to 1, without a system call: it is drawn on the way of every grant.
pub fn jitter() -> f64 {
    fastrand::f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_stay_below_the_most() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
        for size in [10, 20, 40, 40, 40] {
            let pause = backoff.pause();
            assert!(pause >= Duration::from_millis(size / 2) && pause <= Duration::from_millis(size), "{pause:?}");
        }
    }
}
