//! Cells: values that change on condition of their version, each a key `NAMESPACE/cells/NAME`.
//!
//! The version is the revision that changed the key last, which the whole cluster counts and never goes back. A value
//! begins with the 40 digits of the change that wrote it. One that expires hangs on a lease of its own, so it ends by
//! the leader's clock, after whole seconds and no fewer than etcd's least TTL.

use std::time::Duration;

use fencepost_core::{
    cells::{Cell, Cells, Change, Changed, Expected, Version},
    clock,
    error::{Error, Operation},
    name::LockName,
    owner::OWNER_BYTES,
    store::BoxFuture,
};
use tonic::Streaming;

use crate::{
    api::{
        KeyValue, LeaseClient, LeaseGrantRequest, LeaseTimeToLiveRequest, RequestUnion, TxnRequest, WatchClient,
        WatchCreateRequest, WatchRequest, WatchResponse, changed_by, delete, exactly, put, revision,
    },
    failure::{Failure, Sort},
    link::{Connection, Link},
    session::whole_seconds,
    store::EtcdStore,
};

/// Digits of the change that wrote a value.
const HEADER: usize = 2 * OWNER_BYTES;
/// A cell is looked at this often, should no watch have told of a change.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl EtcdStore {
    /// The cell and the revision as of which it was read.
    async fn look_at(&self, key: &LockName) -> Result<(Option<Cell>, i64), Failure> {
        let (link, key) = (self.link(), self.keys().cell(key));
        let answer = link.range(exactly(&key)).await?;
        let seen = revision(&answer.header);
        Ok(match answer.kvs.first() {
            Some(found) => (Some(parsed(link, found).await?), seen),
            None => (None, seen),
        })
    }

    async fn change_cell(&self, change: &Change) -> Result<Changed, Failure> {
        let (link, key) = (self.link(), self.keys().cell(&change.key));
        let expected = match change.expected {
            Expected::Absent => 0,
            Expected::Version(version) => i64::try_from(version.0).unwrap_or(i64::MAX),
        };
        let lease = match (change.ttl, &change.value) {
            (Some(ttl), Some(_)) => granted(link, whole_seconds(ttl)).await?,
            _ => 0,
        };
        let step = match &change.value {
            Some(value) => put(&key, &[change.by.to_string().as_bytes(), value].concat(), lease),
            None => delete(&key),
        };
        let txn = TxnRequest {
            compare: vec![changed_by(&key, expected)],
            success: vec![step],
            failure: vec![exactly(&key).op()],
        };
        let answer = link.txn(txn).await?;
        let (unclear, answer) = (answer.unclear, answer.message);
        if answer.succeeded {
            let version = if change.value.is_some() { revision(&answer.header) } else { expected };
            return Ok(Changed::Done(Version(version.unsigned_abs())));
        }
        let found = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
        let Some(found) = found else {
            // A try whose answer was lost may be the one that removed it.
            return match change.value.is_none() {
                true if unclear => Ok(Changed::Done(Version(expected.unsigned_abs()))),
                false if unclear => Err(Failure::overwritten()),
                _ => Ok(Changed::Conflict(None)),
            };
        };
        let cell = parsed(link, &found).await?;
        match cell.by == change.by {
            true => Ok(Changed::Done(cell.version)),
            // A try whose answer was lost may have been applied before: whoever is told of a conflict would change it twice.
            false if unclear => Err(Failure::overwritten()),
            false => Ok(Changed::Conflict(Some(cell))),
        }
    }

    async fn until_changed(&self, key: &LockName, seen: Option<Version>) -> Result<(), Failure> {
        loop {
            let (found, as_of) = self.look_at(key).await?;
            if found.map(|cell| cell.version) != seen {
                return Ok(());
            }
            // From the next revision on: nothing falls between the look and the watch (W1).
            let connection = self.link().connection().await?;
            let (generation, address) = (connection.generation, connection.address.clone());
            let watch = watched(self.link(), connection, self.keys().cell(key), as_of + 1);
            let told = tokio::select! {
                told = watch => told,
                () = self.link().left(generation) => continue,
                () = clock::sleep(self.clock(), LOOK_AGAIN) => continue,
            };
            match told {
                Ok(()) => return Ok(()),
                Err(status) => {
                    let failure = Failure::answered(&status, &address);
                    if failure.sort == Sort::Final {
                        return Err(failure);
                    }
                    self.link().leave(generation);
                }
            }
        }
    }
}

impl Cells for EtcdStore {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        Box::pin(async move { Ok(self.look_at(key).await.map_err(|failure| told(&failure, key))?.0) })
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(async move { self.change_cell(change).await.map_err(|failure| told(&failure, &change.key)) })
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.until_changed(key, seen).await.map_err(|failure| told(&failure, key)) })
    }
}

fn told(failure: &Failure, key: &LockName) -> Error {
    failure.error(Operation::Update, Some(key))
}

/// A lease for one value. One whose answer was lost, or whose change came to nothing, ends after its TTL.
async fn granted(link: &Link, seconds: i64) -> Result<i64, Failure> {
    let answer = link.ask(|connection| async move {
        let request = connection.request(LeaseGrantRequest { ttl: seconds, id: 0 });
        LeaseClient::new(connection.channel).lease_grant(request).await
    });
    Ok(answer.await?.message.id)
}

async fn parsed(link: &Link, found: &KeyValue) -> Result<Cell, Failure> {
    let header = found.value.get(..HEADER).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    let by = header.ok_or_else(|| Failure::foreign(&found.key))?;
    let expires_in = if found.lease == 0 { None } else { Some(left(link, found.lease).await?) };
    Ok(Cell {
        value: found.value[HEADER..].into(),
        version: Version(found.mod_revision.unsigned_abs()),
        by,
        expires_in,
    })
}

/// What is left of a lease: zero for one that has just ended.
async fn left(link: &Link, lease: i64) -> Result<Duration, Failure> {
    let answer = link.ask(|connection| async move {
        let request = connection.request(LeaseTimeToLiveRequest { id: lease, keys: false });
        LeaseClient::new(connection.channel).lease_time_to_live(request).await
    });
    Ok(Duration::from_secs(u64::try_from(answer.await?.message.ttl).unwrap_or(0)))
}

/// Completes at the first change of a key from this revision on, or when it has to be looked at anew.
async fn watched(link: &Link, connection: Connection, key: Vec<u8>, from: i64) -> Result<(), tonic::Status> {
    let create = WatchCreateRequest { key, start_revision: from, ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The stream of requests stays open: its end would end the watch.
    let requests =
        futures_util::StreamExt::chain(futures_util::stream::iter([create]), futures_util::stream::pending());
    let request = connection.request(requests);
    let mut client = WatchClient::new(connection.channel);
    let opened = tokio::time::timeout(link.timeout, client.watch(request)).await;
    let opened = opened.map_err(|_| tonic::Status::unavailable("the watch was not answered in time"))??;
    let mut answers: Streaming<WatchResponse> = opened.into_inner();
    while let Some(answer) = answers.message().await? {
        // A watch that was cancelled, for instance since the revision is compacted, tells nothing more.
        if !answer.events.is_empty() || answer.canceled {
            return Ok(());
        }
    }
    Ok(())
}
