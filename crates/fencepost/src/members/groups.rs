//! Which groups there are, for listings: a roll of their names in one cell, written when a group begins and when it ends.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fencepost_core::{claim::Claimant, error::Error, name::LockName};

use super::{Register, register};
use crate::{
    cell::{Cell, Edit},
    client::Client,
};

/// The most groups that are listed: their names of 512 bytes fit into a cell.
pub const MOST_GROUPS: usize = 400;

/// The roll's own name. It is the only cell of its kind.
const ROLL: &str = "all";

/// A group as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Who is there, in the order of their ids. One that died is there for as long as the others have not noticed.
    pub members: Vec<GroupMember>,
}

/// A member as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its id.
    pub id: String,
    /// Who it is, for people.
    pub claimant: Claimant,
    /// After how long without a sign of life it is taken for dead.
    pub ttl: Duration,
}

/// The names of all groups that somebody has joined.
#[derive(Clone, Debug)]
pub(super) struct Roll {
    client: Arc<Client>,
    cell: Cell<BTreeSet<String>>,
}

impl Roll {
    pub(super) fn new(client: &Arc<Client>) -> Result<Self, Error> {
        let cell = Cell::new(client.clone(), "groups", &LockName::new(ROLL)?)?;
        Ok(Self { client: client.clone(), cell })
    }

    /// The same for a last word, while the client closes.
    pub(super) fn parting(&self) -> Self {
        Self { cell: self.cell.parting(), ..self.clone() }
    }

    /// Enters a group that was joined. Where the roll is full, groups that have ended go; where it still is, the new one is
    /// not listed.
    pub(super) async fn enter(&self, group: &str) -> Result<(), Error> {
        if self.cell.read().await?.is_some_and(|roll| roll.len() >= MOST_GROUPS && !roll.contains(group)) {
            self.strike(self.ended().await?).await?;
        }
        self.add([group.to_owned()].into()).await
    }

    /// Strikes out groups that have ended.
    pub(super) async fn strike(&self, groups: BTreeSet<String>) -> Result<(), Error> {
        self.cell
            .update(|roll| match roll {
                Some(roll) if !roll.is_disjoint(&groups) => match &roll - &groups {
                    left if left.is_empty() => Edit::Remove,
                    left => Edit::Write(left),
                },
                _ => Edit::Leave,
            })
            .await?
            .settled("the roll of groups")?;
        // Somebody may have joined between the look by which it had ended and now, and found it on the roll.
        let mut begun = BTreeSet::new();
        for group in groups {
            if self.members_of(&group).await?.is_some() {
                begun.insert(group);
            }
        }
        if begun.is_empty() { Ok(()) } else { self.add(begun).await }
    }

    async fn add(&self, groups: BTreeSet<String>) -> Result<(), Error> {
        let update = self.cell.update(|roll| {
            let roll = roll.unwrap_or_default();
            if groups.is_subset(&roll) || roll.len() >= MOST_GROUPS {
                return Edit::Leave;
            }
            Edit::Write(&roll | &groups)
        });
        update.await?.settled("the roll of groups")
    }

    /// The groups on the roll that have members.
    pub(super) async fn present(&self) -> Result<Vec<Group>, Error> {
        let all = self.all().await?.into_iter();
        Ok(all.filter_map(|(name, members)| Some(Group { name, members: members? })).collect())
    }

    /// Those that have none any more.
    async fn ended(&self) -> Result<BTreeSet<String>, Error> {
        let all = self.all().await?.into_iter();
        Ok(all.filter(|(_, members)| members.is_none()).map(|(name, _)| name).collect())
    }

    async fn all(&self) -> Result<Vec<(String, Option<Vec<GroupMember>>)>, Error> {
        let mut all = Vec::new();
        for name in self.cell.read().await?.unwrap_or_default() {
            let members = self.members_of(&name).await?;
            all.push((name, members));
        }
        Ok(all)
    }

    /// `None` for a group that has ended.
    pub(super) async fn members_of(&self, group: &str) -> Result<Option<Vec<GroupMember>>, Error> {
        // Looked at also while the client closes, after its last word.
        let found: Option<Register> = register(&self.client, &LockName::new(group)?)?.parting().read().await?;
        let shown = |(id, entry): (String, super::Entry)| GroupMember {
            id,
            claimant: entry.claimant,
            ttl: Duration::from_millis(entry.ttl_ms),
        };
        Ok(found.map(|register| register.members.into_iter().map(shown).collect()))
    }
}
