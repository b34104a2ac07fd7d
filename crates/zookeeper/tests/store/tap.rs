//! A relay that understands what clients say: for moments that come between two requests and cannot be awaited from outside.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// Numbers of operations.
pub(crate) const EXISTS: i32 = 3;
pub(crate) const GET: i32 = 4;
pub(crate) const CHILDREN: i32 = 12;
pub(crate) const CREATE: i32 = 15;

/// A request as it came by: its operation, and what it is about.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) operation: i32,
    text: String,
}

impl Said {
    pub(crate) fn is(&self, operation: i32, about: &str) -> bool {
        self.operation == operation && self.text.contains(about)
    }
}

/// A relay before one server. It ends when dropped.
pub(crate) struct Tap {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq)]
enum Deed {
    /// The connection breaks, and the request does not arrive.
    Cut,
    /// Replies are held from this one's on.
    Hold,
}

struct Shared {
    said: watch::Sender<Vec<Said>>,
    /// What is to be done once, at a request of this kind.
    rule: Mutex<Option<(i32, String, Deed)>>,
    held: watch::Sender<bool>,
}

impl Tap {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            said: watch::Sender::default(),
            rule: Mutex::default(),
            held: watch::Sender::new(false),
        });
        let (mut accepting, passing) = (JoinSet::new(), shared.clone());
        accepting.spawn(async move {
            let mut relays = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let passing = passing.clone();
                relays.spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = passing.requests(from_client, to_server) => {}
                        () = passing.replies(from_server, to_client) => {}
                    }
                });
            }
        });
        Self { address, shared, _accepting: accepting }
    }

    /// Breaks the connection, once, instead of passing on a request of this kind.
    pub(crate) fn cut_at(&self, operation: i32, about: &str) {
        *self.shared.rule.lock().unwrap() = Some((operation, about.to_owned(), Deed::Cut));
    }

    /// Holds the reply to the next request of this kind, and all that follow.
    pub(crate) fn hold_replies_from(&self, operation: i32, about: &str) {
        *self.shared.rule.lock().unwrap() = Some((operation, about.to_owned(), Deed::Hold));
    }

    /// Whether such a request has come.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.rule.lock().unwrap().is_none()
    }

    /// Replies stay here from now on, until they are let through all at once.
    pub(crate) fn hold_replies(&self) {
        self.shared.held.send_replace(true);
    }

    pub(crate) fn let_replies_through(&self) {
        self.shared.held.send_replace(false);
    }

    /// Everything that was said so far.
    pub(crate) fn said(&self) -> Vec<Said> {
        self.shared.said.borrow().clone()
    }

    /// Completes once this many requests of this kind have come by.
    pub(crate) async fn heard(&self, times: usize, operation: i32, about: &str) {
        let enough = |said: &Vec<Said>| said.iter().filter(|one| one.is(operation, about)).count() >= times;
        self.shared.said.subscribe().wait_for(enough).await.unwrap();
    }
}

impl Shared {
    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut greeted = false;
        while let Ok(length) = from.read_u32().await {
            let mut frame = vec![0; length as usize];
            if from.read_exact(&mut frame).await.is_err() {
                return;
            }
            if std::mem::replace(&mut greeted, true) {
                let said = Said {
                    operation: i32::from_be_bytes(frame[4..8].try_into().unwrap()),
                    text: String::from_utf8_lossy(&frame[8..]).into_owned(),
                };
                let rule = self.rule.lock().unwrap().take_if(|(operation, about, _)| said.is(*operation, about));
                self.said.send_modify(|all| all.push(said));
                match rule {
                    Some((.., Deed::Cut)) => return,
                    Some((.., Deed::Hold)) => drop(self.held.send_replace(true)),
                    None => {}
                }
            }
            let framed = [&length.to_be_bytes(), &*frame].concat();
            if to.write_all(&framed).await.is_err() {
                return;
            }
        }
    }

    async fn replies(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let (mut held, mut unsent) = (self.held.subscribe(), Vec::new());
        loop {
            let nothing = unsent.is_empty();
            let read = async { Some(from.read_buf(&mut unsent).await) };
            let let_through = async { held.wait_for(|held| !held).await.map(|_| None).unwrap_or_default() };
            let read = tokio::select! {
                read = read => read,
                passes = let_through, if !nothing => passes,
            };
            let sound = match read {
                Some(read) => matches!(read, Ok(1..)),
                None => to.write_all(&std::mem::take(&mut unsent)).await.is_ok(),
            };
            if !sound {
                return;
            }
        }
    }
}
