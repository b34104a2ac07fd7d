//! A network that can be disturbed: a TCP relay of our own between clients and a server.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinSet,
    time::Sleep,
};

/// What the network does to what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Everything passes.
    Fair,
    /// Replies arrive this much later.
    SlowReplies(Duration),
    /// Requests arrive this much later, also when whoever sent them is gone by then.
    SlowRequests(Duration),
    /// Each request arrives, and this much later it arrives again, on a connection of its own.
    Duplicates(Duration),
    /// Requests arrive, replies never do, and connections stay open.
    LostReplies,
    /// Requests never arrive, and connections stay open.
    LostRequests,
    /// Nothing arrives on either side, and connections stay open.
    Silence,
    /// Connections break and new ones end at once.
    Cut,
}

impl Weather {
    /// Whether what goes this way never arrives.
    fn loses(self, way: Way) -> bool {
        match self {
            Weather::Silence => true,
            Weather::LostReplies => way == Way::Reply,
            Weather::LostRequests => way != Way::Reply,
            _ => false,
        }
    }
}

/// A relay on ports of its own. It ends when dropped.
#[derive(Debug)]
pub struct Network {
    weather: watch::Sender<Weather>,
    /// Changes whenever the open connections are to break.
    breaks: watch::Sender<()>,
    /// How many bytes of requests have arrived.
    arrived: Arc<AtomicU64>,
    /// Where clients connect to.
    pub address: SocketAddr,
    /// The same for each server, in their order, where one network lies before several.
    pub addresses: Vec<SocketAddr>,
    accepting: JoinSet<()>,
}

impl Network {
    /// Relays to `server` from a free port of the loopback interface.
    ///
    /// # Errors
    /// When no port is to be had.
    pub async fn before(server: SocketAddr) -> std::io::Result<Self> {
        Self::before_all(&[server]).await
    }

    /// One network before several servers, with the same weather for all of them.
    ///
    /// # Errors
    /// When no port is to be had, or no server is given.
    pub async fn before_all(servers: &[SocketAddr]) -> std::io::Result<Self> {
        let places = servers.iter().map(|server| (SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), *server));
        Self::at(&places.collect::<Vec<_>>()).await
    }

    async fn at(places: &[(SocketAddr, SocketAddr)]) -> std::io::Result<Self> {
        let (weather, breaks) = (watch::Sender::new(Weather::Fair), watch::Sender::new(()));
        let (mut addresses, mut accepting, arrived) = (Vec::new(), JoinSet::new(), Arc::default());
        for (at, server) in places {
            let listener = TcpListener::bind(at).await?;
            addresses.push(listener.local_addr()?);
            accepting.spawn(accept(listener, *server, weather.clone(), breaks.clone(), Arc::clone(&arrived)));
        }
        let address = *addresses.first().ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(Self { weather, breaks, arrived, address, addresses, accepting })
    }

    /// One network before several servers, at the same ports of another host than theirs: for servers that tell their clients
    /// each other's ports and leave the host to them.
    ///
    /// # Errors
    /// When one of the ports is taken there, or no server is given.
    pub async fn before_all_at(host: IpAddr, servers: &[SocketAddr]) -> std::io::Result<Self> {
        let places = servers.iter().map(|server| (SocketAddr::new(host, server.port()), *server));
        Self::at(&places.collect::<Vec<_>>()).await
    }

    /// Changes the weather, for open connections too.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// How many bytes of requests have arrived at the servers so far.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Who can look, from another task, at what the weather of this moment does.
    pub fn witness(&self) -> Witness {
        Witness { now: *self.weather.borrow() }
    }

    /// Breaks the connections that are open, and lets new ones in.
    pub fn break_connections(&self) {
        self.breaks.send_replace(());
    }

    /// Goes away as a killed server does: new connections are refused from the moment that open ones break.
    pub async fn vanish(mut self) {
        self.accepting.shutdown().await;
    }
}

