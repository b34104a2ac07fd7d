//! The store over one Redis server.

use std::{fmt, sync::Arc, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    capabilities::Capabilities,
    cells::Cells,
    claim::{Claim, Claimant, Claimed, Forced, Grant, Holding, LockState, Mode, Patience, Release, Renewal, Want},
    clock::{self, BootClock, Clock, Sent, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    particulars::Particulars,
    presence::Presence,
    purpose::{Efficiency, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, LossReporter, Store},
};
use redis::{Cmd, Value};

use crate::{
    answer::ClaimAnswer,
    cluster::ClusterConfig,
    config::RedisConfig,
    failure::Failure,
    keys::Keys,
    nodes::{Nodes, Reach},
    record,
    room::{Hearing, News, Room},
    scriptless::Scriptless,
    sentinel::SentinelConfig,
    survey,
};

/// Locks in one Redis server. Of the class [`Efficiency`]: it issues no fence.
///
/// Dropping it ends its background work; grants then end by their TTL.
pub struct RedisStore {
    pub(crate) room: Arc<Room>,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    pub(crate) scriptless: Scriptless,
    particulars: Particulars,
}

impl RedisStore {
    /// Connects, and warns (by `tracing`) of a server that may evict locks.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], [`ErrorKind::PermissionDenied`] or [`ErrorKind::Misconfigured`], within the
    /// limits of `config`.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(config: &RedisConfig, namespace: &Namespace) -> Result<Self, Error> {
        Self::open_with_clock(config, namespace, BootClock::shared()).await
    }

    /// As [`open`](RedisStore::open), with leases counted on `clock`.
    ///
    /// # Errors
    /// As for [`open`](RedisStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_with_clock(
        config: &RedisConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let nodes = Nodes::single(config, clock.clone()).await?;
        Self::over(nodes, namespace, clock, crate::capabilities()).await
    }

    /// Connects to the master that sentinels watch, and follows it from then on.
    ///
    /// # Errors
    /// As for [`open`](RedisStore::open); [`ErrorKind::Misconfigured`] when the sentinels know no such service.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_watched(
        config: &SentinelConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let nodes = Nodes::watched(config, clock.clone()).await?;
        Self::over(nodes, namespace, clock, crate::sentinel_capabilities()).await
    }

    /// Connects to the masters of a cluster.
    ///
    /// # Errors
    /// As for [`open`](RedisStore::open); [`ErrorKind::Misconfigured`] when the servers are no cluster.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_cluster(
        config: &ClusterConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let nodes = Nodes::cluster(config, clock.clone()).await?;
        Self::over(nodes, namespace, clock, crate::cluster_capabilities()).await
    }

    async fn over(
        nodes: Nodes,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
        capabilities: Capabilities,
    ) -> Result<Self, Error> {
        let room = Room::new(nodes, Keys::new(namespace), &client_id()?, clock.clone());
        let scriptless = Scriptless::default();
        scriptless.probe(&room.nodes, &room.keys.probe()).await;
        Ok(Self { room, clock, capabilities, scriptless, particulars: Particulars::default() })
    }

    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        let [Want { name, mode: Mode::Exclusive }] = claim.holding.wants() else {
            return Box::pin(self.take_beside(claim, patience)).await;
        };
        let failed = |failure: Failure| failure.error(Operation::Claim, Some(name));
        let json = self.particulars(&claim.claimant);
        let owner = claim.owner().to_string();
        let value = record::unqueued(&owner, claim.ttl, wall_unix_ms(&*self.clock), &json);
        let key = self.room.keys.lock(name);
        let mut set = Cmd::with_capacity(6, 64 + value.len() + key.len());
        set.arg("SET").arg(&key).arg(&value).arg("NX").arg("PX").arg(claim.ttl.millis());
        let counted_from = Sent::now(&*self.clock);
        let kept = self.room.nodes.ask_kept(&key, &set).await.map_err(failed)?;
        if kept.value == Value::Okay {
            self.enough(claim, kept.short).await?;
            self.scriptless.remember(claim.owner(), &value);
            return Ok(Claimed::Granted(self.granted(claim, counted_from)));
        }
        match patience {
            Patience::Once => Box::pin(self.ask_the_queue(claim, &json, "once", Reach::Counted)).await,
            Patience::Queue => Box::pin(self.take_a_place(claim, &json)).await,
        }
    }

    /// What is written of a claimant, with where it hears messages.
    pub(crate) fn particulars(&self, claimant: &Arc<Claimant>) -> Arc<str> {
        self.particulars.of(claimant, |claimant| record::json(claimant, &self.room.channel))
    }

    /// In the room before the claim is sent, so that no hand-over is missed (W1). It leaves the room again unless it
    /// is queued; a place that the server may have given all the same goes with the release that follows (C1).
    pub(crate) async fn take_a_place(&self, claim: &Claim, json: &str) -> Result<Claimed, Error> {
        let hearing = self.room.hearing().await.map_err(|f| f.error(Operation::Claim, Some(claim.name())))?;
        self.room.enter(*claim.owner(), claim.name());
        let presence = Presence::until(|| self.room.leave(claim.owner()));
        let reach = match hearing {
            Hearing::Polling => Reach::Polling,
            Hearing::Messages | Hearing::Deaf => {
                let heard = self.room.nodes.hear(&self.room.keys.lock(claim.name()), &self.room.channel).await;
                heard.map_err(|failure| failure.error(Operation::Claim, Some(claim.name())))?
            }
        };
        let claimed = self.ask_the_queue(claim, json, "queue", reach).await?;
        if let Claimed::Queued(busy) = &claimed {
            let left = busy.holder.as_ref().and_then(|holder| holder.expires_in).unwrap_or_default();
            self.room.queued(claim.owner(), left);
            presence.stay();
        }
        Ok(claimed)
    }

    pub(crate) async fn ask_the_queue(
        &self,
        claim: &Claim,
        json: &str,
        patience: &str,
        reach: Reach,
    ) -> Result<Claimed, Error> {
        let (owner, ttl) = (claim.owner().to_string(), claim.ttl.millis().to_string());
        let wanted = record::wanted(claim.holding.wants()[0].mode);
        let arguments = [&*owner, &ttl, patience, reach.letter(), &self.room.channel, json, &wanted];
        let keys = self.room.keys.all(claim.name());
        let counted_from = Sent::now(&*self.clock);
        let failed = |failure: Failure| failure.error(Operation::Claim, Some(claim.name()));
        let kept = self.room.nodes.call_kept(&self.room.scripts.claim, &keys, &arguments).await.map_err(failed)?;
        let answer = ClaimAnswer::read(&claim.holding, kept.value).map_err(failed)?;
        self.claimed(claim, answer, counted_from, kept.short).await
    }

    pub(crate) async fn claimed(
        &self,
        claim: &Claim,
        answer: ClaimAnswer,
        counted_from: Sent,
        short: Option<Failure>,
    ) -> Result<Claimed, Error> {
        Ok(match answer {
            ClaimAnswer::Granted(slots) => {
                self.enough(claim, short).await?;
                Claimed::Granted(Grant { slots, ..self.granted(claim, counted_from) })
            }
            ClaimAnswer::Busy(busy) => Claimed::Busy(busy),
            ClaimAnswer::Queued(busy) => Claimed::Queued(busy),
            ClaimAnswer::Refused(refusal, name) => return Err(self.refused(Operation::Claim, refusal, &name)),
        })
    }

    pub(crate) fn refused(&self, operation: Operation, refusal: Refusal, name: &LockName) -> Error {
        refusal.error(operation, name).in_store(self.capabilities.store)
    }

    /// A grant that too few replicas have is undone. Where that is uncertain, it is nobody's until its TTL ends or the
    /// client has given it back.
    async fn enough(&self, claim: &Claim, short: Option<Failure>) -> Result<(), Error> {
        let Some(short) = short else { return Ok(()) };
        let short = match Box::pin(self.give_back(&claim.holding)).await {
            Ok(_) => short.undone("the grant was given back"),
            Err(error) => short.then(&format!("giving the grant back failed too: {error}")),
        };
        Err(short.error(Operation::Claim, Some(claim.name())))
    }

    fn granted(&self, claim: &Claim, counted_from: Sent) -> Grant {
        // A holder listens as well, so that it hears at once when its lock is broken (L4).
        self.room.open();
        Grant::new(counted_from, Some(claim.ttl.get()), None)
    }

    async fn wait(&self, claim: &Claim) -> Result<Grant, Error> {
        let bell = self.room.enter(*claim.owner(), claim.name());
        // Which slots its permits are, a renewal does not tell: the claim is asked again.
        let asks_again = matches!(claim.holding.wants()[0].mode, Mode::Permits { .. });
        loop {
            if bell.news().await == News::Handed
                && !asks_again
                && let Some(grant) = self.confirm(claim).await?
            {
                self.room.leave(claim.owner());
                return Ok(grant);
            }
            // Not ours any more, or the place is in doubt: a claim finds or takes it.
            match self.take(claim, Patience::Queue).await? {
                Claimed::Granted(grant) => {
                    self.room.leave(claim.owner());
                    return Ok(grant);
                }
                Claimed::Queued(_) => {}
                Claimed::Busy(_) => return Err(Failure::puzzling().error(Operation::Wait, Some(claim.name()))),
            }
        }
    }

    /// Confirms a lock that was handed over; `None` when it has been passed on since.
    async fn confirm(&self, claim: &Claim) -> Result<Option<Grant>, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        let mut tries = 0;
        loop {
            match self.extend(&[claim]).await.pop() {
                Some(Ok(Renewal::Renewed { counted_from, ttl })) => {
                    return Ok(Some(Grant::new(counted_from, Some(ttl), None)));
                }
                Some(Ok(Renewal::Lost(_))) | None => return Ok(None),
                Some(Err(error)) if tries >= 3 || error.kind() != ErrorKind::Unavailable => return Err(error),
                Some(Err(_)) => clock::sleep(&*self.clock, backoff.pause()).await,
            }
            tries += 1;
        }
    }
}

/// Names this client's channel.
pub(crate) fn client_id() -> Result<String, Error> {
    let owner = fencepost_core::owner::Owner::random()?.to_string();
    Ok(owner[..20].to_owned())
}

impl Store for RedisStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.take(claim, patience))
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let claims: Vec<&Claim> = claims.iter().map(|claim| &**claim).collect();
            self.extend(&claims).await
        })
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(self.give_back(holding))
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(async move {
            let states = survey::inspect(&self.room.nodes, &self.room.keys, only).await;
            states.map_err(|failure| failure.error(Operation::Inspect, only))
        })
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(self.break_lock(name, if_fence))
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(self.become_reader(claim))
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(self.set_limit(name, of))
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn report_losses(&self, to: LossReporter) {
        self.room.report_losses(to);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The connection first: a waiter that is woken must find it closed, or it would queue again unheard.
            self.room.nodes.close();
            self.room.close();
        })
    }
}

impl TypedStore for RedisStore {
    type Serves = Efficiency;
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        // The room's task holds the room, not the store.
        self.room.close();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("keys", &self.room.keys).finish_non_exhaustive()
    }
}
