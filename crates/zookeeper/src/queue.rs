//! A lock's queue: its nodes in the order of their creation, and who stands in whose way.

use fencepost_core::{claim::Mode, owner::Owner};

use crate::{
    failure::Failure,
    layout::{Contender, Layout},
    permits,
    session::Session,
    wire::{Children, Code, Request, Stat},
};

/// Where the numbers in names stop telling the order, with room for the requests under way. ZooKeeper counts the changes
/// to a node's children in 31 bits, and servers differ in what comes after: some go on below zero, some stand still.
const NUMBERS_END: i32 = i32::MAX - 1_000_000;

/// Who holds and who waits, first come first.
#[derive(Debug)]
pub(crate) struct Queue {
    contenders: Vec<Contender>,
    /// How often the container's data were written.
    version: i32,
}

impl Queue {
    /// Reads the queue of the lock whose nodes lie below `path`. Empty when there is none.
    pub(crate) async fn read(layout: &Layout, session: &Session, path: &str) -> Result<Self, Failure> {
        match session.ask::<Children>(Request::children(path, false)).await {
            Ok(children) => Self::of(layout, session, path, children).await,
            Err(failure) if failure.is(Code::NO_NODE) => Ok(Self { contenders: Vec::new(), version: 0 }),
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
        let (counted, version) = (children.parent.children_version, children.parent.version);
        let mut queue: Vec<_> = children.names.into_iter().filter_map(|name| layout.contender(name)).collect();
        let numbers_tell = (0..NUMBERS_END).contains(&counted)
            && queue.iter().all(|contender| (0..i64::from(NUMBERS_END)).contains(&contender.number));
        if numbers_tell {
            queue.sort_unstable_by_key(|contender| contender.number);
            return Ok(Self { contenders: queue, version });
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
        Ok(Self { contenders: dated.into_iter().map(|(_, contender)| contender).collect(), version })
    }

    pub(crate) fn contenders(&self) -> &[Contender] {
        &self.contenders
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == name)
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.contenders.retain(|contender| contender.name != name);
    }

    /// Whether there ever was anything in the container's data: readers use the lock, or a limit was changed.
    pub(crate) fn is_noted(&self) -> bool {
        self.version != 0
    }

    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// Whom the claim at `position` has to wait for; `None` when it is its turn. Whoever wants the lock for himself waits for
    /// the one right before him, and a reader for the last one before him who does not read. For permits, it is the turn of
    /// all who come first and want no more of them together than `limit`.
    pub(crate) fn in_the_way(&self, position: usize, mode: Mode, limit: Option<u32>) -> Option<usize> {
        let ahead = &self.contenders[..position];
        match mode {
            Mode::Exclusive => position.checked_sub(1),
            Mode::Shared => ahead.iter().rposition(|contender| contender.mode != Some(Mode::Shared)),
            Mode::Permits { count, .. } => {
                let all = ahead.iter().map(|contender| wanted(contender.mode)).fold(count, u32::saturating_add);
                limit.is_none_or(|limit| all > limit).then(|| position.checked_sub(1)).flatten()
            }
        }
    }

    /// How many of those before `position` wait, and do not hold.
    pub(crate) fn waiting_before(&self, position: usize, limit: Option<u32>) -> usize {
        let holds = |(index, contender): (usize, &Contender)| {
            self.in_the_way(index, contender.mode.unwrap_or_default(), limit).is_none()
        };
        position - self.contenders[..position].iter().enumerate().take_while(|one| holds(*one)).count()
    }
}

/// Of a claim that wants everything, more than there are.
fn wanted(mode: Option<Mode>) -> u32 {
    match mode {
        Some(Mode::Permits { count, .. }) => count,
        _ => u32::MAX,
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

/// A claim that leaves the queue, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    pub(crate) session: &'a Session,
    /// The container of the lock's nodes.
    pub(crate) lock: &'a str,
    pub(crate) owner: &'a Owner,
    pub(crate) mode: Mode,
    /// Its node's name.
    pub(crate) node: Option<&'a str>,
    /// The permits that it holds, where that is certain.
    pub(crate) slots: Option<&'a [u32]>,
}

impl Leaving<'_> {
    /// Takes every node of the claim out of the queue: the one that is known, else whichever bears its owner value. Requests of
    /// one session are served in their order, so a node that is still being made is found.
    pub(crate) async fn leave(self, layout: &Layout) -> Result<Left, Failure> {
        if let Some(node) = self.node
            && self.leave_as(node).await?
        {
            return Ok(Left { was_there: true, others: true });
        }
        let queue = Queue::read(layout, self.session, self.lock).await?;
        let (ours, others): (Vec<_>, Vec<_>) =
            queue.contenders().iter().partition(|contender| contender.owner.as_ref() == Some(self.owner));
        let mut was_there = false;
        for contender in ours {
            let found = Self { mode: contender.mode.unwrap_or(self.mode), slots: None, ..self };
            was_there |= found.leave_as(&contender.name).await?;
        }
        if !was_there && matches!(self.mode, Mode::Permits { .. }) {
            // Somebody removed its node, and its permits would stay for as long as its session does.
            permits::sweep(self).await?;
        }
        Ok(Left { was_there, others: !others.is_empty() })
    }

    /// Takes one node of the claim out of the queue. Answers whether it was there.
    pub(crate) async fn leave_as(self, node: &str) -> Result<bool, Failure> {
        match self.mode {
            Mode::Exclusive | Mode::Shared => remove(self.session, &format!("{}/{node}", self.lock)).await,
            Mode::Permits { .. } => permits::give_back(self, node).await,
        }
    }
}

/// Whether the node was there.
pub(crate) async fn remove(session: &Session, path: &str) -> Result<bool, Failure> {
    match session.ask::<()>(Request::delete(path)).await {
        Ok(()) => Ok(true),
        Err(failure) if failure.is(Code::NO_NODE) => Ok(false),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Mode = Mode::Exclusive;
    const R: Mode = Mode::Shared;

    fn p(count: u32) -> Mode {
        Mode::Permits { count, of: 3 }
    }

    fn queue(modes: &[Mode]) -> Queue {
        let contender = |(number, mode): (usize, &Mode)| Contender {
            name: number.to_string(),
            number: number as i64,
            owner: None,
            mode: Some(*mode),
        };
        Queue { contenders: modes.iter().enumerate().map(contender).collect(), version: 0 }
    }

    fn ways(modes: &[Mode]) -> Vec<Option<usize>> {
        let queue = queue(modes);
        modes.iter().enumerate().map(|(position, mode)| queue.in_the_way(position, *mode, Some(3))).collect()
    }

    #[test]
    fn w3_who_waits_for_whom() {
        assert_eq!(ways(&[X, X, X]), [None, Some(0), Some(1)]);
        assert_eq!(ways(&[R, R, X, R, X, R, R]), [None, None, Some(1), Some(2), Some(3), Some(4), Some(4)]);
        assert_eq!(ways(&[p(1), p(2), p(1), p(1)]), [None, None, Some(1), Some(2)], "one that waits is not passed");
        assert_eq!(ways(&[p(1), X, p(1)]), [None, Some(0), Some(1)], "a mistake is waited for until it is told so");
    }

    #[test]
    fn how_many_wait() {
        assert_eq!(queue(&[X, X, R]).waiting_before(2, None), 1);
        assert_eq!(queue(&[R, R, X]).waiting_before(2, None), 0);
        assert_eq!(queue(&[p(2), p(1), p(3), p(1)]).waiting_before(3, Some(3)), 1);
    }
}