/// Somebody who sends a byte through a relay with the weather that was found, to a server that sends back what comes. A relay of
/// its own, since the other may be gone before the byte had its time.
#[derive(Clone, Copy, Debug)]
pub struct Witness {
    now: Weather,
}

/// How long a byte may take that nobody holds up.
const SOON: Duration = Duration::from_millis(300);

impl Witness {
    /// Whether the weather does to that byte what it is said to do.
    ///
    /// # Errors
    /// When no port is to be had.
    pub async fn sees(self, weather: Weather) -> std::io::Result<bool> {
        let (server, relay) = (TcpListener::bind(("127.0.0.1", 0)).await?, TcpListener::bind(("127.0.0.1", 0)).await?);
        let (behind, before) = (server.local_addr()?, relay.local_addr()?);
        let (arrived, now, breaks) =
            (Arc::new(AtomicU32::new(0)), watch::Sender::new(self.now), watch::Sender::new(()));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(relay, behind, now, breaks, Arc::default()));
        tasks.spawn(send_back(server, arrived.clone()));
        let mut client = TcpStream::connect(before).await?;
        let sent = client.write_all(b"x").await.is_ok();
        let answer = tokio::time::timeout(SOON, client.read_u8()).await;
        let (came_back, broke) = (matches!(answer, Ok(Ok(_))), !sent || matches!(answer, Ok(Err(_))));
        let arrived = || arrived.load(Relaxed);
        Ok(match weather {
            Weather::Fair => came_back,
            Weather::SlowReplies(_) | Weather::LostReplies => arrived() == 1 && !came_back,
            Weather::SlowRequests(_) | Weather::LostRequests | Weather::Silence => arrived() == 0 && !broke,
            Weather::Duplicates(delay) => {
                tokio::time::sleep(delay + SOON).await;
                arrived() == 2
            }
            Weather::Cut => broke,
        })
    }
}

async fn send_back(server: TcpListener, arrived: Arc<AtomicU32>) {
    let mut connections = JoinSet::new();
    while let Ok((mut connection, _)) = server.accept().await {
        let arrived = arrived.clone();
        connections.spawn(async move {
            while let Ok(byte) = connection.read_u8().await {
                arrived.fetch_add(1, Relaxed);
                if connection.write_u8(byte).await.is_err() {
                    return;
                }
            }
        });
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.weather.send_replace(Weather::Cut);
        self.accepting.abort_all();
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    weather: watch::Sender<Weather>,
    breaks: watch::Sender<()>,
    arrived: Arc<AtomicU64>,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *weather.borrow() == Weather::Cut {
            continue;
        }
        let (weather, mut breaks, arrived) = (weather.subscribe(), breaks.subscribe(), arrived.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = relay(client, server, weather, &arrived) => {}
                _ = breaks.changed() => {}
            }
        });
    }
}

/// Passes on what comes from either side, as the weather allows.
pub(crate) async fn relay(
    client: TcpStream,
    server: SocketAddr,
    mut weather: watch::Receiver<Weather>,
    arrived: &AtomicU64,
) {
    let address = server;
    let Some(server) = reached(address).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (requests, replies, uncounted) = (weather.clone(), weather.clone(), AtomicU64::default());
    tokio::select! {
        () = pass(from_client, to_server, requests, Way::Request(address), arrived) => {}
        () = pass(from_server, to_client, replies, Way::Reply, &uncounted) => {}
        // A connection breaks in both directions at once.
        _ = weather.wait_for(|weather| *weather == Weather::Cut) => {}
    }
}

