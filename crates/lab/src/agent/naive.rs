//! What many write first: `SET key owner NX PX ttl` to take, `DEL key` to give back. It believes that it holds until it
//! has given back, and never compares owners. Where it counts, its fence is an `INCR` on the same server.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader as Lines, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use fencepost_history::{Answer, Verb, What};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{Came, Client, Order, Role, Said, Task, done, errand::Errands, say, tell};

/// How often it tries again while another holds.
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn serve(role: Role) -> Result<(), Box<dyn std::error::Error>> {
    let server: SocketAddr = role.url.strip_prefix("redis://").ok_or("it speaks to a single Redis server")?.parse()?;
    let counts = role.client == Client::Counter;
    let mut naive = Naive { name: role.name, server, counts, locks: HashMap::new(), errands: Errands::default() };
    say(&Said::Ready { ready: true });
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        naive.obey(serde_json::from_str(&line)?).await;
    }
    Ok(())
}

struct Naive {
    name: String,
    server: SocketAddr,
    counts: bool,
    /// The locks and fences by the names of their grants.
    locks: HashMap<String, (String, Option<u64>)>,
    errands: Errands,
}

impl Naive {
    async fn obey(&mut self, Order { order, task }: Order) {
        match task {
            Task::Acquire { lock, grant, ttl_ms, wait_ms, .. } => {
                self.acquire(order, lock, grant, ttl_ms, wait_ms).await
            }
            // It has nothing to look at.
            Task::Check { .. } => done(order, Came::Yes, "it believes so"),
            Task::Release { grant } => self.release(order, grant),
            Task::Read { grant, resource } => {
                self.errands.read(order, grant.clone(), self.fence(&grant), resource).await
            }
            Task::Write { grant, resource } => {
                self.errands.write(order, grant.clone(), self.fence(&grant), resource).await
            }
        }
    }

    async fn acquire(&mut self, order: u64, lock: String, grant: String, ttl_ms: u64, wait_ms: Option<u64>) {
        let asked = super::now();
        tell(&self.name, What::Invoke { verb: Verb::Acquire, lock: lock.clone(), grant: grant.clone() });
        loop {
            let from = super::now();
            match exchange(self.server, &["SET", &lock, &grant, "NX", "PX", &ttl_ms.to_string()]) {
                Ok(reply) if reply.starts_with('+') => {
                    let ttl = Some(ttl_ms * 1_000_000);
                    let (answer, fence) = (Answer::Granted, self.count(&lock));
                    tell(&self.name, What::Ok { answer, fence, ttl, from: Some(from), until: None });
                    self.locks.insert(grant, (lock, fence));
                    return done(order, Came::Yes, "");
                }
                Ok(_) if wait_ms.is_some_and(|limit| super::now() - asked >= limit * 1_000_000) => {
                    tell(&self.name, What::Fail { why: "busy".to_owned() });
                    return done(order, Came::No, "busy");
                }
                Ok(_) => tokio::time::sleep(POLL).await,
                Err(error) => {
                    tell(&self.name, What::Unknown { why: error.to_string() });
                    return done(order, Came::Failed, error.to_string());
                }
            }
        }
    }

    fn release(&mut self, order: u64, grant: String) {
        let Some((lock, _)) = self.locks.remove(&grant) else { return done(order, Came::Failed, "never held") };
        tell(&self.name, What::Invoke { verb: Verb::Release, lock: lock.clone(), grant });
        match exchange(self.server, &["DEL", &lock]) {
            Ok(reply) => {
                let deleted = reply == ":1";
                let answer = if deleted { Answer::Released } else { Answer::AlreadyExpired };
                tell(&self.name, What::Ok { answer, fence: None, ttl: None, from: None, until: None });
                done(order, if deleted { Came::Yes } else { Came::No }, reply);
            }
            Err(error) => self.unknown(order, error.to_string()),
        }
    }

    /// The next fence, where it counts and is answered.
    fn count(&self, lock: &str) -> Option<u64> {
        let counted = self.counts.then(|| exchange(self.server, &["INCR", &format!("{lock}:fence")]))?;
        counted.ok()?.strip_prefix(':')?.parse().ok()
    }

    fn fence(&self, grant: &str) -> Option<u64> {
        self.locks.get(grant).and_then(|(_, fence)| *fence)
    }

    fn unknown(&self, order: u64, why: String) {
        tell(&self.name, What::Unknown { why: why.clone() });
        done(order, Came::Failed, why);
    }
}

/// Sends one command on a connection of its own, and answers the first line of the reply.
fn exchange(server: SocketAddr, words: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let body: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    stream.write_all(format!("*{}\r\n{body}", words.len()).as_bytes())?;
    let mut reply = String::new();
    Lines::new(stream).read_line(&mut reply)?;
    Ok(reply.trim_end().to_owned())
}
