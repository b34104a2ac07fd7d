//! Cells: values that change on condition of their version, each a node `NAMESPACE/%cells/NAME`.
//!
//! The version is the transaction that wrote the node last, which the whole ensemble counts and never goes back. ZooKeeper
//! compares another number, which starts again with each creation of a node; a change that was decided on the one before
//! would be applied to the one after. So each value has a *mark* beside it, an empty node below its own that is called
//! after the change that wrote it, and a change takes away the mark that it has seen, in the same transaction: no two
//! changes leave the same one.
//!
//! The time is the leader's, of which every write tells. A value that expires stays where it is until it is overwritten.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use fencepost_core::{
    cells::{Cell, Cells, Change, Changed, Expected, Version},
    clock,
    error::{Error, Operation},
    name::LockName,
    owner::{OWNER_BYTES, Owner},
    store::BoxFuture,
};
use tokio::sync::oneshot;

use crate::{
    failure::Failure,
    session::{Session, Watcher},
    store::{ZooKeeperStore, on_another_connection},
    wire::{Code, Done, Lifetime, Node, Request, Stat, Step},
};

/// How often a change looks again after somebody else was quicker: what it finds then is a conflict, or the parents vanished.
const TRIES: usize = 10;

/// A node as it was read.
struct Found {
    stat: Stat,
    by: Owner,
    ttl: Option<Duration>,
    value: Vec<u8>,
}

impl Found {
    fn of(node: Node, path: &str) -> Result<Self, Failure> {
        let foreign = || Failure::foreign(format!("the node {path} holds something that is no cell"));
        let (Header { by, ttl }, value) = Header::read(&node.data).ok_or_else(foreign)?;
        Ok(Self { stat: node.stat, by, ttl, value: value.to_vec() })
    }

    fn version(&self) -> Version {
        Version(self.stat.modified.unsigned_abs())
    }

    /// `None` when it has expired by the leader's clock.
    async fn cell(&self, store: &ZooKeeperStore, session: &Session) -> Result<Option<Cell>, Failure> {
        let expires_in = match self.ttl {
            None => None,
            Some(ttl) => {
                let age = store.leaders_time(session).await?.saturating_sub(self.stat.modified_unix_ms);
                let left = ttl.saturating_sub(Duration::from_millis(u64::try_from(age).unwrap_or(0)));
                if left.is_zero() {
                    return Ok(None);
                }
                Some(left)
            }
        };
        Ok(Some(Cell { value: self.value.as_slice().into(), version: self.version(), by: self.by, expires_in }))
    }
}

/// What stands before a value: the change that wrote it, in hexadecimal digits, after how many milliseconds it expires,
/// and a line break.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    by: Owner,
    ttl: Option<Duration>,
}

impl Header {
    /// The header, and the value behind it.
    fn read(data: &[u8]) -> Option<(Self, &[u8])> {
        let (digits, rest) = data.split_at_checked(2 * OWNER_BYTES)?;
        let by = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let ttl = match std::str::from_utf8(&rest[..end]).ok()?.strip_prefix(' ')? {
            "-" => None,
            millis => Some(Duration::from_millis(millis.parse().ok()?)),
        };
        Some((Self { by, ttl }, &rest[end + 1..]))
    }
}

fn data(change: &Change, value: &[u8]) -> Vec<u8> {
    let ttl = change.ttl.map_or_else(|| "-".to_owned(), |ttl| ttl.millis().to_string());
    [format!("{} {ttl}\n", change.by).as_bytes(), value].concat()
}