/// A server that has elected itself leader just now may not listen yet, and whoever comes to it through a relay was let in
/// already: so the relay tries for a moment.
async fn reached(server: SocketAddr) -> Option<TcpStream> {
    for _ in 0..50 {
        if let Ok(connection) = TcpStream::connect(server).await {
            return Some(connection);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// To this server.
    Request(SocketAddr),
    Reply,
}

/// Reads on while what came before is still on its way, as a long line does: delays do not add up.
async fn pass(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    way: Way,
    arrived: &AtomicU64,
) {
    let (on_its_way, arriving) = mpsc::unbounded_channel();
    let reading = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let now = *weather.borrow_and_update();
            let delay = match (now, way) {
                (Weather::SlowReplies(delay), Way::Reply) | (Weather::SlowRequests(delay), Way::Request(_)) => delay,
                (Weather::Duplicates(delay), Way::Request(server)) => {
                    tokio::spawn(again(server, buffer[..length].to_vec(), delay));
                    Duration::ZERO
                }
                // What is lost on a connection stays lost: bytes after a gap would be another protocol.
                (now, way) if now.loses(way) => return std::future::pending().await,
                _ => Duration::ZERO,
            };
            // Not a sleep of no time, which lasts a millisecond.
            let arrival = (!delay.is_zero()).then(|| tokio::time::sleep(delay));
            let _ = on_its_way.send((arrival, buffer[..length].to_vec())); // nobody reads what cannot be written
        }
        // Whoever hangs up where nothing passes is not heard either, as with a host that vanishes.
        let _ = weather.wait_for(|now| !now.loses(way)).await;
        drop(on_its_way);
        std::future::pending().await
    };
    tokio::select! {
        () = reading => {}
        () = arrive(arriving, to, arrived) => {}
    }
}

async fn arrive(
    mut arriving: mpsc::UnboundedReceiver<(Option<Sleep>, Vec<u8>)>,
    mut to: OwnedWriteHalf,
    arrived: &AtomicU64,
) {
    while let Some((arrival, bytes)) = arriving.recv().await {
        if let Some(arrival) = arrival {
            arrival.await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        arrived.fetch_add(bytes.len() as u64, Relaxed);
    }
}

/// Sends it once more, and lets the answer go nowhere.
async fn again(server: SocketAddr, request: Vec<u8>, delay: Duration) {
    tokio::time::sleep(delay).await;
    if let Ok(mut server) = TcpStream::connect(server).await
        && server.write_all(&request).await.is_ok()
    {
        let _ = server.shutdown().await;
        // A connection that is closed before its request was read may take the request with it.
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(5), server.read_to_end(&mut answer)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_witness_tells_each_weather_from_none() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let network = Network::before(server.local_addr().expect("an address")).await.expect("a port");
        let late = Duration::from_secs(1);
        let bad = [
            Weather::SlowReplies(late),
            Weather::SlowRequests(late),
            Weather::Duplicates(Duration::from_millis(10)),
            Weather::LostReplies,
            Weather::LostRequests,
            Weather::Silence,
            Weather::Cut,
        ];
        for weather in bad {
            network.set(Weather::Fair);
            assert!(!network.witness().sees(weather).await.expect("ports"), "{weather:?} where there is none");
            network.set(weather);
            assert!(network.witness().sees(weather).await.expect("ports"), "{weather:?}");
            let fair = network.witness().sees(Weather::Fair).await.expect("ports");
            assert!(!fair || matches!(weather, Weather::Duplicates(_)));
        }
    }

    #[tokio::test]
    async fn who_hangs_up_in_silence_is_not_heard() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let network = Network::before(server.local_addr().expect("an address")).await.expect("a port");
        let mut client = TcpStream::connect(network.address).await.expect("a connection");
        let (mut connection, _) = server.accept().await.expect("a connection");
        client.write_all(b"x").await.expect("it is open");
        connection.read_u8().await.expect("it passes");
        network.set(Weather::Silence);
        drop(client);
        let heard = tokio::time::timeout(Duration::from_millis(200), connection.read_u8()).await;
        assert!(heard.is_err(), "{heard:?}");
        network.set(Weather::Cut);
        connection.read_u8().await.expect_err("it is broken");
    }
}
