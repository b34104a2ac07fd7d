//! The network between the members of a cluster, which can be disturbed for each pair of them.
//!
//! A member has one address for all the others, so a relay before it does not know who comes. The kernel does: it lists
//! which process a connection belongs to. It walks over all that it has for that, and members that cannot reach each other
//! connect again and again; so one look answers all who come meanwhile.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use crate::network::{Weather, relay};

/// How long those who come are gathered before the kernel is asked who they are.
const GATHERED_FOR: Duration = Duration::from_millis(25);

/// Relays before all members. They end when dropped.
#[derive(Debug)]
pub(super) struct Ways {
    /// Where the others reach each member.
    pub(super) addresses: Vec<SocketAddr>,
    between: Arc<Between>,
    _at_work: JoinSet<()>,
}

#[derive(Debug)]
struct Between {
    /// By who connects, then by whom to.
    weather: Vec<Vec<watch::Sender<Weather>>>,
    /// Each member's process; 0 while it does not run.
    processes: Vec<AtomicU32>,
}

impl Ways {
    /// To members that listen there.
    pub(super) async fn to(members: &[SocketAddr]) -> std::io::Result<Self> {
        let fair = || watch::channel(Weather::Fair).0;
        let between = Arc::new(Between {
            weather: members.iter().map(|_| members.iter().map(|_| fair()).collect()).collect(),
            processes: members.iter().map(|_| AtomicU32::new(0)).collect(),
        });
        let (mut addresses, mut at_work) = (Vec::new(), JoinSet::new());
        let (comers, asked) = mpsc::unbounded_channel();
        at_work.spawn(tell_who(asked, between.clone()));
        for (to, member) in members.iter().enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            addresses.push(listener.local_addr()?);
            at_work.spawn(accept(listener, to, *member, between.clone(), comers.clone()));
        }
        Ok(Self { addresses, between, _at_work: at_work })
    }

    /// A member runs as this process from now on.
    pub(super) fn runs_as(&self, member: usize, process: u32) {
        self.between.processes[member].store(process, Relaxed);
    }

    /// Changes what happens to everything between a member and the others.
    pub(super) fn set(&self, member: usize, weather: Weather) {
        for (from, ways) in self.between.weather.iter().enumerate() {
            for (_, way) in ways.iter().enumerate().filter(|(to, _)| (from == member) != (*to == member)) {
                way.send_replace(weather);
            }
        }
    }
}

/// A connection from this port. The answer is the member that has it; a process that has ended has none.
struct Comer {
    port: u16,
    answer: oneshot::Sender<usize>,
}

async fn accept(
    listener: TcpListener,
    to: usize,
    member: SocketAddr,
    between: Arc<Between>,
    comers: mpsc::UnboundedSender<Comer>,
) {
    while let Ok((connection, from)) = listener.accept().await {
        let (answer, who) = oneshot::channel();
        if comers.send(Comer { port: from.port(), answer }).is_err() {
            return;
        }
        let between = between.clone();
        tokio::spawn(async move {
            let Ok(who) = who.await else { return };
            let weather = between.weather[who][to].subscribe();
            let fair = *weather.borrow() != Weather::Cut;
            if fair {
                relay(connection, member, weather, &AtomicU64::new(0)).await;
            }
        });
    }
}

async fn tell_who(mut asked: mpsc::UnboundedReceiver<Comer>, between: Arc<Between>) {
    let mut comers = Vec::new();
    while let Some(first) = asked.recv().await {
        comers.push(first);
        sleep(GATHERED_FOR).await;
        while let Ok(comer) = asked.try_recv() {
            comers.push(comer);
        }
        let ports = comers.iter().map(|comer| comer.port).collect();
        let between = between.clone();
        let who = spawn_blocking(move || between.who_have(ports)).await.unwrap_or_default();
        for Comer { port, answer } in comers.drain(..) {
            if let Some(member) = who.get(&port) {
                let _ = answer.send(*member); // whoever has gone does not want to know
            }
        }
    }
}

impl Between {
    /// The members whose processes have the connections from these ports.
    fn who_have(&self, ports: Vec<u16>) -> HashMap<u16, usize> {
        // Of this thread's network, which need not be that of the process's first one.
        let connections = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default();
        let sockets = connections.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let port = u16::from_str_radix(fields.nth(1)?.rsplit(':').next()?, 16).ok()?;
            ports.contains(&port).then(|| Some((format!("socket:[{}]", fields.nth(7)?), port))).flatten()
        });
        let sockets: HashMap<String, u16> = sockets.collect();
        let mut found = HashMap::new();
        for (member, process) in self.processes.iter().enumerate() {
            let open = std::fs::read_dir(format!("/proc/{}/fd", process.load(Relaxed))).into_iter().flatten();
            let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            found.extend(open.filter_map(|open| Some((*sockets.get(open.to_str()?)?, member))));
        }
        found
    }
}
