//! What becomes of grants: renewed, given back, made shared.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    batches::batches,
    claim::{Claim, Holding, LossReason, Mode, Release, Renewal, Want},
    clock::Sent,
    error::{Applied, Error, ErrorKind, Operation},
};
use tokio_postgres::Row;

use crate::{
    answers::only,
    failure::Failure,
    record,
    session::Parameter,
    store::{PostgresStore, in_order},
};

/// Locks renewed by one statement. Their rows stay locked until it is committed, so that more would hold up releases.
const BATCH: usize = 250;

impl PostgresStore {
    pub(crate) async fn extend(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let mut answers = Vec::with_capacity(claims.len());
        for batch in batches(claims, BATCH) {
            answers.extend(self.extend_batch(batch).await);
        }
        answers
    }

    async fn extend_batch(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let locks = claims.iter().flat_map(|claim| claim.holding.wants().iter().map(move |want| (claim, want)));
        let (mut names, mut owners, mut ttls) = (Vec::new(), Vec::new(), Vec::new());
        for (claim, want) in locks {
            names.push(want.name.as_str());
            owners.push(claim.owner().as_bytes().as_slice());
            ttls.push(record::ttl(claim.ttl));
        }
        let room = &self.room;
        let with: [Parameter<'_>; 6] =
            [&room.namespace.as_str(), &names, &owners, &ttls, &room.number(), &room.in_session];
        let counted_from = Sent::now(&*self.clock);
        let answer = room.ask(&room.link.statements.renew, &with).await;
        let answers = answer.and_then(|rows| {
            let answers: Vec<String> = only(&rows)?;
            if answers.len() == names.len() { Ok(answers) } else { Err(Failure::puzzling()) }
        });
        let mut rest = match &answers {
            Ok(answers) => &answers[..],
            Err(failure) => return claims.iter().map(|claim| Err(of(claim)(failure.clone()))).collect(),
        };
        let renewals = claims.iter().map(|claim| {
            let (each, others) = rest.split_at(claim.holding.wants().len());
            rest = others;
            renewal(claim, each, counted_from, self.lasts(claim))
        });
        renewals.collect()
    }

    pub(crate) async fn give_back(&self, holding: &Holding) -> Result<Release, Error> {
        self.room.leave(&holding.owner);
        let answer = self.send_back(holding).await.and_then(|rows| match only(&rows)? {
            "released" => Ok(Release::Released),
            "expired" => Ok(Release::AlreadyExpired),
            "other" => Ok(Release::HeldByOther),
            _ => Err(Failure::puzzling()),
        });
        answer.map_err(|failure| failure.error(Operation::Release, Some(holding.name())))
    }

    async fn send_back(&self, holding: &Holding) -> Result<Vec<Row>, Failure> {
        let (room, statements) = (&self.room, &self.room.link.statements);
        let (namespace, names) = (room.namespace.as_str(), in_order(holding));
        let (owner, first) = (holding.owner.as_bytes().as_slice(), names[0]);
        let one: [Parameter<'_>; 3] = [&namespace, &first, &owner];
        let several: [Parameter<'_>; 3] = [&namespace, &names, &owner];
        let (statement, with) = match holding.wants() {
            [Want { mode: Mode::Exclusive, .. }] => (&statements.release, &one),
            [_] => (&statements.give_back, &one),
            _ => (&statements.release_several, &several),
        };
        // Behind the claim, on the connection where that was sent: one that was dropped half way is never applied later than
        // its release.
        match room.session().filter(|_| room.in_session) {
            None => room.link.call(statement, with).await,
            Some(session) => match room.link.send(&session, statement, with).await {
                Err(first) if session.is_closed() => {
                    room.link.call(statement, with).await.map_err(|failure| failure.after(&first))
                }
                answer => answer,
            },
        }
    }

    pub(crate) async fn lower(&self, claim: &Claim) -> Result<Renewal, Error> {
        let [want] = claim.holding.wants() else {
            let said = "PostgreSQL makes one lock shared at a time";
            return Err(of(claim)(Failure::new(ErrorKind::Unsupported, Applied::No, said)));
        };
        let room = &self.room;
        let (owner, ttl) = (claim.owner().as_bytes().as_slice(), record::ttl(claim.ttl));
        let with: [Parameter<'_>; 6] =
            [&room.namespace.as_str(), &want.name.as_str(), &owner, &ttl, &room.number(), &room.in_session];
        let counted_from = Sent::now(&*self.clock);
        let rows = room.ask(&room.link.statements.downgrade, &with).await.map_err(of(claim))?;
        let answer: String = only(&rows).map_err(of(claim))?;
        renewal(claim, &[answer], counted_from, self.lasts(claim))
    }
}

/// Of several locks, the first that is not renewed speaks for all.
fn renewal(claim: &Claim, each: &[String], counted_from: Sent, ttl: Duration) -> Result<Renewal, Error> {
    let Some(answer) = each.iter().find(|answer| *answer != "renewed") else {
        return Ok(Renewal::Renewed { counted_from, ttl });
    };
    match answer.as_str() {
        "ended" => Ok(Renewal::Lost(LossReason::SessionExpired)),
        "expired" => Ok(Renewal::Lost(LossReason::Expired)),
        "deleted" => Ok(Renewal::Lost(LossReason::Deleted)),
        "taken" => Ok(Renewal::Lost(LossReason::TakenOver)),
        "locked" => {
            let applied = if each.len() == 1 { Applied::No } else { Applied::Unknown }; // of the others it was
            Err(of(claim)(Failure::new(
                ErrorKind::Unavailable,
                applied,
                "another transaction has locked the lock's row",
            )))
        }
        _ => Err(of(claim)(Failure::puzzling())),
    }
}

fn of(claim: &Claim) -> impl Fn(Failure) -> Error {
    |failure| failure.error(Operation::Renew, Some(claim.name()))
}
