//! Doing a step again that has to wait for the floor.
//!
//! Every step on files runs through without waiting, on whatever thread the caller's task is on. What has to be waited
//! for is waited for here, between two tries, when nothing is held: other tasks go on, and a caller may go away at any
//! point (C1).

use std::{sync::Arc, time::Duration};

use fencepost_core::clock::{self, BootClock, Clock};

use crate::{
    problem::{Again, Outcome, Problem},
    store::Shared,
};

/// The first pause when the floor is taken; others have it for microseconds, or for one fsync.
const PAUSE: Duration = Duration::from_micros(20);
/// The longest.
const LONGEST: Duration = Duration::from_millis(10);
/// By then somebody was stopped while he had the floor.
const AT_MOST: Duration = Duration::from_secs(3);

impl Shared {
    /// Does `step` until it comes to something.
    pub(crate) async fn persist<T>(self: &Arc<Self>, mut step: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        let mut pause = PAUSE;
        let mut until = None;
        loop {
            let waited = match step() {
                Err(Problem::Again(Again::CeilingReached)) => self.raise_the_floor().await,
                Err(Problem::Again(again)) => Err(Problem::Again(again)),
                outcome => return outcome,
            };
            let now = BootClock.now();
            if now >= *until.get_or_insert_with(|| now.after(AT_MOST)) {
                return Err(match waited {
                    Err(Problem::Again(Again::GateTaken(path))) => {
                        Problem::Stuck { path, what: "is looked at by a process that does not finish" }
                    }
                    _ => self.directory.floor.stuck(),
                });
            }
            match waited {
                Ok(()) => {}
                Err(Problem::Again(_)) => {
                    clock::sleep(&BootClock, pause).await;
                    pause = (pause * 2).min(LONGEST);
                }
                Err(problem) => return Err(problem),
            }
        }
    }

    /// On a thread that may wait for the disk. Should the caller go away, it is done all the same and harms nobody.
    async fn raise_the_floor(self: &Arc<Self>) -> Outcome<()> {
        let shared = Arc::clone(self);
        let raising = move || shared.directory.floor.raise();
        match tokio::runtime::Handle::try_current() {
            // It fails when the runtime ends, and the caller with it.
            Ok(runtime) => runtime.spawn_blocking(raising).await.unwrap_or(Err(Problem::Again(Again::FloorTaken))),
            Err(_) => raising(),
        }
    }
}
