//! HTTP services that check fences.

use std::{
    collections::HashMap,
    fmt, io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{self, BootClock, Clock},
    fence::Fence,
};
use http::{Method, Request, Response, StatusCode, request::Parts};
use tokio::{sync::OwnedMutexGuard, task::JoinError};
use tower_layer::Layer;
use tower_service::Service;

use super::{Refused, STEP_WITHIN, record::Record};
use crate::alone;

/// The header that carries the fence.
pub const FENCING_TOKEN: &str = "fencing-token";

/// A tower layer (for axum, hyper, tonic and others) that lets no request through whose header `Fencing-Token` is older than
/// the newest that its resource has seen.
///
/// Each resource's newest fence lies in a file of a directory. It is on the disk before the request is passed on, and locked
/// until the answer is there: the requests of one resource are handled one after the other, by all processes of this host that
/// use the directory, so that no newer fence is seen while an older request is still at work. What a handler hands to others to
/// be done after its answer is not covered.
///
/// A handler whose request has a token goes on to its end, in a task of its own on tokio, also when nobody waits for the answer any
/// more: its client hung up, or a timeout around this layer passed. A timeout within the layer would drop a handler whose statement
/// still runs somewhere, and let the next one in. Neither task-locals nor the current `tracing` span reach that task.
///
/// | request | answer |
/// |---|---|
/// | reads (GET, HEAD, OPTIONS) without a token | passed on |
/// | others without a token | 428 |
/// | a token that is no fence, or more than one | 400 |
/// | a token older than the newest | 412, with the newest in `Fencing-Token` |
/// | the record cannot be read or written, or another request is handled for more than ten seconds | 503 |
/// | any other | passed on, and the newest is at least this token from then on |
/// | the runtime ends in the midst of one that was passed on | 500: what became of it is unknown |
///
/// A new holder **first reads with its token**: that advances the resource, and nobody older can change it any more.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_patterns::fenced::http::FencingLayer;
///
/// # let directory = tempfile::tempdir()?;
/// // One resource for each order: /orders/1001/items belongs to /orders/1001.
/// let layer = FencingLayer::open(directory.path())?
///     .resource(|request| request.uri.path().split('/').take(3).collect::<Vec<_>>().join("/"));
/// // let service = Router::new().route(…).layer(layer);
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FencingLayer {
    directory: Arc<Path>,
    queues: Arc<Queues>,
    resource: Arc<dyn Fn(&Parts) -> String + Send + Sync>,
}

/// Where the requests of each resource wait for each other in this process, first come first served. They are tasks that wait, so that
/// no thread does.
#[derive(Default)]
struct Queues(Mutex<HashMap<String, Weak<Queue>>>);

type Queue = tokio::sync::Mutex<()>;

impl Queues {
    fn of(&self, resource: &str) -> Arc<Queue> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(resource).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Queue::default());
        queues.insert(resource.to_owned(), Arc::downgrade(&queue));
        queue
    }
}

/// The right to be at work on a resource: its record, locked, and the head of its queue. The record goes first.
struct Admitted {
    _record: Record,
    _turn: OwnedMutexGuard<()>,
}

/// A service behind a [`FencingLayer`].
#[derive(Clone, Debug)]
pub struct Fencing<S> {
    inner: S,
    layer: FencingLayer,
}

