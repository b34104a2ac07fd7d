//! Bells for those who wait for changes of cells, in a client that hears of all of them on one connection (W2).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, futures::Notified};

/// Who waits for a change, by the mark of the cell that the store's messages carry.
#[derive(Debug, Default)]
pub struct Bells(Mutex<HashMap<String, Bell>>);

#[derive(Debug, Default)]
struct Bell {
    rung: Arc<Notify>,
    listeners: usize,
}

/// One who waits for changes of a cell. Without it the cell's bell would hang for ever.
#[derive(Debug)]
pub struct Listening<'a> {
    bells: &'a Bells,
    mark: String,
    rung: Arc<Notify>,
}

impl Bells {
    /// Listens for changes of the cell with this mark.
    pub fn listen(&self, mark: String) -> Listening<'_> {
        let mut bells = self.lock();
        let bell = bells.entry(mark.clone()).or_default();
        bell.listeners += 1;
        let rung = bell.rung.clone();
        drop(bells);
        Listening { bells: self, mark, rung }
    }

    /// The cell with this mark has changed.
    pub fn ring(&self, mark: &str) {
        if let Some(bell) = self.lock().get(mark) {
            bell.rung.notify_waiters();
        }
    }

    /// Messages may have been missed.
    pub fn ring_all(&self) {
        self.lock().values().for_each(|bell| bell.rung.notify_waiters());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Bell>> {
        // Every change leaves the map whole before anything that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listening<'_> {
    /// The next ring. To miss none: pin it, enable it, and look at the cell after that (W1).
    pub fn rung(&self) -> Notified<'_> {
        self.rung.notified()
    }
}

impl Drop for Listening<'_> {
    /// The last one takes the bell down.
    fn drop(&mut self) {
        let mut bells = self.bells.lock();
        let Some(bell) = bells.get_mut(&self.mark) else { return };
        bell.listeners -= 1;
        if bell.listeners == 0 {
            bells.remove(&self.mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_bell_goes_with_the_last_who_listened() {
        let (bells, together) = (Bells::default(), Barrier::new(2));
        let listen = || {
            for key in 0..3_000 {
                let listening = bells.listen(key.to_string());
                together.wait();
                drop(listening);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(listen);
            scope.spawn(listen);
        });
        assert_eq!(bells.lock().len(), 0);
    }
}
