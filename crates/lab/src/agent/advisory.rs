//! What many write on PostgreSQL: `pg_try_advisory_lock` on the connection that it was given, and no thought of what stands
//! between: a pool, or a standby.

use std::{collections::HashMap, time::Duration};

use fencepost_history::{Answer, Verb, What};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{Came, Order, Role, Said, Task, done, errand::Errands, say, tell};

/// How often it tries again while another holds.
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn serve(role: Role) -> Result<(), Box<dyn std::error::Error>> {
    let (server, connection) = tokio_postgres::connect(&role.url, NoTls).await?;
    tokio::spawn(connection);
    let mut advisory = Advisory { name: role.name, server, locks: HashMap::new(), errands: Errands::default() };
    say(&Said::Ready { ready: true });
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        advisory.obey(serde_json::from_str(&line)?).await;
    }
    Ok(())
}

struct Advisory {
    name: String,
    server: Client,
    /// The locks by the names of their grants.
    locks: HashMap<String, String>,
    errands: Errands,
}

impl Advisory {
    async fn obey(&mut self, Order { order, task }: Order) {
        match task {
            Task::Acquire { lock, grant, wait_ms, .. } => self.acquire(order, lock, grant, wait_ms).await,
            // It has nothing to look at.
            Task::Check { .. } => done(order, Came::Yes, "it believes so"),
            Task::Release { grant } => self.release(order, grant).await,
            Task::Read { grant, resource } => self.errands.read(order, grant, None, resource).await,
            Task::Write { grant, resource } => self.errands.write(order, grant, None, resource).await,
        }
    }

    async fn acquire(&mut self, order: u64, lock: String, grant: String, wait_ms: Option<u64>) {
        let asked = super::now();
        tell(&self.name, What::asks(Verb::Acquire, lock.clone(), grant.clone()));
        loop {
            match self.ask("pg_try_advisory_lock", &lock).await {
                Ok(true) => {
                    let answer = Answer::Granted;
                    tell(&self.name, What::says(answer));
                    self.locks.insert(grant, lock);
                    return done(order, Came::Yes, "");
                }
                Ok(false) if wait_ms.is_some_and(|limit| super::now() - asked >= limit * 1_000_000) => {
                    tell(&self.name, What::Fail { why: "busy".to_owned() });
                    return done(order, Came::No, "busy");
                }
                Ok(false) => tokio::time::sleep(POLL).await,
                Err(error) => return self.unknown(order, error.to_string()),
            }
        }
    }

    async fn release(&mut self, order: u64, grant: String) {
        let Some(lock) = self.locks.remove(&grant) else { return done(order, Came::Failed, "never held") };
        tell(&self.name, What::asks(Verb::Release, lock.clone(), grant));
        match self.ask("pg_advisory_unlock", &lock).await {
            Ok(unlocked) => {
                let answer = if unlocked { Answer::Released } else { Answer::AlreadyExpired };
                tell(&self.name, What::says(answer));
                done(order, if unlocked { Came::Yes } else { Came::No }, "");
            }
            Err(error) => self.unknown(order, error.to_string()),
        }
    }

    /// By the simple protocol, as a pooler in transaction mode needs it.
    async fn ask(&self, function: &str, lock: &str) -> Result<bool, tokio_postgres::Error> {
        let lock = lock.replace('\'', "''");
        let answer = self.server.simple_query(&format!("SELECT {function}(hashtext('{lock}'))")).await?;
        Ok(answer.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))))
    }

    fn unknown(&self, order: u64, why: String) {
        tell(&self.name, What::Unknown { why: why.clone() });
        done(order, Came::Failed, why);
    }
}
