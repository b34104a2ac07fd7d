//! The leader's word: told for as long as it leads, withdrawn when it does no more.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimant, LossReason},
    clock,
    error::{Error, ErrorKind, Operation},
    purpose::Purpose,
};
use tokio::sync::{Mutex, oneshot};

use super::Leader;
use crate::{
    cell::{Cell, Edit, Update},
    lease::Lease,
    watchdog::Held,
};
/// What the leader has told.
#[derive(Debug)]
pub(super) struct News {
    cell: Cell<Leader>,
    leader: Leader,
    /// Withdrawn, or overtaken by a later leader's.
    over: bool,
}

impl News {
    /// The term that it tells of.
    pub(super) fn term(&self) -> u64 {
        self.leader.term
    }

    pub(super) async fn first<P: Purpose>(
        lease: &Lease<P>,
        cell: Cell<Leader>,
        terms: Cell<u64>,
        claimant: Claimant,
        word: String,
    ) -> Result<Self, Error> {
        let term = match lease.issued() {
            Some(fence) => fence.get(),
            None => next_term(&terms).await?,
        };
        let mut news = Self { cell, leader: Leader { term, claimant, word }, over: false };
        news.tell(None).await?;
        Ok(news)
    }

    /// Writes what there is to tell, unless a later leader has spoken.
    pub(super) async fn tell(&mut self, word: Option<String>) -> Result<(), Error> {
        let mut leader = self.leader.clone();
        if let Some(word) = word {
            leader.word = word;
        }
        let mut found = self.cell.look().await?;
        loop {
            let later = found.value.as_ref().is_some_and(|other| other.term > leader.term);
            if self.over || later {
                self.over = true;
                let reason = LossReason::TakenOver;
                return Err(
                    Error::new(ErrorKind::Lost(reason), Operation::Update, "another leads by now").not_applied()
                );
            }
            match self.cell.write(&found, &leader).await? {
                Ok(_) => break,
                Err(newer) => found = newer,
            }
        }
        self.leader = leader;
        Ok(())
    }

    pub(super) async fn withdraw(&mut self) -> Result<(), Error> {
        let cell = self.cell.parting();
        let found = cell.look().await?;
        if let (Some(leader), Some(version)) = (&found.value, found.version())
            && leader.term == self.leader.term
        {
            cell.remove(version).await?;
        }
        self.over = true; // not before: who is dropped in the midst leaves it to `keep_telling`
        Ok(())
    }
}

/// Without fences the terms are counted beside the word, which ends with its leader: enough to tell one leader's news from
/// another's.
async fn next_term(terms: &Cell<u64>) -> Result<u64, Error> {
    match terms.update(|last| Edit::Write(last.unwrap_or(0).saturating_add(1))).await? {
        Update::Written { value, .. } => Ok(value),
        Update::Removed { .. } | Update::Left | Update::Refused(_) | Update::Contended { .. } => {
            let said = "the term could not be counted: others counted meanwhile, so another leads by now";
            Err(Error::new(ErrorKind::Lost(LossReason::TakenOver), Operation::Update, said).not_applied())
        }
    }
}

/// Tells the news again before it expires, until the leadership ends, and withdraws it then.
pub(super) async fn keep_telling(
    news: Arc<Mutex<News>>,
    held: Arc<Held>,
    mut resigned: oneshot::Receiver<()>,
    pause: Duration,
) {
    let clock = news.lock().await.cell.shared_clock();
    loop {
        tokio::select! {
            _ = &mut resigned => break,
            _ = held.lost() => break,
            () = clock::sleep(&*clock, pause) => {}
        }
        let mut news = news.lock().await;
        if news.over {
            return;
        }
        if let Err(error) = news.tell(None).await {
            tracing::debug!(%error, "the word of a leader could not be told again");
        }
    }
    let mut news = news.lock().await;
    if !news.over
        && let Err(error) = news.withdraw().await
    {
        tracing::debug!(%error, "the word of a former leader stays until its TTL");
    }
}
