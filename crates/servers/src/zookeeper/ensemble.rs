use std::{collections::HashMap, net::SocketAddr, time::Duration};

use crate::{
    lan::Place,
    network::{Network, Weather},
    zookeeper::ZooKeeperServer,
};

/// Ticks that a follower may be silent before it counts as lost, and a leader before its followers give up.
const SYNC_LIMIT: u32 = 20;
/// Ticks that a new leader and its followers have to agree in, before they begin anew: as they must when they have elected one
/// that is cut off from them.
const INIT_LIMIT: u32 = 50;

/// Several servers that agree, with networks between them that can be disturbed.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<ZooKeeperServer>,
    /// Where each listens to the others' votes.
    elections: Vec<SocketAddr>,
    /// How the first server of the pair reaches the second one, as its leader and for its vote.
    ways: HashMap<(usize, usize), [Network; 2]>,
}

impl ZooKeeperEnsemble {
    /// Starts one of so many servers and waits until it has a leader and everybody serves.
    ///
    /// # Panics
    /// When Java or the classes are missing, or the servers do not agree.
    pub async fn start(size: usize) -> Self {
        Self::start_in(&vec![Place::default(); size]).await
    }

    /// The same on hosts of a network that can be cut; no relay is between them.
    ///
    /// # Panics
    /// As [`start`](ZooKeeperEnsemble::start).
    pub async fn start_in(places: &[Place]) -> Self {
        for _ in 0..5 {
            let ensemble = Self::spawn(places).await;
            if ensemble.serves_within(Duration::from_secs(30)).await {
                return ensemble;
            }
        }
        panic!("the servers of ZooKeeper do not agree")
    }

    async fn spawn(places: &[Place]) -> Self {
        let quorum: Vec<_> = places.iter().map(Place::free_address).collect();
        let election: Vec<_> = places.iter().map(Place::free_address).collect();
        let mut ways = HashMap::new();
        let mut servers = Vec::new();
        for (me, place) in places.iter().enumerate() {
            let mut lines = vec![format!("initLimit={INIT_LIMIT}"), format!("syncLimit={SYNC_LIMIT}")];
            for other in 0..places.len() {
                let [mut leadership, mut vote] = [quorum[other], election[other]];
                if other != me && place.host().is_none() {
                    let to = async |place| Network::before(place).await.expect("a free port");
                    let way = [to(leadership).await, to(vote).await];
                    [leadership, vote] = [way[0].address, way[1].address];
                    ways.insert((me, other), way);
                }
                lines.push(format!("server.{other}={leadership}:{}", vote.port()));
            }
            let server = ZooKeeperServer::prepared(place, &lines);
            std::fs::write(server.directory().join("myid"), me.to_string()).expect("a file");
            server.spawn();
            servers.push(server);
        }
        Self { servers, elections: election, ways }
    }

    /// The servers, running or not.
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// Where a server listens to the others' votes.
    pub fn election_address(&self, server: usize) -> SocketAddr {
        self.elections[server]
    }

    /// The URL that names them all.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.servers.iter().map(|server| server.address().to_string()).collect();
        format!("zookeeper://{}", addresses.join(","))
    }

    /// Which server leads, once one does.
    ///
    /// # Panics
    /// When none does within half a minute.
    pub async fn leader(&self) -> usize {
        for _ in 0..3000 {
            let leads = |server: &ZooKeeperServer| server.mode().as_deref() == Some("leader");
            if let Some(leader) = self.servers.iter().position(|server| server.pid().is_some() && leads(server)) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no server of ZooKeeper leads")
    }

    /// A server that follows.
    ///
    /// # Panics
    /// When there is none.
    pub async fn follower(&self) -> usize {
        let leader = self.leader().await;
        (0..self.servers.len()).find(|number| *number != leader).expect("an ensemble of several")
    }

    /// Cuts a server off from the others, not from its clients: nothing arrives, and connections stay open.
    pub fn cut_off(&self, server: usize) {
        self.set(server, Weather::Silence);
    }

    /// Ends the cutting off. Connections that lost something are broken, as a network does after a while.
    pub fn reunite(&self, server: usize) {
        self.set(server, Weather::Cut);
        self.set(server, Weather::Fair);
    }

    fn set(&self, server: usize, weather: Weather) {
        let its_own = self.ways.iter().filter(|((from, to), _)| *from == server || *to == server);
        for way in its_own.flat_map(|(_, ways)| ways) {
            way.set(weather);
        }
    }

    /// Whether every server serves by then.
    pub async fn serves_within(&self, limit: Duration) -> bool {
        let step = Duration::from_millis(20);
        for _ in 0..limit.as_millis() / step.as_millis() {
            if self.servers.iter().all(|server| server.mode().is_some()) {
                return true;
            }
            // The networks between the servers are relayed meanwhile.
            tokio::time::sleep(step).await;
        }
        false
    }
}
