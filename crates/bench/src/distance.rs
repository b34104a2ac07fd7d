//! A store at a distance: relays that hold everything back for half a round trip on each way.
//!
//! On the loopback interface a round trip costs less than the work at its two ends, so that times there say little about
//! round trips. Far away they say nothing else. Threads do the relaying and not the run's runtime: its timers count
//! whole milliseconds, and its thread belongs to what is measured.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::Duration,
};

use fencepost::{
    Error, ErrorKind as Kind,
    clock::{BootClock, Clock, Moment},
    error::Operation,
    url::StoreUrl,
};

/// Puts relays before every server of the store, and answers the URL that leads through them. They end with the process.
pub(crate) fn put(text: &str, round_trip: Duration) -> Result<String, Error> {
    let url = StoreUrl::parse(text)?;
    let port = default_port(url.scheme()).ok_or_else(|| {
        let said = format!("a store `{}:` cannot be put at a distance", url.scheme());
        refused(said).advise(
            "that works for redis, redlock, postgres, etcd and zookeeper: not without a server, not through TLS, and \
             not where servers tell their own addresses",
        )
    })?;
    let mut relays = Vec::new();
    for host in url.hosts() {
        let relay = relay_to(&with_port(host, port), round_trip / 2);
        relays.push(relay.map_err(|error| refused(format!("{host} cannot be put at a distance: {error}")))?);
    }
    Ok(through(text, &relays))
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "redis" | "redlock" => Some(6379),
        "postgres" | "postgresql" | "postgres+session" => Some(5432),
        "etcd" => Some(2379),
        "zookeeper" => Some(2181),
        _ => None,
    }
}

/// `host` as in a URL: a colon after a bracketed address, or in a name, stands before a port.
fn with_port(host: &str, default: u16) -> String {
    let name = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    if name.contains(':') { host.to_owned() } else { format!("{host}:{default}") }
}

/// The URL with other hosts; logins, path and options stay.
fn through(text: &str, relays: &[SocketAddr]) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, behind) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let hosts = authority.split(',').filter(|part| !part.is_empty());
    let hosts = hosts.zip(relays).map(|(part, relay)| match part.rsplit_once('@') {
        Some((login, _)) => format!("{login}@{relay}"),
        None => relay.to_string(),
    });
    format!("{scheme}://{}{behind}", hosts.collect::<Vec<_>>().join(","))
}

fn relay_to(server: &str, delay: Duration) -> std::io::Result<SocketAddr> {
    let server = server.to_socket_addrs()?.next().ok_or(ErrorKind::NotFound)?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        // A connection that cannot be passed on ends, as it would at a server that is not there.
        listener.incoming().flatten().for_each(|client| drop(connect(client, server, delay)));
    });
    Ok(address)
}

fn connect(client: TcpStream, server: SocketAddr, delay: Duration) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    pass(client.try_clone()?, server.try_clone()?, delay);
    pass(server, client, delay);
    Ok(())
}

/// Reads on while what came before is on its way: the line is long, not narrow.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (on_its_way, arriving) = mpsc::channel::<(Moment, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if on_its_way.send((BootClock.now().after(delay), buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (arrival, bytes) in arriving {
            // A thread sleeps to some fifty microseconds, which is the same for ours and for the floor.
            thread::sleep(arrival.since(BootClock.now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both); // whoever reads here learns that the other end is gone
    });
}

fn refused(said: String) -> Error {
    Error::new(Kind::InvalidInput, Operation::Open, said).not_applied()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot set itself up has failed
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_of_a_url_change() {
        let relays = ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        for (before, after) in [
            ("redis://h:7/3?timeout=1s", "redis://127.0.0.1:1/3?timeout=1s"),
            ("postgres://a:p%40@h?x=/a,b", "postgres://a:p%40@127.0.0.1:1?x=/a,b"),
            ("redlock://a:b@h1,c:d@[::1]:9", "redlock://a:b@127.0.0.1:1,c:d@127.0.0.1:2"),
        ] {
            assert_eq!(through(before, &relays), after);
        }
        assert_eq!(
            ["h", "h:7", "[::1]", "[::1]:7"].map(|host| with_port(host, 5)),
            ["h:5", "h:7", "[::1]:5", "[::1]:7"]
        );
    }

    #[test]
    fn what_has_no_way_to_it_cannot_be_far() {
        for url in ["file:/tmp/x", "memory:x", "rediss://h", "redis+cluster://h"] {
            let refused = put(url, Duration::from_millis(1)).unwrap_err();
            assert_eq!(refused.kind(), Kind::InvalidInput, "{url}");
        }
    }

    #[test]
    fn an_answer_takes_the_round_trip() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let relay = relay_to(&server.local_addr().unwrap().to_string(), Duration::from_millis(10)).unwrap();
        thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut byte = [0];
            while client.read_exact(&mut byte).is_ok() && client.write_all(&byte).is_ok() {}
        });
        let mut client = TcpStream::connect(relay).unwrap();
        let mut byte = [7];
        let sent = BootClock.now();
        client.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        assert!(BootClock.now().since(sent) >= Duration::from_millis(20));
    }
}
