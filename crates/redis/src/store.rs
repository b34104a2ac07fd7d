//! The store over one Redis server.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    capabilities::Capabilities,
    cells::Cells,
    claim::{
        Busy, Claim, Claimant, Claimed, Forced, Grant, Holder, Holding, LockState, LossReason, Mode, Patience, Release,
        Renewal, Want,
    },
    clock::{self, BootClock, Clock, Sent, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    purpose::{Efficiency, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, LossReporter, Store},
};
use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, Value};

use crate::{
    cluster::ClusterConfig,
    config::RedisConfig,
    failure::Failure,
    keys::Keys,
    nodes::{Nodes, Reach},
    record::{self, LockRecord},
    replicas::Kept,
    room::{Hearing, News, Room},
    scriptless::Scriptless,
    sentinel::SentinelConfig,
    survey,
};

/// Leases renewed by one command. More would hold up everybody else on the server for too long.
const BATCH: usize = 250;

/// Locks in one Redis server. Of the class [`Efficiency`]: it issues no fence.
///
/// Dropping it ends its background work; grants then end by their TTL.
pub struct RedisStore {
    room: Arc<Room>,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    pub(crate) scriptless: Scriptless,
    particulars: Mutex<Option<(Arc<Claimant>, Arc<str>)>>,
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
        Ok(Self { room, clock, capabilities, scriptless, particulars: Mutex::default() })
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

