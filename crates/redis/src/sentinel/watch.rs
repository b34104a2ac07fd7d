//! Hearing of failovers. A master that was deposed at nobody's fault is told so some ten seconds later, and would go
//! on granting locks that are lost already. The sentinels announce the new one at once.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{self, Clock},
};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use super::{Sentinel, Sentinels};
use crate::{connection::Link, failure::Failure, route::until_dead};

const ANNOUNCED: &str = "+switch-master";

/// Listens to every sentinel, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(#[allow(dead_code)] JoinSet<()>);

impl Watch {
    pub(crate) fn start(sentinels: &Sentinels, link: &Arc<Link>, clock: &Arc<dyn Clock>) -> Self {
        let mut tasks = JoinSet::new();
        for sentinel in sentinels.sentinels.iter().cloned() {
            let service = sentinels.service.clone();
            tasks.spawn(Listener { sentinel, service, link: Arc::downgrade(link), clock: clock.clone() }.listen());
        }
        Self(tasks)
    }
}

struct Listener {
    sentinel: Sentinel,
    service: String,
    link: Weak<Link>,
    clock: Arc<dyn Clock>,
}

impl Listener {
    async fn listen(self) {
        let (mut backoff, mut told) = (self.backoff(), false);
        loop {
            match self.hear().await {
                Ok(()) => (backoff, told) = (self.backoff(), false),
                // Once for each outage: nobody else names a sentinel that the others can do without.
                Err(failure) if !std::mem::replace(&mut told, true) => tracing::warn!(
                    sentinel = %self.sentinel.server.address, service = %self.service, reason = %failure.message(),
                    "this sentinel cannot be heard; a failover is noticed later when nobody else announces it"
                ),
                Err(_) => {}
            }
            clock::sleep(&*self.clock, backoff.pause()).await;
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
    }

    /// Until the connection ends; an error when there was none.
    async fn hear(&self) -> Result<(), Failure> {
        let limit = self.sentinel.config.connect_timeout;
        let listening = async {
            let (mut sink, stream) = self.sentinel.server.messages().await?.split();
            sink.subscribe(ANNOUNCED).await.map_err(|error| Failure::answered(&error))?;
            Ok((sink, stream))
        };
        let listening = tokio::time::timeout(limit, listening).await;
        let (sink, mut stream) = listening.unwrap_or_else(|_| Err(self.sentinel.late()))?;
        // What was announced while nobody listened.
        if let Ok(word) = self.sentinel.ask(&self.service).await {
            self.follow(&word.host, word.port).await;
        }
        let heard = async {
            while let Some(message) = stream.next().await {
                // SERVICE OLD-HOST OLD-PORT NEW-HOST NEW-PORT
                let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                if let [service, _, _, host, port] = text.split(' ').collect::<Vec<_>>()[..]
                    && service == self.service
                    && let Ok(port) = port.parse()
                {
                    self.follow(host, port).await;
                }
            }
        };
        tokio::select! {
            () = heard => {}
            () = until_dead(sink, &*self.clock, limit) => {}
        }
        Ok(())
    }

    async fn follow(&self, host: &str, port: u16) {
        if let Some(link) = self.link.upgrade() {
            link.leave_for(&self.sentinel.config.at(host, port).address()).await;
        }
    }
}
