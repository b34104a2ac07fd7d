//! A waiter's presence while its claim is under way.

use std::fmt;

/// Lets a waiter out again when its claim fails or is dropped, unless it is to [stay](Presence::stay). It comes in before its
/// claim is sent, so that no hand-over is missed (W1).
#[must_use = "dropped, the waiter leaves"]
pub struct Presence<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Presence<F> {
    /// Of a waiter that has come in, and goes by `leave`.
    pub fn until(leave: F) -> Self {
        Self(Some(leave))
    }

    /// It has its place.
    pub fn stay(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Presence<F> {
    fn drop(&mut self) {
        if let Some(leave) = self.0.take() {
            leave();
        }
    }
}

impl<F: FnOnce()> fmt::Debug for Presence<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("stays", &self.0.is_none()).finish()
    }
}
