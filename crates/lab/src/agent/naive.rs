//! What many write first: `SET key owner NX PX ttl` to take, `DEL key` to give back. It believes that it holds until it
//! has given back, and never compares owners. Where it counts, its fence is an `INCR` on the same server. On a monotonic clock it
//! believes until its TTL is over by that.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader as Lines, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use fencepost_history::{Answer, Verb, What};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{Came, Client, Order, Role, Said, Task, done, errand::Errands, say, tell};

/// How often it tries again while another holds.
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn serve(role: Role) -> Result<(), Box<dyn std::error::Error>> {
    let server: SocketAddr = role.url.strip_prefix("redis://").ok_or("it speaks to a single Redis server")?.parse()?;
    let client = role.client;
    let mut naive = Naive { name: role.name, server, client, locks: HashMap::new(), errands: Errands::default() };
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
    client: Client,
    /// By the names of their grants.
    locks: HashMap<String, Held>,
    errands: Errands,
}

struct Held {
    lock: String,
    fence: Option<u64>,
    /// When it was asked for, by the clock that a suspended machine stops.
    asked: Instant,
    ttl: Duration,
}

impl Naive {
    async fn obey(&mut self, Order { order, task }: Order) {
        match task {
            Task::Acquire { lock, grant, ttl_ms, wait_ms, .. } => {
                self.acquire(order, lock, grant, ttl_ms, wait_ms).await
            }
            Task::Check { grant } => self.check(order, grant),
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
        tell(&self.name, What::asks(Verb::Acquire, lock.clone(), grant.clone()));
        loop {
            let (from, asked_on_monotonic) = (super::now(), monotonic());
            match exchange(self.server, &["SET", &lock, &grant, "NX", "PX", &ttl_ms.to_string()]) {
                Ok(reply) if reply.starts_with('+') => {
                    let ttl = Some(ttl_ms * 1_000_000);
                    let (answer, fence) = (Answer::Granted, self.count(&lock));
                    tell(&self.name, What::Ok { answer, fence, ttl, from: Some(from), until: None, slots: None });
                    let ttl = Duration::from_millis(ttl_ms);
                    self.locks.insert(grant, Held { lock, fence, asked: asked_on_monotonic, ttl });
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

    fn check(&self, order: u64, grant: String) {
        let Some(held) = self.locks.get(&grant).filter(|_| self.client == Client::Monotonic) else {
            return done(order, Came::Yes, "it believes so, having nothing to look at");
        };
        let holds = monotonic().duration_since(held.asked) < held.ttl;
        tell(&self.name, What::asks(Verb::Check, held.lock.clone(), grant));
        let answer = if holds { Answer::Held } else { Answer::NotHeld };
        tell(&self.name, What::says(answer));
        done(order, if holds { Came::Yes } else { Came::No }, "");
    }

    fn release(&mut self, order: u64, grant: String) {
        let Some(Held { lock, .. }) = self.locks.remove(&grant) else { return done(order, Came::Failed, "never held") };
        tell(&self.name, What::asks(Verb::Release, lock.clone(), grant));
        match exchange(self.server, &["DEL", &lock]) {
            Ok(reply) => {
                let deleted = reply == ":1";
                let answer = if deleted { Answer::Released } else { Answer::AlreadyExpired };
                tell(&self.name, What::says(answer));
                done(order, if deleted { Came::Yes } else { Came::No }, reply);
            }
            Err(error) => self.unknown(order, error.to_string()),
        }
    }

    /// The next fence, where it counts and is answered.
    fn count(&self, lock: &str) -> Option<u64> {
        let counted =
            (self.client == Client::Counter).then(|| exchange(self.server, &["INCR", &format!("{lock}:fence")]))?;
        counted.ok()?.strip_prefix(':')?.parse().ok()
    }

    fn fence(&self, grant: &str) -> Option<u64> {
        self.locks.get(grant).and_then(|held| held.fence)
    }

    fn unknown(&self, order: u64, why: String) {
        tell(&self.name, What::Unknown { why: why.clone() });
        done(order, Came::Failed, why);
    }
}

#[allow(clippy::disallowed_methods)] // the mistake that is to be seen: T2
fn monotonic() -> Instant {
    Instant::now()
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
