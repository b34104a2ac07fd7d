//! Cells: values that change on condition of their version.

use std::{sync::Arc, time::Duration};

use fencepost::{ErrorKind, error::Applied, store::Store};
use fencepost_core::{
    cells::{Cell, Cells, Change, Changed, Expected, MAX_CELL_BYTES},
    limits::Ttl,
};
use fencepost_servers::Weather;
use tokio::task::JoinSet;

use crate::{
    site::{DoesNotApply, Site, Verdict},
    steps::{LONG, SOON, eventually, ms, name, store, store_at, within},
};

/// Whole seconds, which is as fine as some stores count.
const BRIEF: Duration = Duration::from_secs(2);

fn cells(store: &Arc<dyn Store>) -> Verdict<&dyn Cells> {
    assert_eq!(store.capabilities().cells, store.cells().is_some(), "what it says of itself");
    store.cells().ok_or(DoesNotApply("the store has no cells"))
}

fn change(cell: Option<&Cell>, value: impl Into<Arc<[u8]>>) -> Change {
    Change::write(name("cell"), Expected::as_read(cell), value).expect("a short value")
}

async fn read(cells: &dyn Cells) -> Option<Cell> {
    cells.read(&name("cell")).await.expect("an answer")
}

async fn done(cells: &dyn Cells, change: &Change) -> Cell {
    let answer = cells.change(change).await.expect("an answer");
    assert!(matches!(answer, Changed::Done(_)), "{answer:?}");
    let cell = read(cells).await.expect("a cell");
    assert_eq!(answer, Changed::Done(cell.version));
    cell
}

pub async fn no_change_of_a_cell_is_lost(site: &dyn Site) -> Verdict {
    cells(&store(site).await)?;
    let mut crowd = JoinSet::new();
    for _ in 0..6 {
        let store = store(site).await;
        crowd.spawn(async move {
            let cells = store.cells().expect("it has cells");
            let mut found = read(cells).await;
            for _ in 0..20 {
                loop {
                    let count = found.as_ref().map_or(0, |cell| number(&cell.value));
                    match cells.change(&change(found.as_ref(), (count + 1).to_string().into_bytes())).await {
                        Ok(Changed::Done(_)) => break,
                        Ok(Changed::Conflict(now)) => found = now,
                        Err(error) => panic!("{error}"),
                    }
                }
                found = read(cells).await;
            }
        });
    }
    within(SOON * 10, "everybody counts to the end", crowd.join_all()).await;
    let store = store(site).await;
    assert_eq!(number(&read(cells(&store)?).await.expect("a cell").value), 120);
    return Ok(());

    fn number(value: &[u8]) -> u32 {
        std::str::from_utf8(value).expect("text").parse().expect("a number")
    }
}

pub async fn a_repeated_change_answers_as_the_first(site: &dyn Site) -> Verdict {
    let (a, b) = (store(site).await, store(site).await);
    let (a, b) = (cells(&a)?, cells(&b)?);
    let first = change(None, *b"one");
    let cell = done(a, &first).await;
    assert_eq!(b.change(&first).await.expect("an answer"), Changed::Done(cell.version));
    assert!(matches!(b.change(&change(None, *b"two")).await, Ok(Changed::Conflict(Some(found))) if found == cell));
    let later = done(b, &change(Some(&cell), *b"two")).await;
    assert!(matches!(a.change(&first).await, Ok(Changed::Conflict(Some(found))) if found == later));
    Ok(())
}

/// Sent once more after its connection broke, it would be told of a conflict, and whoever decides anew on that would change the
/// cell twice.
pub async fn c2_a_change_that_was_made_and_overwritten_is_no_conflict(site: &dyn Site) -> Verdict {
    let (network, looks_on) = (site.network()?, store(site).await);
    cells(&looks_on)?;
    let (ours, other) = (store_at(&site.disturbed_url()?, site).await, cells(&looks_on)?);
    let first = done(cells(&ours)?, &change(None, *b"3")).await;
    let taken = change(Some(&first), *b"2");
    network.set(Weather::SlowReplies(ms(1000))); // some stores look before they change
    let changing = tokio::spawn(async move { ours.cells().expect("it has cells").change(&taken).await });
    let made = async || read(other).await.filter(|cell| *cell.value == *b"2");
    eventually(SOON * 2, "the change is made", async || made().await.is_some()).await;
    done(other, &change(made().await.as_ref(), *b"1")).await;
    network.set(Weather::Fair);
    network.break_connections();
    let answer = within(LONG, "the connection breaks", changing).await.expect("no panic");
    let error = answer.expect_err("it may have been made, and was");
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    Ok(())
}

pub async fn no_version_of_a_cell_comes_twice(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let cells = cells(&store)?;
    let mut last = None;
    for round in 0..4_u8 {
        let cell = done(cells, &change(None, [round])).await;
        assert!(last.is_none_or(|last| last < cell.version), "{last:?}, then {:?}", cell.version);
        let removal = Change::remove(name("cell"), cell.version).expect("randomness");
        assert!(matches!(cells.change(&removal).await, Ok(Changed::Done(_))));
        assert_eq!(read(cells).await, None);
        assert!(matches!(cells.change(&removal).await, Ok(Changed::Conflict(None))));
        let stale = change(Some(&cell), *b"stale");
        assert!(matches!(cells.change(&stale).await, Ok(Changed::Conflict(None))));
        last = Some(cell.version);
    }
    Ok(())
}

pub async fn t2_a_cell_expires_by_the_stores_clock(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let cells = cells(&store)?;
    let brief = change(None, *b"brief").expiring(Ttl::new(BRIEF).expect("a TTL"));
    let cell = done(cells, &brief).await;
    assert!(cell.expires_in.is_some_and(|left| left <= BRIEF), "{cell:?}");
    within(BRIEF + SOON, "its end is told", cells.changed(&name("cell"), Some(cell.version))).await.expect("an answer");
    while read(cells).await.is_some() {
        tokio::time::sleep(ms(20)).await; // told early is allowed
    }
    let lasting = done(cells, &change(None, *b"lasting")).await;
    assert_eq!(lasting.expires_in, None);
    Ok(())
}

pub async fn w1_a_change_of_a_cell_is_told(site: &dyn Site) -> Verdict {
    let (a, b) = (store(site).await, store(site).await);
    let (a, b) = (cells(&a)?, cells(&b)?);
    let key = name("cell");
    let first = done(a, &change(None, *b"one")).await;
    within(SOON, "what was seen is old already", b.changed(&key, None)).await.expect("an answer");
    let next = change(Some(&first), *b"two");
    let (told, second) =
        tokio::join!(within(SOON, "the change is told", b.changed(&key, Some(first.version))), done(a, &next),);
    told.expect("an answer");
    let removal = Change::remove(key.clone(), second.version).expect("randomness");
    let (told, _) =
        tokio::join!(within(SOON, "the removal is told", b.changed(&key, Some(second.version))), a.change(&removal));
    told.expect("an answer");
    Ok(())
}

pub async fn a_cell_holds_as_much_as_it_says(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let cells = cells(&store)?;
    let value: Vec<u8> = (0..MAX_CELL_BYTES).map(|byte| byte as u8).collect();
    let cell = done(cells, &change(None, value.clone())).await;
    assert_eq!(*cell.value, *value);
    let empty = done(cells, &change(Some(&cell), [])).await;
    assert!(empty.value.is_empty(), "an empty value is a value");
    assert!(Change::write(name("cell"), Expected::Absent, vec![0; MAX_CELL_BYTES + 1]).is_err());
    Ok(())
}