    /// As JSON. A client's claims share one claimant unless they carry labels, so the last one is kept.
    pub(crate) fn particulars(&self, claimant: &Arc<Claimant>) -> Arc<str> {
        let mut last = self.particulars.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((whose, json)) if Arc::ptr_eq(whose, claimant) => json.clone(),
            _ => {
                let json: Arc<str> = record::json(claimant, &self.room.channel).into();
                *last = Some((claimant.clone(), json.clone()));
                json
            }
        }
    }

    /// In the room before the claim is sent, so that no hand-over is missed (W1). It leaves the room again unless it
    /// is queued; a place that the server may have given all the same goes with the release that follows (C1).
    pub(crate) async fn take_a_place(&self, claim: &Claim, json: &str) -> Result<Claimed, Error> {
        let hearing = self.room.hearing().await.map_err(|f| f.error(Operation::Claim, Some(claim.name())))?;
        let presence = Presence::enter(&self.room, claim);
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
            ClaimAnswer::Refused(refusal, name) => return Err(self.refused(refusal, &name)),
        })
    }

    pub(crate) fn refused(&self, refusal: Refusal, name: &LockName) -> Error {
        refusal.error(name).in_store(self.capabilities.store)
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

    /// By one command without a script, where the server knows such; `None` when that does not settle it.
    async fn extend_without_script(&self, claim: &Claim) -> Option<Result<Renewal, Error>> {
        let key = self.room.keys.lock(claim.name());
        let renewal = self.scriptless.renewal(&key, claim)?;
        let counted_from = Sent::now(&*self.clock);
        match self.room.nodes.ask_kept(&key, &renewal).await {
            Ok(Kept { value: Value::Okay, short }) => {
                Some(self::renewal(claim, claim.name(), "renewed", counted_from, short.as_ref()))
            }
            Err(failure) if failure.kind == ErrorKind::Unavailable => {
                Some(Err(failure.error(Operation::Renew, Some(claim.name()))))
            }
            Ok(_) | Err(_) => {
                self.scriptless.forget(claim.owner());
                None
            }
        }
    }

    async fn extend(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Error>> {
        if let [claim] = claims
            && let [_] = claim.holding.wants()
            && let Some(answer) = self.extend_without_script(claim).await
        {
            return vec![answer];
        }
        let each: Vec<(&Claim, &LockName)> =
            claims.iter().flat_map(|claim| claim.holding.wants().iter().map(|want| (*claim, &want.name))).collect();
        let together = self.room.nodes.together(&each, BATCH, |(_, name)| self.room.keys.lock(name));
        let calls = together.iter().map(|each| {
            let keys = each.iter().map(|(_, name)| self.room.keys.lock(name));
            let arguments =
                each.iter().flat_map(|(claim, _)| [claim.owner().to_string(), claim.ttl.millis().to_string()]);
            (keys.collect(), arguments.collect())
        });
        let calls: Vec<_> = calls.collect();
        let counted_from = Sent::now(&*self.clock);
        // The client waits for a third of the TTL, and then takes every answer for lost.
        let within = claims.iter().map(|claim| claim.ttl.get() / 4).min().unwrap_or_default();
        let answers = self.room.nodes.call_many(&self.room.scripts.renew, &calls, within).await;
        let renewals = together.into_iter().zip(answers);
        let mut renewals = renewals.flat_map(|(each, answer)| renewals_of(each, answer, counted_from));
        // Of several locks, the first that is not renewed speaks for all.
        let of = |claim: &&Claim| {
            let mut of_claim = renewals.by_ref().take(claim.holding.wants().len()).collect::<Vec<_>>();
            let worst = of_claim.iter().position(|answer| !matches!(answer, Ok(Renewal::Renewed { .. }))).unwrap_or(0);
            of_claim.swap_remove(worst) // a claim has one want or more
        };
        claims.iter().map(of).collect()
    }

    async fn give_back(&self, holding: &Holding) -> Result<Release, Error> {
        self.room.leave(&holding.owner);
        let answers = join_all(holding.wants().iter().map(|want| self.give_one_back(&want.name, holding))).await;
        let answers = answers.into_iter().collect::<Result<Vec<_>, Error>>()?;
        // Of several locks, the first that was not ours any more speaks for all.
        Ok(answers.into_iter().find(|answer| *answer != Release::Released).unwrap_or(Release::Released))
    }

    async fn give_one_back(&self, name: &LockName, holding: &Holding) -> Result<Release, Error> {
        let key = self.room.keys.lock(name);
        if let Some(removal) = self.scriptless.removal(&key, &holding.owner) {
            match self.room.nodes.ask(&key, &removal).await {
                Ok(Value::Int(1)) => return Ok(Release::Released),
                Err(failure) if failure.kind == ErrorKind::Unavailable => {
                    return Err(failure.error(Operation::Release, Some(name)));
                }
                Ok(_) | Err(_) => {} // somebody waits, or it is not ours any more: the script knows
            }
        }
        let unqueued = format!("{}{}", record::UNQUEUED, holding.owner);
        let answer = self.room.nodes.call(&self.room.scripts.release, &self.room.keys.all(name), &[&unqueued]).await;
        let answer = answer.and_then(|value| match value {
            Value::Int(1) => Ok(Release::Released),
            Value::Int(0) => Ok(Release::AlreadyExpired),
            Value::Int(-1) => Ok(Release::HeldByOther),
            _ => Err(Failure::puzzling()),
        });
        answer.map_err(|failure| failure.error(Operation::Release, Some(name)))
    }

    async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Error> {
        if if_fence.is_some() {
            return Ok(Forced::OtherFence(None)); // no grant of Redis has a fence
        }
        let keys = self.room.keys.all(name);
        // Not repeated: by then a waiter may hold it, who would lose it too.
        let answer = self.room.nodes.call_unrepeated(&self.room.scripts.force, &keys, &[]).await;
        let answer = answer.and_then(|value| match &value {
            Value::Array(parts) => match &parts[..] {
                [free] if text(free) == Some("free") => Ok(Forced::NotHeld),
                [broken, value, left] if text(broken) == Some("broken") => {
                    Ok(Forced::Broken(Some(holder(value, left).ok_or_else(Failure::puzzling)?)))
                }
                _ => Err(Failure::puzzling()),
            },
            _ => Err(Failure::puzzling()),
        });
        answer.map_err(|failure| failure.error(Operation::Force, Some(name)))
    }
}

/// A waiter's presence in the room while its claim is under way.
struct Presence<'a> {
    room: &'a Room,
    claim: &'a Claim,
    stays: bool,
}

impl<'a> Presence<'a> {
    fn enter(room: &'a Room, claim: &'a Claim) -> Self {
        room.enter(*claim.owner(), claim.name());
        Self { room, claim, stays: false }
    }

    fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.room.leave(self.claim.owner());
        }
    }
}

/// What the scripts answer to a claim.
pub(crate) enum ClaimAnswer {
    Granted(Arc<[u32]>),
    Busy(Busy),
    Queued(Busy),
    Refused(Refusal, LockName),
}

