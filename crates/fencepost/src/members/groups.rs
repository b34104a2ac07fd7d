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
            let ended = self.present(false).await?;
            self.strike(ended.into_iter().map(|group| group.name).collect()).await?;
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

    /// The groups on the roll that have members, or those that have none.
    pub(super) async fn present(&self, with_members: bool) -> Result<Vec<Group>, Error> {
        let mut groups = Vec::new();
        for name in self.cell.read().await?.unwrap_or_default() {
            let members = self.members_of(&name).await?;
            if members.is_some() == with_members {
                groups.push(Group { name, members: members.unwrap_or_default() });
            }
        }
        Ok(groups)
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
