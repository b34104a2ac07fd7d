//! HTTP services that check fences.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use fencepost_core::fence::Fence;
use http::{Method, Request, Response, StatusCode, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use super::{Refused, record::Record};
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
/// | request | answer |
/// |---|---|
/// | reads (GET, HEAD, OPTIONS) without a token | passed on |
/// | others without a token | 428 |
/// | a token that is no fence, or more than one | 400 |
/// | a token older than the newest | 412, with the newest in `Fencing-Token` |
/// | the record cannot be read or written, or another request is handled for more than ten seconds | 503 |
/// | any other | passed on, and the newest is at least this token from then on |
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
    resource: Arc<dyn Fn(&Parts) -> String + Send + Sync>,
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
        Ok(Self { directory: directory.into(), resource: Arc::new(|request| request.uri.path().to_owned()) })
    }

    /// What a request is about, up to 200 bytes as encoded for a file name. What names one resource must give the same text.
    pub fn resource(mut self, of: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.resource = Arc::new(of);
        self
    }

    /// The resource's record, locked, after it has seen the request's fence; `None` for one that needs no fence.
    async fn admit(&self, request: &Parts) -> Result<Option<Record>, Denied> {
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
        let path = self.directory.join(name + ".fence");
        let admitted = tokio::task::spawn_blocking(move || {
            let mut record = Record::lock(&path)?;
            record.advance(fence)?;
            Ok(record)
        });
        let broken = |error| Err(Refused::Failed(io::Error::other(error)));
        match admitted.await.unwrap_or_else(broken) {
            Ok(record) => Ok(Some(record)),
            Err(Refused::Stale { seen }) => Err(Denied::Stale(seen)),
            Err(refused) => Err(Denied::Broken(refused)),
        }
    }
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

impl<S> Layer<S> for FencingLayer {
    type Service = Fencing<S>;

    fn layer(&self, inner: S) -> Fencing<S> {
        Fencing { inner, layer: self.clone() }
    }
}

impl<S, A, B> Service<Request<A>> for Fencing<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: From<String>,
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
                Ok(admitted) => admitted,
                Err(denied) => return Ok(denied.answer()),
            };
            let answer = inner.call(Request::from_parts(head, body)).await;
            drop(admitted); // the record was locked until here
            answer
        })
    }
}

impl fmt::Debug for FencingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencingLayer").field("directory", &self.directory).finish_non_exhaustive()
    }
}
