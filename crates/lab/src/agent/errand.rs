//! What a client does at the resource. It takes what it knows along, and does not look at its lock again.

use std::{collections::HashMap, net::SocketAddr};

use tokio::sync::Mutex;

use super::{Came, done};
use crate::resource::{Asked, Errand, ask};

/// The versions that were read, by grant.
#[derive(Debug, Default)]
pub(super) struct Errands(Mutex<HashMap<String, u64>>);

impl Errands {
    pub(super) async fn read(&self, order: u64, grant: String, fence: Option<u64>, resource: SocketAddr) {
        self.ask(order, Asked { grant, fence, errand: Errand::Read }, resource).await;
    }

    /// As one of many readers.
    pub(super) async fn look(&self, order: u64, grant: String, fence: Option<u64>, resource: SocketAddr) {
        self.ask(order, Asked { grant, fence, errand: Errand::Look }, resource).await;
    }

    pub(super) async fn write(&self, order: u64, grant: String, fence: Option<u64>, resource: SocketAddr) {
        let basis = self.0.lock().await.get(&grant).copied().unwrap_or(0);
        self.ask(order, Asked { grant, fence, errand: Errand::Write { basis } }, resource).await;
    }

    async fn ask(&self, order: u64, asked: Asked, resource: SocketAddr) {
        match ask(resource, &asked).await {
            Ok(answer) => {
                // Before the order is done: the next one may be a write.
                self.0.lock().await.insert(asked.grant, answer.version);
                done(order, if answer.taken { Came::Yes } else { Came::No }, "");
            }
            Err(error) => done(order, Came::Failed, error.to_string()),
        }
    }
}
