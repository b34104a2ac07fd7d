//! One script for many keys: in pipelines, since a script may not name keys of two slots.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fencepost_core::error::{Applied, ErrorKind};
use futures_util::future::join_all;
use redis::Value;

use super::{Care, Cluster, slot};
use crate::{connection::Link, failure::Failure, replicas::Kept, scripts::Script};

/// Commands of one pipeline.
const PIPELINE: usize = 100;

/// Places in a list of calls, by the master that each belongs to as far as is known.
type ByMaster = HashMap<Option<usize>, (Option<Arc<Link>>, Vec<usize>)>;

impl Cluster {
    /// Calls a script many times, in one pipeline after another to each master. All answers are there `within` this time:
    /// a master that is silent must not keep the answers of the others from whoever waits for all (R1).
    pub(crate) async fn call_many(
        &self,
        script: &Script,
        calls: &[(Vec<String>, Vec<String>)],
        within: Duration,
    ) -> Vec<Result<Kept, Failure>> {
        let mut by_master = ByMaster::new();
        for (place, (keys, _)) in calls.iter().enumerate() {
            let link = self.state().map.master_of(slot(&keys[0]));
            let master = link.as_ref().map(|link| Arc::as_ptr(link) as usize);
            by_master.entry(master).or_insert((link, Vec::new())).1.push(place);
        }
        let batches =
            by_master.values().flat_map(|(link, places)| places.chunks(PIPELINE).map(move |chunk| (link, chunk)));
        let answered = join_all(batches.map(|(link, places)| async move {
            let batch = places.iter().map(|place| &calls[*place]).collect();
            let limited = tokio::time::timeout(within, self.call_batch(link.as_ref(), script, batch)).await;
            let late = || {
                Err(Failure::new(ErrorKind::Unavailable, Applied::Unknown, "the key's master did not answer in time"))
            };
            places.iter().copied().zip(limited.unwrap_or_else(|_| places.iter().map(|_| late()).collect()))
        }));
        let mut answers: Vec<_> = answered.await.into_iter().flatten().collect();
        answers.sort_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// One pipeline. What it cannot do, a script that the node does not know or a slot that moved, is done one by one.
    async fn call_batch(
        &self,
        link: Option<&Arc<Link>>,
        script: &Script,
        batch: Vec<&(Vec<String>, Vec<String>)>,
    ) -> Vec<Result<Kept, Failure>> {
        let sent = match link {
            Some(link) => {
                // The first one with the script's text: a node that does not know it yet would refuse them all.
                let commands = batch.iter().enumerate().map(|(place, (keys, arguments))| match place {
                    0 => script.by_text(keys, arguments),
                    _ => script.by_hash(keys, arguments),
                });
                link.send_all(commands.collect(), Care::Keep).await.ok()
            }
            None => None,
        };
        let (values, short) = sent.unwrap_or_default();
        let mut values = values.into_iter();
        let each = batch.into_iter().map(|(keys, arguments)| (values.next(), short.clone(), keys, arguments));
        let each = each.map(|(value, short, keys, arguments)| async move {
            match value {
                Some(value) if !matches!(value, Value::ServerError(_)) => Ok(Kept { value, short }),
                _ => self.call(script, keys, arguments, Care::Keep).await,
            }
        });
        join_all(each).await
    }
}