impl ClaimAnswer {
    pub(crate) fn read(holding: &Holding, answer: Value) -> Result<Self, Failure> {
        let Value::Array(parts) = &answer else { return Err(Failure::puzzling()) };
        // Where several are asked for, the last part says which of them it is about, counted from 1.
        let which = |n: &[Value]| match n {
            [] => Some((holding.name(), None)),
            [Value::Int(n)] => {
                let want = holding.wants().get(usize::try_from(*n).ok()?.checked_sub(1)?)?;
                Some((&want.name, Some(want.name.clone())))
            }
            _ => None,
        };
        match &parts[..] {
            [granted, slots] if text(granted) == Some("granted") => {
                Ok(Self::Granted(record::slots(text(slots).unwrap_or_default()).collect()))
            }
            [unlike, Value::Int(limit), n @ ..] if text(unlike) == Some("unlike") => {
                let (name, _) = which(n).ok_or_else(Failure::puzzling)?;
                let limit = u32::try_from(*limit).map_err(|_| Failure::puzzling())?;
                let refusal = if limit == 0 { Refusal::LockInUse } else { Refusal::SemaphoreInUse { of: limit } };
                Ok(Self::Refused(refusal, name.clone()))
            }
            [what, value, left, Value::Int(waiters), n @ ..] => {
                let (_, lock) = which(n).ok_or_else(Failure::puzzling)?;
                let mut holder = holder(value, left).ok_or_else(Failure::foreign)?;
                if let (Mode::Permits { count, .. }, Mode::Permits { of, .. }) = (holder.mode, holding.wants()[0].mode)
                {
                    holder.mode = Mode::Permits { count, of };
                }
                let busy = Busy { lock, holder: Some(holder), ahead: u64::try_from(*waiters).ok() };
                match text(what) {
                    Some("busy") => Ok(Self::Busy(busy)),
                    Some("queued") => Ok(Self::Queued(busy)),
                    _ => Err(Failure::puzzling()),
                }
            }
            _ => Err(Failure::puzzling()),
        }
    }
}

pub(crate) fn holder(value: &Value, left: &Value) -> Option<Holder> {
    let (Value::BulkString(value), Value::Int(left)) = (value, left) else { return None };
    let left = Duration::from_millis(u64::try_from(*left).ok()?);
    Some(LockRecord::parse(value)?.holder(Some(left), None))
}

/// The answers of one call, one for each lock.
fn renewals_of(
    claims: &[(&Claim, &LockName)],
    answer: Result<Kept, Failure>,
    counted_from: Sent,
) -> Vec<Result<Renewal, Error>> {
    let answers = answer.and_then(|kept| {
        let answers = Vec::<String>::from_redis_value(kept.value).map_err(|_| Failure::puzzling())?;
        if answers.len() == claims.len() { Ok((answers, kept.short)) } else { Err(Failure::puzzling()) }
    });
    match answers {
        Ok((answers, short)) => {
            let answers = claims.iter().zip(answers);
            answers.map(|((claim, name), answer)| renewal(claim, name, &answer, counted_from, short.as_ref())).collect()
        }
        Err(failure) => claims.iter().map(|(_, name)| Err(failure.error(Operation::Renew, Some(name)))).collect(),
    }
}

pub(crate) fn renewal(
    claim: &Claim,
    name: &LockName,
    answer: &str,
    counted_from: Sent,
    short: Option<&Failure>,
) -> Result<Renewal, Error> {
    let renewed = match short {
        None => Ok(Renewal::Renewed { counted_from, ttl: claim.ttl.get() }),
        // The replicas may end it earlier: the deadline must not move.
        Some(short) => Err(short.error(Operation::Renew, Some(name))),
    };
    let alone = |want: &Want| want.name == *name && want.mode == Mode::Exclusive;
    match answer {
        "renewed" => renewed,
        "persisted" => {
            tracing::warn!(
                lock = %name,
                "the lock's key had lost its expiry (was PERSIST run on it?); the renewal gave it a new one"
            );
            renewed
        }
        "deleted" => Ok(Renewal::Lost(LossReason::Deleted)),
        "taken" => Ok(Renewal::Lost(LossReason::TakenOver)),
        // Those who hold beside each other are in the way of one that held alone, not of one that was among them.
        "left out" if claim.holding.wants().iter().any(alone) => Ok(Renewal::Lost(LossReason::TakenOver)),
        "left out" => Ok(Renewal::Lost(LossReason::Deleted)),
        "foreign" => Err(Failure::foreign().error(Operation::Renew, Some(name))),
        _ => Err(Failure::puzzling().error(Operation::Renew, Some(name))),
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
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