impl ZooKeeperStore {
    /// What the leader has by now: a server that lags behind it catches up first.
    async fn found(&self, session: &Session, path: &str) -> Result<Option<Found>, Failure> {
        let (synchronized, node) =
            session.ask_both::<(), Node>(Request::sync(self.layout.chroot()), Request::get(path, false)).await?;
        synchronized?;
        match node {
            Ok(node) => Found::of(node, path).map(Some),
            Err(failure) if failure.is(Code::NO_NODE) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Now, on the leader's clock, in milliseconds since 1970.
    async fn leaders_time(&self, session: &Session) -> Result<i64, Failure> {
        let parent = self.layout.cells();
        match session.ask(Request::transaction(&[Step::Write { path: &parent, data: &[], version: None }])).await? {
            Done::All(Some(written)) => Ok(written.modified_unix_ms),
            Done::All(None) => Err(Failure::puzzling()),
            Done::None(code) => Err(Failure::refused(code)),
        }
    }

    async fn read_cell(&self, key: &LockName) -> Result<Option<Cell>, Failure> {
        let session = self.any_session().await?;
        match self.found(&session, &self.layout.cell(key)).await? {
            Some(found) => found.cell(self, &session).await,
            None => Ok(None),
        }
    }

    /// `again` when an earlier try of the same call may have been carried out.
    async fn change_cell(&self, change: &Change, again: bool) -> Result<Changed, Failure> {
        let session = self.any_session().await?;
        let path = self.layout.cell(&change.key);
        let mark = format!("{path}/{}", change.by);
        for _ in 0..TRIES {
            let found = self.found(&session, &path).await?;
            let cell = match &found {
                Some(found) => found.cell(self, &session).await?,
                None => None,
            };
            match &cell {
                Some(cell) if cell.by == change.by => return Ok(Changed::Done(cell.version)),
                None if again && change.value.is_none() => return Ok(Changed::Done(removed(change))),
                _ => {}
            }
            if !change.expected.matches(cell.as_ref()) {
                // An earlier try may have been applied before: whoever is told of a conflict would change it twice.
                return if again { Err(Failure::overwritten()) } else { Ok(Changed::Conflict(cell)) };
            }
            let written = change.value.as_ref().map(|value| data(change, value));
            let old_mark = found.as_ref().map(|found| format!("{path}/{}", found.by));
            let mut steps: Vec<_> = match &old_mark {
                Some(mark) => vec![Step::Delete { path: mark }],
                None => vec![self.lasting(&path)],
            };
            match &written {
                Some(data) => {
                    steps.push(self.lasting(&mark));
                    steps.push(Step::Write { path: &path, data, version: None });
                }
                None if found.is_some() => steps.push(Step::Delete { path: &path }),
                None => return Ok(Changed::Done(removed(change))), // nothing was to be there, and nothing is
            }
            match session.ask(Request::transaction(&steps)).await? {
                Done::All(Some(written)) => return Ok(Changed::Done(Version(written.modified.unsigned_abs()))),
                Done::All(None) => return Ok(Changed::Done(removed(change))),
                Done::None(Code::NO_NODE) if found.is_none() => {
                    self.make_containers(&session, &self.layout.cells()).await?;
                }
                // Somebody was quicker.
                Done::None(Code::NO_NODE | Code::NODE_EXISTS) => {}
                Done::None(code) => return Err(Failure::refused(code)),
            }
        }
        Err(Failure::refused(Code::NO_NODE))
    }

    /// The making of a node without data that lives until it is deleted.
    fn lasting<'a>(&self, path: &'a str) -> Step<'a> {
        Step::Create { path, data: &[], access: self.access, lifetime: Lifetime::Persistent }
    }

    async fn until_changed(&self, key: &LockName, seen: Option<Version>) -> Result<(), Failure> {
        let path = self.layout.cell(key);
        loop {
            let session = self.any_session().await?;
            let found = self.found(&session, &path).await?;
            let cell = match &found {
                Some(found) => found.cell(self, &session).await?,
                None => None,
            };
            if cell.as_ref().map(|cell| cell.version) != seen {
                return Ok(());
            }
            let (watcher, told) = oneshot::channel();
            let watched = session.watch_for(&path, Watcher::Waiter(watcher)).await?;
            if watched.map(|stat| stat.modified) != found.map(|found| found.stat.modified) {
                continue; // between the look and the watch
            }
            let end = async {
                match cell.and_then(|cell| cell.expires_in) {
                    Some(left) => clock::sleep(&*self.clock, left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Untold, the connection is gone, and the watch with it.
                _ = told => {}
                () = end => {}
            }
        }
    }
}

/// What a removal answers: the version that it removed.
fn removed(change: &Change) -> Version {
    match change.expected {
        Expected::Version(version) => version,
        Expected::Absent => Version(0),
    }
}

impl Cells for ZooKeeperStore {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        Box::pin(async move {
            let read = on_another_connection(|| self.read_cell(key)).await;
            read.map_err(|failure| failure.error(Operation::Update, Some(key)))
        })
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(async move {
            let begun = AtomicBool::new(false);
            let changed = on_another_connection(|| self.change_cell(change, begun.swap(true, Relaxed))).await;
            changed.map_err(|failure| failure.error(Operation::Update, Some(&change.key)))
        })
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let changed = on_another_connection(|| self.until_changed(key, seen)).await;
            changed.map_err(|failure| failure.error(Operation::Update, Some(key)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_and_nothing_foreign_does() {
        let key = LockName::new("x").unwrap();
        let change = Change::write(key, Expected::Absent, *b"1\n2").unwrap();
        let expiring = change.clone().expiring(fencepost_core::limits::Ttl::new(Duration::from_secs(7)).unwrap());
        for (change, ttl) in [(change, None), (expiring, Some(Duration::from_secs(7)))] {
            let stored = data(&change, b"1\n2");
            assert_eq!(Header::read(&stored), Some((Header { by: change.by, ttl }, &b"1\n2"[..])));
        }
        let digits = "0".repeat(40);
        for foreign in ["", "x", &digits, &format!("{digits} x\n"), &format!("{digits}-\n"), &format!("{digits} -")] {
            assert_eq!(Header::read(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
