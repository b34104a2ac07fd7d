//! The resource that the lock protects: one number with a version, behind a socket. It is what a lock is for, and
//! writes down what it accepts and refuses in the order in which that happens.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use fencepost_history::What;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::recorder::Recorder;

/// What the history calls it.
pub(crate) const NAME: &str = "resource";

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) grant: String,
    pub(crate) fence: Option<u64>,
    pub(crate) errand: Errand,
}

/// What it comes for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Errand {
    /// To read, as one of many readers: the fence is checked, and advances nothing (F3).
    Look,
    /// To read, as the one who may write: the fence is advanced first.
    Read,
    /// To change what had this version.
    Write {
        /// The version.
        basis: u64,
    },
}

/// What the resource answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// False when the fence was older than one that it has seen.
    pub(crate) taken: bool,
    /// The newest version.
    pub(crate) version: u64,
}

/// The resource. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) address: SocketAddr,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    fence: u64,
}

impl Resource {
    pub(crate) async fn start(recorder: Recorder, ip: Ipv4Addr) -> std::io::Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, state.clone(), recorder.clone()));
            }
        });
        Ok(Self { address, accepting })
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(stream: TcpStream, state: Arc<Mutex<State>>, recorder: Recorder) -> Option<()> {
    let (read, mut write) = stream.into_split();
    let line = BufReader::new(read).lines().next_line().await.ok()??;
    let asked: Asked = serde_json::from_str(&line).ok()?;
    let answer = step(&state, &recorder, asked);
    let mut line = serde_json::to_vec(&answer).ok()?;
    line.push(b'\n');
    write.write_all(&line).await.ok()
}

/// Check and change in one step, as a conditional update would.
fn step(state: &Mutex<State>, recorder: &Recorder, asked: Asked) -> Answer {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let Asked { grant, fence, errand } = asked;
    let taken = fence.is_none_or(|fence| fence >= state.fence);
    if taken && !matches!(errand, Errand::Look) {
        state.fence = fence.unwrap_or(state.fence);
        state.version += u64::from(matches!(errand, Errand::Write { .. }));
    }
    let version = state.version;
    recorder.tell(
        NAME,
        match errand {
            Errand::Look | Errand::Read => What::Read { grant, fence, version, taken },
            Errand::Write { basis } => What::Write { grant, fence, basis, version, taken },
        },
    );
    Answer { taken, version }
}

/// Asks the resource at `address`, or whatever stands before it.
pub(crate) async fn ask(address: SocketAddr, asked: &Asked) -> std::io::Result<Answer> {
    let (read, mut write) = TcpStream::connect(address).await?.into_split();
    let mut line = serde_json::to_vec(asked)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let answer = BufReader::new(read).lines().next_line().await?;
    Ok(serde_json::from_str(&answer.ok_or(std::io::ErrorKind::UnexpectedEof)?)?)
}