impl FencingLayer {
    /// A layer that keeps the newest fences in this directory, and makes it where it is missing. The resource is the whole path.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        std::fs::create_dir_all(&directory)?;
        let resource = Arc::new(|request: &Parts| request.uri.path().to_owned());
        Ok(Self { directory: directory.into(), queues: Arc::default(), resource })
    }

    /// What a request is about, up to 200 bytes as encoded for a file name. What names one resource must give the same text.
    pub fn resource(mut self, of: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.resource = Arc::new(of);
        self
    }

    /// The right to be at work, after the resource has seen the request's fence; `None` for one that needs no fence.
    async fn admit(&self, request: &Parts) -> Result<Option<Admitted>, Denied> {
        let mut tokens = request.headers.get_all(FENCING_TOKEN).into_iter();
        let fence = match (tokens.next(), tokens.next()) {
            (None, _) if [Method::GET, Method::HEAD, Method::OPTIONS].contains(&request.method) => return Ok(None),
            (None, _) => return Err(Denied::Missing),
            (Some(token), None) => {
                let digits = token.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                digits.and_then(|text| text.parse().ok()).and_then(Fence::new).ok_or(Denied::Malformed)?
            }
            (Some(_), Some(_)) => return Err(Denied::Malformed),
        };
        let name = alone::file_name(&(self.resource)(request)).map_err(|error| Denied::Broken(error.into()))?;
        let until = BootClock.now().after(STEP_WITHIN);
        let turn = tokio::select! {
            biased;
            turn = self.queues.of(&name).lock_owned() => turn,
            () = BootClock.sleep_until(until) => return Err(Denied::Broken(alone::in_vain().into())),
        };
        let path: Arc<Path> = self.directory.join(name + ".fence").into();
        let mut pauses = Backoff::new(Duration::from_micros(500), Duration::from_millis(10));
        loop {
            match tokio::task::spawn_blocking({
                let path = path.clone();
                move || advanced(&path, fence)
            })
            .await
            {
                Ok(Ok(Some(record))) => return Ok(Some(Admitted { _record: record, _turn: turn })),
                // Another process has it.
                Ok(Ok(None)) if BootClock.now() < until => clock::sleep(&BootClock, pauses.pause()).await,
                Ok(Ok(None)) => return Err(Denied::Broken(alone::in_vain().into())),
                Ok(Err(Refused::Stale { seen })) => return Err(Denied::Stale(seen)),
                Ok(Err(refused)) => return Err(Denied::Broken(refused)),
                Err(error) => return Err(Denied::Broken(io::Error::other(error).into())),
            }
        }
    }
}

/// The record, if it is free, after it has seen this fence. It blocks for the time of the disk.
fn advanced(path: &Path, fence: Fence) -> Result<Option<Record>, Refused<io::Error>> {
    let Some(mut record) = Record::lock_if_free(path)? else { return Ok(None) };
    record.advance(fence)?;
    Ok(Some(record))
}

/// Why a request is not passed on.
#[derive(Debug)]
enum Denied {
    Missing,
    Malformed,
    Stale(Fence),
    Broken(Refused<io::Error>),
}

impl Denied {
    fn answer<B: From<String>>(self) -> Response<B> {
        let (status, said) = match &self {
            Denied::Missing => (StatusCode::PRECONDITION_REQUIRED, "a Fencing-Token is required\n".to_owned()),
            Denied::Malformed => {
                let said = "the Fencing-Token must be one whole number from 1 to 2^63 - 1\n";
                (StatusCode::BAD_REQUEST, said.to_owned())
            }
            Denied::Stale(seen) => {
                let said = format!("the Fencing-Token is stale: {seen} was seen, the lock was passed on\n");
                (StatusCode::PRECONDITION_FAILED, said)
            }
            Denied::Broken(refused) => (StatusCode::SERVICE_UNAVAILABLE, format!("{refused}; nothing was done\n")),
        };
        let mut answer = Response::new(B::from(said));
        *answer.status_mut() = status;
        if let Denied::Stale(seen) = self {
            answer.headers_mut().insert(FENCING_TOKEN, seen.get().into());
        }
        answer
    }
}

/// The answer of a handler that the runtime dropped, since it ends.
fn unknown<B: From<String>>() -> Response<B> {
    let said = "the service ended in the midst of it; what became of the request is unknown\n";
    let mut answer = Response::new(B::from(said.to_owned()));
    *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    answer
}

impl<S> Layer<S> for FencingLayer {
    type Service = Fencing<S>;

    fn layer(&self, inner: S) -> Fencing<S> {
        Fencing { inner, layer: self.clone() }
    }
}

impl<S, A, B> Service<Request<A>> for Fencing<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    A: Send + 'static,
    B: From<String> + Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The one that was found ready goes, its copy stays.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let layer = self.layer.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let admitted = match layer.admit(&head).await {
                Ok(Some(admitted)) => admitted,
                Ok(None) => return inner.call(Request::from_parts(head, body)).await,
                Err(denied) => return Ok(denied.answer()),
            };
            // A server drops this future when the client hangs up, and what the handler began goes on: so does its task.
            let at_work = tokio::spawn(async move {
                let answer = inner.call(Request::from_parts(head, body)).await;
                drop(admitted); // the record was locked until here
                answer
            });
            match at_work.await.map_err(JoinError::try_into_panic) {
                Ok(answer) => answer,
                Err(Ok(panic)) => resume_unwind(panic),
                Err(Err(_)) => Ok(unknown()),
            }
        })
    }
}

impl fmt::Debug for FencingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencingLayer").field("directory", &self.directory).finish_non_exhaustive()
    }
}
