//! How much of one client is under way to its servers at once.
//!
//! A server's limit for an answer counts from the sending, and so it covers all that stands before the question at the server. A
//! thousand claims that were sent in one moment would keep every server busy for longer than the limit, and all of them
//! would fail for it. So they stand in line here, in the order in which they came, before their time begins.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Rounds of claims at once: enough to keep the servers busy at any distance, and answered well within the limit.
const CLAIMS: usize = 32;
/// Releases have a line of their own: what makes room for others must not stand behind those who wait for it.
const RELEASES: usize = 32;
/// Waiters that ask one server for their places again, after they lost them all at once.
pub(super) const PLACES: usize = 32;
/// Batches of renewals, of many leases each: ten thousand leases are four of these rounds.
pub(super) const RENEWALS: usize = 16;

#[derive(Debug)]
pub(super) struct Crowd {
    claims: Semaphore,
    releases: Semaphore,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { claims: Semaphore::new(CLAIMS), releases: Semaphore::new(RELEASES) }
    }
}

impl Crowd {
    /// Until a round of a claim may begin; it ends with what is answered.
    pub(super) async fn claim(&self) -> Option<SemaphorePermit<'_>> {
        admitted(&self.claims).await
    }

    /// The same for a release.
    pub(super) async fn release(&self) -> Option<SemaphorePermit<'_>> {
        admitted(&self.releases).await
    }
}

/// First come, first served. Nobody closes the line, so that everybody comes in.
pub(super) async fn admitted(line: &Semaphore) -> Option<SemaphorePermit<'_>> {
    line.acquire().await.ok()
}
