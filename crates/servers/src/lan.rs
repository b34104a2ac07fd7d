//! Hosts on a network of the kernel's own that can be cut: packets vanish, and nobody hears a FIN or an RST.
//!
//! Each host has a network namespace with two interfaces. One goes to the switches of the network, of which there are two with a
//! cable between: a partition takes that cable away, and a host that vanishes loses its own. The other goes to whoever made the
//! network, who is no part of it and reaches every host at all times, at the same address.

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use crate::{
    namespaces::{HERE, Namespaces, OtherNetwork, forwards, ip, sends},
    survivors::{end_with_us, mark},
};

/// How many hosts a network has room for.
const HOSTS: u8 = 30;

/// How long a connection may take that is made within one machine. One that takes longer is lost.
const ARRIVES: Duration = Duration::from_millis(700);

/// A network. It ends when it and its hosts are dropped.
#[derive(Clone, Debug)]
pub struct Lan(Arc<Switches>);

#[derive(Debug)]
struct Switches {
    /// Its number among those of this process.
    number: u8,
    hosts: AtomicU8,
}

/// A host on a network. What still runs on it when it is dropped runs on, and reaches nobody.
#[derive(Debug)]
pub struct Host {
    address: Ipv4Addr,
    network: OtherNetwork,
    /// The other end of its cable, at the switch.
    port: String,
    /// The other end of its line to whoever made the network.
    line: String,
    lan: Lan,
}

/// A side of a network that can be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shore {
    /// Where every host is at first.
    Near,
    /// The other one.
    Far,
}

impl Lan {
    /// An empty one.
    ///
    /// # Errors
    /// In words, when the kernel does not make it.
    pub fn new(_within: Namespaces) -> Result<Self, String> {
        let number = numbers().pop_first().ok_or("there are more networks than numbers for them")?;
        let lan = Self(Arc::new(Switches { number, hosts: AtomicU8::new(1) }));
        let (near, far) = (lan.switch(Shore::Near), lan.switch(Shore::Far));
        let (cable, end) = (lan.cable(), lan.far_end());
        for switch in [&near, &far] {
            // It remembers nothing of who is where, and passes everything on to everybody: a host that moves is found at once.
            ip(&["link", "add", switch, "up", "type", "bridge", "ageing_time", "0"], None)?;
        }
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", &end], None)?;
        ip(&["link", "set", &cable, "master", &near, "up"], None)?;
        ip(&["link", "set", &end, "master", &far, "up"], None)?;
        forwards(&cable).and_then(|()| forwards(&end))?;
        Ok(lan)
    }

    /// One host more.
    ///
    /// # Errors
    /// In words, when the kernel does not make it.
    pub fn host(&self) -> Result<Host, String> {
        let (lan, number) = (self.0.number, self.0.hosts.fetch_add(1, Relaxed));
        if number > HOSTS {
            return Err(format!("a network has room for {HOSTS} hosts"));
        }
        let address = address(lan, number);
        let network = OtherNetwork::new()?;
        let (port, line) = (format!("p{lan}-{number}"), format!("m{lan}-{number}"));
        let there = "/proc/self/fd/0";
        let hardware = hardware(lan, number);
        let veth = ["type", "veth", "peer", "name", "eth0", "address", &hardware, "netns", there];
        ip(&[&["link", "add", &port][..], &veth].concat(), Some(&network))?;
        ip(&["link", "add", &line, "type", "veth", "peer", "name", "line", "netns", there], Some(&network))?;
        let mut inside = vec![
            "link set lo up".to_owned(),
            "link set eth0 up".into(),
            format!("address add {address}/24 dev eth0"),
            "link set line up".into(),
            format!("route add {HERE}/32 dev line src {address}"),
        ];
        // Nobody asks who has an address: an unanswered question would be told to whoever speaks, and a packet is to vanish.
        let others = (1..=HOSTS).filter(|other| *other != number);
        let known = |other| {
            format!(
                "neigh add {} lladdr {} dev eth0 nud permanent",
                self::address(lan, other),
                self::hardware(lan, other)
            )
        };
        inside.extend(others.map(known));
        network.configure(&inside)?;
        let host = Host { address, network, port, line, lan: self.clone() };
        ip(&["link", "set", &host.port, "master", &self.switch(Shore::Near), "up"], None)?;
        ip(&["link", "set", &host.line, "up"], None)?;
        ip(&["route", "add", &format!("{address}/32"), "dev", &host.line, "src", &HERE.to_string()], None)?;
        forwards(&host.port).and_then(|()| sends(&host.line))?;
        host.network.sends(&["eth0", "line"])?;
        Ok(host)
    }

