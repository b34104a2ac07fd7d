//! A lock's queue: its nodes in the order of their creation.

use fencepost_core::owner::Owner;

use crate::{
    failure::Failure,
    layout::{Contender, Layout},
    session::Session,
    wire::{Children, Code, Request, Stat},
};

/// Where the numbers in names stop telling the order, with room for the requests under way. ZooKeeper counts the changes
/// to a node's children in 31 bits, and servers differ in what comes after: some go on below zero, some stand still.
const NUMBERS_END: i32 = i32::MAX - 1_000_000;

/// Who holds and who waits, first come first.
#[derive(Debug)]
pub(crate) struct Queue(Vec<Contender>);

impl Queue {
    /// Reads the queue of the lock whose nodes lie below `path`. Empty when there is none.
    pub(crate) async fn read(layout: &Layout, session: &Session, path: &str) -> Result<Self, Failure> {
        match session.ask::<Children>(Request::children(path)).await {
            Ok(children) => Self::of(layout, session, path, children).await,
            Err(failure) if failure.is(Code::NO_NODE) => Ok(Self(Vec::new())),
            Err(failure) => Err(failure),
        }
    }

    /// Brings children into order.
    pub(crate) async fn of(
        layout: &Layout,
        session: &Session,
        path: &str,
        children: Children,
    ) -> Result<Self, Failure> {
        let counted = children.parent.children_version;
        let mut queue: Vec<_> = children.names.into_iter().filter_map(|name| layout.contender(name)).collect();
        let numbers_tell = (0..NUMBERS_END).contains(&counted)
            && queue.iter().all(|contender| (0..i64::from(NUMBERS_END)).contains(&contender.number));
        if numbers_tell {
            queue.sort_unstable_by_key(|contender| contender.number);
            return Ok(Self(queue));
        }
        // The transaction that made a node has 64 bits.
        let asked = queue.iter().map(|contender| Request::exists(&format!("{path}/{}", contender.name))).collect();
        let mut dated = Vec::with_capacity(queue.len());
        for (contender, stat) in queue.into_iter().zip(session.ask_all::<Stat>(asked).await) {
            match stat {
                Ok(stat) => dated.push((stat.created, contender)),
                Err(failure) if failure.is(Code::NO_NODE) => {}
                Err(failure) => return Err(failure),
            }
        }
        dated.sort_unstable_by_key(|(created, _)| *created);
        Ok(Self(dated.into_iter().map(|(_, contender)| contender).collect()))
    }

    pub(crate) fn contenders(&self) -> &[Contender] {
        &self.0
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|contender| contender.name == name)
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.0.retain(|contender| contender.name != name);
    }
}

/// What stood there when a claim was taken out of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Whether there was a node of the claim.
    pub(crate) was_there: bool,
    /// Whether others are in the queue.
    pub(crate) others: bool,
}

/// Takes every node of a claim out of the queue: the one that is known, else whichever bears its owner value. Requests of
/// one session are served in their order, so a node that is still being made is found.
pub(crate) async fn leave(
    layout: &Layout,
    session: &Session,
    path: &str,
    owner: &Owner,
    known: Option<String>,
) -> Result<Left, Failure> {
    if let Some(known) = known
        && remove(session, &known).await?
    {
        return Ok(Left { was_there: true, others: true });
    }
    let queue = Queue::read(layout, session, path).await?;
    let (ours, others): (Vec<_>, Vec<_>) =
        queue.contenders().iter().partition(|contender| contender.owner.as_ref() == Some(owner));
    let mut was_there = false;
    for contender in ours {
        was_there |= remove(session, &format!("{path}/{}", contender.name)).await?;
    }
    Ok(Left { was_there, others: !others.is_empty() })
}

/// Whether the node was there.
pub(crate) async fn remove(session: &Session, path: &str) -> Result<bool, Failure> {
    match session.ask::<()>(Request::delete(path)).await {
        Ok(()) => Ok(true),
        Err(failure) if failure.is(Code::NO_NODE) => Ok(false),
        Err(failure) => Err(failure),
    }
}
