//! The network between the members of a cluster, which can be disturbed for each pair of them.
//!
//! A member has one address for all the others, so a relay before it does not know who comes. The kernel does: it lists
//! which process a connection belongs to.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinSet, spawn_blocking},
};

use crate::network::{Weather, relay};

/// Relays before all members. They end when dropped.
#[derive(Debug)]
pub(super) struct Ways {
    /// Where the others reach each member.
    pub(super) addresses: Vec<SocketAddr>,
    between: Arc<Between>,
    _accepting: JoinSet<()>,
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
        let (mut addresses, mut accepting) = (Vec::new(), JoinSet::new());
        for (to, member) in members.iter().enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            addresses.push(listener.local_addr()?);
            accepting.spawn(accept(listener, to, *member, between.clone()));
        }
        Ok(Self { addresses, between, _accepting: accepting })
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

async fn accept(listener: TcpListener, to: usize, member: SocketAddr, between: Arc<Between>) {
    while let Ok((connection, from)) = listener.accept().await {
        let between = between.clone();
        tokio::spawn(async move {
            let who = {
                let between = between.clone();
                spawn_blocking(move || between.who_has(from.port())).await
            };
            // A process that ended meanwhile wants nothing any more.
            let Ok(Some(who)) = who else { return };
            let weather = between.weather[who][to].subscribe();
            let fair = *weather.borrow() != Weather::Cut;
            if fair {
                relay(connection, member, weather, &AtomicU64::new(0)).await;
            }
        });
    }
}

impl Between {
    /// The member whose process has the connection from this port.
    fn who_has(&self, port: u16) -> Option<usize> {
        let connections = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let local = format!(":{port:04X}");
        let inode = connections.lines().filter(|line| line.contains(&local)).find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.get(1)?.ends_with(&local).then(|| fields.get(9).copied())?
        })?;
        let socket = format!("socket:[{inode}]");
        let has = |process: &AtomicU32| {
            let open = std::fs::read_dir(format!("/proc/{}/fd", process.load(Relaxed)));
            open.is_ok_and(|mut open| {
                open.any(|fd| {
                    fd.is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == socket.as_str()))
                })
            })
        };
        self.processes.iter().position(has)
    }
}