    /// Takes the cable between the two sides away.
    ///
    /// # Errors
    /// In words, when the kernel does not do that.
    pub fn split(&self) -> Result<(), String> {
        ip(&["link", "set", &self.cable(), "down"], None)
    }

    /// Puts it back.
    ///
    /// # Errors
    /// In words, when the kernel does not do that.
    pub fn heal(&self) -> Result<(), String> {
        let (cable, end) = (self.cable(), self.far_end());
        ip(&["link", "set", &cable, "up"], None)?;
        forwards(&cable).and_then(|()| forwards(&end))
    }

    fn switch(&self, side: Shore) -> String {
        format!("{}{}", if side == Shore::Near { "n" } else { "f" }, self.0.number)
    }

    fn far_end(&self) -> String {
        format!("e{}", self.0.number)
    }

    fn cable(&self) -> String {
        format!("c{}", self.0.number)
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        for interface in ["c", "n", "f"] {
            let _ = ip(&["link", "delete", &format!("{interface}{}", self.number)], None); // one that was never made
        }
        numbers().insert(self.number);
    }
}

impl Host {
    /// Where the others reach it, and whoever made the network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Does something on it: sockets that are made and processes that are started by it are this host's.
    ///
    /// # Errors
    /// When its network cannot be entered.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.network.inside(work)
    }

    /// Puts it on this side.
    ///
    /// # Errors
    /// In words, when the kernel does not do that.
    pub fn stand_on(&self, side: Shore) -> Result<(), String> {
        ip(&["link", "set", &self.port, "master", &self.lan.switch(side)], None)?;
        forwards(&self.port)
    }

    /// Takes its cable to the switch away.
    ///
    /// # Errors
    /// In words, when the kernel does not do that.
    pub fn unplug(&self) -> Result<(), String> {
        ip(&["link", "set", &self.port, "down"], None)
    }

    /// Puts it back.
    ///
    /// # Errors
    /// In words, when the kernel does not do that.
    pub fn plug_in(&self) -> Result<(), String> {
        ip(&["link", "set", &self.port, "up"], None)?;
        forwards(&self.port).and_then(|()| self.network.sends(&["eth0"]))
    }

    /// Whether what listens there is reached from this host. A refusal counts as an answer: something came back.
    ///
    /// # Errors
    /// When its network cannot be entered.
    pub fn reaches(&self, listener: SocketAddr) -> io::Result<bool> {
        self.inside(|| match TcpStream::connect_timeout(&listener, ARRIVES) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        })
    }
}

impl Drop for Host {
    /// Beside whoever drops it, since the kernel takes its time over that.
    fn drop(&mut self) {
        let (port, line, lan) = (std::mem::take(&mut self.port), std::mem::take(&mut self.line), self.lan.clone());
        let delete = move || {
            for interface in [port, line] {
                let _ = ip(&["link", "delete", &interface], None); // it may be gone with its network
            }
            drop(lan); // whose number is another's from now on
        };
        let _ = thread::Builder::new().spawn(delete);
    }
}

/// Where a server runs: on this machine's loopback interface, or on a host of a network that can be cut.
#[derive(Clone, Debug, Default)]
pub struct Place(Option<Arc<Host>>);

impl Place {
    /// On a host of its own.
    pub fn on(host: Arc<Host>) -> Self {
        Self(Some(host))
    }

    /// The host, where it is one.
    pub fn host(&self) -> Option<&Host> {
        self.0.as_deref()
    }

    pub(crate) fn ip(&self) -> Ipv4Addr {
        self.host().map_or(Ipv4Addr::LOCALHOST, Host::address)
    }

