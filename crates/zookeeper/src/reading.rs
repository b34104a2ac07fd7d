//! Readers: which fence they carry, and writers that become one.

use fencepost_core::{
    claim::{Claim, LossReason, Renewal},
    fence::Fence,
};

use crate::{
    failure::Failure,
    notes::{self, Container, Notes},
    places::{Given, Node, Standing},
    queue::remove,
    record::Record,
    store::ZooKeeperStore,
    taking::Bid,
    wire::{Code, Done, Request, Stat, Step},
};

impl ZooKeeperStore {
    /// What the first in the queue is given when it wants the lock for itself.
    pub(crate) async fn writer(&self, bid: Bid<'_>, node: &Node) -> Result<Given, Failure> {
        if node.noted {
            self.note_writer(bid, node, node.created).await?;
        }
        Ok(Given::of(node.created))
    }

    /// The fence of the last writer before a reader that nobody stands in the way of: the notes have it. `seen` is that of
    /// the writer which this reader waited for; it is noted where the lock was marked after that one had come.
    pub(crate) async fn readers_fence(
        &self,
        bid: Bid<'_>,
        node: &Node,
        container: Option<Container>,
        seen: Option<Fence>,
    ) -> Result<Fence, Failure> {
        let container = match container {
            Some(container) => container,
            None => Container::read(bid.session, bid.lock).await?,
        };
        match seen {
            Some(seen) if container.notes.fence.is_none() => self.note_writer(bid, node, seen).await.map(|()| seen),
            _ => container.fence(),
        }
    }

    /// Notes a writer's fence for readers to come. No later writer can have been granted while `node` stands in the queue.
    async fn note_writer(&self, bid: Bid<'_>, node: &Node, writer: Fence) -> Result<(), Failure> {
        match notes::write(bid.session, bid.lock, &node.name, &Notes::of_writer(writer)).await? {
            Done::All(_) => Ok(()),
            Done::None(code) => Err(Failure::refused(code)),
        }
    }

    /// Marks a lock as one that readers use, and takes the reader's node out of the queue: one that is made after the mark
    /// knows that every writer behind it notes its fence. Once for each container.
    pub(crate) async fn mark(&self, bid: Bid<'_>, node: &Node, seen: &Stat) -> Result<(), Failure> {
        let Bid { session, lock, .. } = bid;
        remove(session, &bid.path(&node.name)).await?;
        let data = Notes::mark().to_bytes();
        // Whoever was quicker has marked it.
        let step = Step::Write { path: lock, data: &data, version: Some(seen.version) };
        match session.ask(Request::transaction(&[step])).await? {
            Done::All(_) | Done::None(Code::BAD_VERSION | Code::NO_NODE) => Ok(()),
            Done::None(code) => Err(Failure::refused(code)),
        }
    }

    /// The holder's node stays where it stands in the queue and says from now on that others may read beside it.
    pub(crate) async fn become_reader(&self, claim: &Claim) -> Result<Renewal, Failure> {
        let place = self.places.get(claim.owner()).filter(|place| !place.session.is_over());
        let held = place.filter(|place| matches!(place.standing, Standing::Held { .. }));
        let Some((place, path)) = held.and_then(|place| Some((place.clone(), place.path()?))) else {
            return self.why_lost(claim).await.map(Renewal::Lost);
        };
        let record = Record::new(&claim.claimant, place.session.timeout).shared();
        let data = record.to_bytes();
        let step = Step::Write { path: &path, data: &data, version: None };
        match place.session.ask(Request::transaction(&[step])).await? {
            Done::All(_) => {
                let proven = place.session.state().proven;
                self.places.told(claim.owner(), proven);
                Ok(Renewal::Renewed { counted_from: proven, ttl: place.session.timeout })
            }
            Done::None(Code::NO_NODE) => {
                self.sentry.lost(claim.owner(), LossReason::Deleted);
                self.why_lost(claim).await.map(Renewal::Lost)
            }
            Done::None(code) => Err(Failure::refused(code)),
        }
    }
}
