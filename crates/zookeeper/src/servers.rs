//! The ensemble's servers, and how a connection to one of them is made.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    clock::{Clock, Sent},
    error::Error,
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    config::ZooKeeperConfig,
    failure::Failure,
    wire::{Answer, Greeting, LONGEST_FRAME, Reader, hello, login},
};

/// A greeting has these many bytes, give or take the byte about reading alone.
const GREETING: std::ops::RangeInclusive<usize> = 20..=64;

#[derive(Clone)]
pub(crate) struct Servers(Arc<Ensemble>);

struct Ensemble {
    addresses: Vec<(String, u16)>,
    /// As the protocol wants it: `USER:PASSWORD`.
    login: Option<String>,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    /// Where the next connection is tried first.
    next: AtomicUsize,
}

/// What a connection asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) timeout_ms: i32,
    /// The latest transaction that this session has seen: a server that is behind it refuses.
    pub(crate) last_seen: i64,
    /// Zero for a new session.
    pub(crate) session: i64,
    pub(crate) password: &'a [u8],
}

/// A connection that was greeted.
pub(crate) struct Greeted {
    pub(crate) connection: Connection,
    pub(crate) greeting: Greeting,
    /// Before the first byte left (T1).
    pub(crate) sent: Sent,
}

impl Servers {
    pub(crate) fn new(config: &ZooKeeperConfig) -> Result<Self, Error> {
        Ok(Self(Arc::new(Ensemble {
            addresses: config.servers.clone(),
            login: config.login.as_ref().map(|(user, password)| format!("{user}:{password}")),
            tls: config.tls.as_ref().map(|tls| tls.connector()).transpose()?,
            connect_timeout: config.connect_timeout,
            // Clients spread over the servers instead of all going to the first.
            next: AtomicUsize::new((fencepost_core::backoff::jitter() * config.servers.len() as f64) as usize),
        })))
    }

    /// Connects to the first server that takes us, each asked once. `limit` bounds one try.
    pub(crate) async fn connect(
        &self,
        wanted: Wanted<'_>,
        limit: Duration,
        clock: &dyn Clock,
    ) -> Result<Greeted, Failure> {
        let count = self.0.addresses.len();
        let first = self.0.next.load(Relaxed);
        let mut said = Vec::new();
        for place in first..first + count {
            let (host, port) = &self.0.addresses[place % count];
            let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            let limit = limit.min(self.0.connect_timeout);
            let attempt = self.connect_to(host, *port, &address, wanted, clock);
            match tokio::time::timeout(limit, attempt).await {
                Ok(Ok(greeted)) => {
                    self.0.next.store(place % count, Relaxed);
                    return Ok(greeted);
                }
                // To ask the others would hide what is wrong.
                Ok(Err(Refusal::Final(failure))) => return Err(failure),
                Ok(Err(Refusal::Here(why))) => said.push(format!("{address} {why}")),
                Err(_) => said.push(format!("{address} did not answer within {limit:?}")),
            }
            self.0.next.store((place + 1) % count, Relaxed);
        }
        Err(Failure::unreachable(format!("no server of ZooKeeper takes us: {}", said.join("; "))))
    }

    async fn connect_to(
        &self,
        host: &str,
        port: u16,
        address: &str,
        wanted: Wanted<'_>,
        clock: &dyn Clock,
    ) -> Result<Greeted, Refusal> {
        let stream = TcpStream::connect((host, port)).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => Refusal::Here("refuses connections".to_owned()),
            _ => Refusal::Here(format!("cannot be reached: {error}")),
        })?;
        let _ = stream.set_nodelay(true);
        let mut connection = Connection::over(match &self.0.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name =
                    ServerName::try_from(host.to_owned()).map_err(|_| Refusal::Here("has no valid name".into()))?;
                let secured = tls.connect(name, stream).await;
                Box::new(secured.map_err(|error| Refusal::Final(Failure::tls(address, &error)))?)
            }
        });
        let sent = Sent::now(clock);
        let mut opening = hello(wanted.timeout_ms, wanted.last_seen, wanted.session, wanted.password);
        if let Some(who) = &self.0.login {
            opening.extend(login(who));
        }
        connection.writer.write_all(&opening).await.map_err(closed)?;
        connection.writer.flush().await.map_err(closed)?;
        let garbled = || Refusal::Final(Failure::other_protocol(address));
        let frame = loop {
            match connection.frames.next_within(*GREETING.end()) {
                Err(Garbled) => return Err(garbled()),
                Ok(Some(frame)) if GREETING.contains(&frame.len()) => break frame,
                Ok(Some(_)) => return Err(garbled()),
                Ok(None) => connection.frames.read().await.map_err(closed)?,
            }
        };
        let greeting = Greeting::read(&mut Reader::new(&frame)).ok_or_else(garbled)?;
        return Ok(Greeted { connection, greeting, sent });

        fn closed(_: io::Error) -> Refusal {
            Refusal::Here(
                "closes connections: it has no quorum, is starting, or is behind what we have seen".to_owned(),
            )
        }
    }
}

/// Why one server did not take us.
enum Refusal {
    /// Another may.
    Here(String),
    /// No other will.
    Final(Failure),
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A stream of frames in both directions.
pub(crate) struct Connection {
    pub(crate) frames: Frames,
    pub(crate) writer: WriteHalf<Box<dyn Stream>>,
}

/// What arrives, frame by frame.
pub(crate) struct Frames {
    reader: ReadHalf<Box<dyn Stream>>,
    received: Vec<u8>,
    /// How much of it was given out.
    used: usize,
}

/// What arrives is no frame.
#[derive(Debug)]
pub(crate) struct Garbled;

impl Connection {
    fn over(stream: Box<dyn Stream>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { frames: Frames { reader, received: Vec::with_capacity(4096), used: 0 }, writer }
    }
}

impl Frames {
    /// Waits for more bytes. Cancel safe.
    pub(crate) async fn read(&mut self) -> io::Result<()> {
        self.received.drain(..self.used);
        self.used = 0;
        match self.reader.read_buf(&mut self.received).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The next frame's body, where it is here as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, Garbled> {
        self.next_within(LONGEST_FRAME)
    }

    fn next_within(&mut self, longest: usize) -> Result<Option<Vec<u8>>, Garbled> {
        let unused = &self.received[self.used..];
        let Some((length, rest)) = unused.split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| Garbled)?;
        if length > longest {
            return Err(Garbled);
        }
        let frame = rest.get(..length).map(<[u8]>::to_vec);
        if frame.is_some() {
            self.used += 4 + length;
        }
        Ok(frame)
    }
}