    /// With a port that is free there.
    pub(crate) fn free_address(&self) -> SocketAddr {
        let ip = self.ip();
        let bind = move || std::net::TcpListener::bind((ip, 0)).and_then(|listener| listener.local_addr());
        let bound = self.host().map_or_else(|| Ok(bind()), |host| host.inside(bind));
        bound.and_then(|bound| bound).expect("a free port")
    }

    /// Starts a program there that ends with this process, by this signal when nobody else ends it.
    pub(crate) fn spawn(&self, command: &mut Command, last_signal: &str) -> io::Result<Child> {
        let command = mark(command);
        let child = match self.host() {
            None => command.spawn(),
            Some(host) => host.inside(|| command.spawn())?,
        }?;
        end_with_us(child.id(), last_signal);
        Ok(child)
    }
}

fn address(lan: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, lan, host)
}

/// A locally administered one.
fn hardware(lan: u8, host: u8) -> String {
    format!("02:00:0a:4d:{lan:02x}:{host:02x}")
}

/// Those that no network has.
fn numbers() -> MutexGuard<'static, BTreeSet<u8>> {
    static FREE: LazyLock<Mutex<BTreeSet<u8>>> = LazyLock::new(|| Mutex::new((1..=250).collect()));
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Runs in namespaces of its own, where the machine lets it.
    fn apart(work: impl FnOnce(Namespaces) + Send) {
        thread::scope(|scope| {
            let apart = scope.spawn(|| match Namespaces::enter() {
                Ok(within) => work(within),
                Err(why) => eprintln!("SKIPPED, no namespaces here: {why}"),
            });
            apart.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn listener_on(host: &Host) -> (TcpListener, SocketAddr) {
        let listener = host.inside(|| TcpListener::bind((host.address(), 0))).expect("the host").expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    #[test]
    fn a_split_network_passes_nothing_between_its_sides_and_everything_within_them() {
        apart(|within| {
            let lan = Lan::new(within).expect("a network");
            let [a, b, c] = [lan.host(), lan.host(), lan.host()].map(|host| host.expect("a host"));
            let (_on_a, at_a) = listener_on(&a);
            let (_on_c, at_c) = listener_on(&c);
            c.stand_on(Shore::Far).expect("it moves");
            assert!(b.reaches(at_a).expect("inside") && b.reaches(at_c).expect("inside"), "before");
            lan.split().expect("it splits");
            assert!(b.reaches(at_a).expect("inside"), "on one side");
            assert!(!b.reaches(at_c).expect("inside"), "on the other");
            TcpStream::connect_timeout(&at_c, ARRIVES).expect("whoever made the network reaches both");
            lan.heal().expect("it heals");
            assert!(b.reaches(at_c).expect("inside"), "afterwards");
        });
    }

    #[test]
    fn of_a_host_without_its_cable_nobody_hears_that_a_connection_is_over() {
        use std::io::Read;
        apart(|within| {
            let lan = Lan::new(within).expect("a network");
            let [a, b] = [lan.host(), lan.host()].map(|host| host.expect("a host"));
            let (listener, address) = listener_on(&a);
            let client = b.inside(|| TcpStream::connect(address)).expect("inside").expect("a connection");
            let (mut connection, _) = listener.accept().expect("a connection");
            b.unplug().expect("it is unplugged");
            drop(client);
            connection.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
            let heard = connection.read(&mut [0]).expect_err("no FIN arrives");
            assert!(matches!(heard.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{heard}");
            b.plug_in().expect("it is plugged in");
            connection.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
            assert_eq!(connection.read(&mut [0]).expect("the kernel repeats it"), 0);
        });
    }

    #[test]
    fn nothing_of_it_is_seen_outside() {
        let before = std::fs::read_to_string("/proc/self/net/dev").expect("the interfaces");
        apart(|within| {
            let lan = Lan::new(within).expect("a network");
            let _host = lan.host().expect("a host");
            let inside = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the interfaces");
            assert!(inside.contains(&lan.cable()), "{inside}");
        });
        assert_eq!(names(&std::fs::read_to_string("/proc/self/net/dev").expect("the interfaces")), names(&before));
    }

    fn names(interfaces: &str) -> Vec<String> {
        interfaces.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
    }
}
