//! Objects that check fences, in a store that writes on condition.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{self, BootClock},
    fence::Fence,
    store::BoxFuture,
};

use super::{
    Refused,
    record::{self, Record},
};
use crate::alone;

/// How often a write is tried when others come in between.
const MOST_TRIES: u32 = 100;

/// What a store gave an object when it was written; another with each write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(pub String);

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it holds.
    pub body: Vec<u8>,
    /// The newest fence that it has seen; `None` for one that was written without.
    pub fence: Option<Fence>,
    /// The condition for the next write.
    pub tag: Tag,
}

/// A store's answer to a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// Written.
    Done(Tag),
    /// Something else was there, and nothing was written.
    Conflict,
}

/// A store of objects that writes on condition, as S3 (`If-Match`, `If-None-Match`), Google Cloud Storage
/// (`ifGenerationMatch`) and Azure (`If-Match`) do. The fence is kept along with the object, for instance as its metadata.
///
/// # What every implementation keeps to
///
/// - Comparison and write are one step of the store.
/// - Body and fence are replaced together.
/// - A tag never comes back for the same key, also when the same is written twice.
pub trait Objects: fmt::Debug + Send + Sync {
    /// What can go wrong.
    type Error: fmt::Display + fmt::Debug + Send;

    /// The object; `None` when there is none.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Object>, Self::Error>>;

    /// Writes if the object is still the one with this tag, or there is none.
    fn put<'a>(
        &'a self,
        key: &'a str,
        body: &'a [u8],
        fence: Fence,
        expected: Option<&'a Tag>,
    ) -> BoxFuture<'a, Result<Put, Self::Error>>;
}

/// An object that refuses writes under an older fence than it has seen.
#[derive(Debug)]
pub struct FencedObject<S> {
    store: S,
    key: String,
}

impl<S: Objects> FencedObject<S> {
    /// The object of this key.
    pub fn new(store: S, key: impl Into<String>) -> Self {
        Self { store, key: key.into() }
    }

    /// Makes the object see `fence`, and answers what it holds: the first thing that a new holder does. An object that
    /// was not there is an empty one afterwards, and answered as `None`.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer one.
    ///
    /// # Cancel safety
    /// The object may have been advanced; doing it again is safe.
    pub async fn advance(&self, fence: Fence) -> Result<Option<Vec<u8>>, Refused<S::Error>> {
        self.put(fence, None).await
    }

    /// Replaces what the object holds.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer fence.
    ///
    /// # Cancel safety
    /// It may have been replaced; doing it again under the same fence is safe.
    pub async fn replace(&self, fence: Fence, body: &[u8]) -> Result<(), Refused<S::Error>> {
        self.put(fence, Some(body)).await.map(drop)
    }

    /// Writes the body, or the one that is there, with this fence; answers the one that was there.
    async fn put(&self, fence: Fence, body: Option<&[u8]>) -> Result<Option<Vec<u8>>, Refused<S::Error>> {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        for _ in 0..MOST_TRIES {
            let found = self.store.get(&self.key).await?;
            let (before, seen, tag) = match found {
                Some(Object { body, fence, tag }) => (Some(body), fence, Some(tag)),
                None => (None, None, None),
            };
            match seen {
                Some(seen) if seen > fence => return Err(Refused::Stale { seen }),
                Some(seen) if seen == fence && body.is_none() => return Ok(before),
                _ => {}
            }
            let wanted = body.or(before.as_deref()).unwrap_or_default();
            match self.store.put(&self.key, wanted, fence, tag.as_ref()).await? {
                Put::Done(_) => return Ok(before),
                Put::Conflict => clock::sleep(&BootClock, backoff.pause()).await,
            }
        }
        Err(Refused::Contended { tries: MOST_TRIES })
    }
}

/// Objects in a local directory: for tests, and for programs that shall run without a store of objects.
///
/// Each object is a file, with a first line of `fencepost-object 1 FENCE GENERATION`, where the generation is its tag. A lock on
/// a file beside it makes comparison and write one step. Keys are up to 200 bytes long once encoded for a file name.
#[derive(Clone, Debug)]
pub struct DirectoryObjects(Arc<Path>);

impl DirectoryObjects {
    /// Objects in this directory, which must be there.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into().into())
    }

    fn file(&self, key: &str) -> io::Result<PathBuf> {
        Ok(self.0.join(alone::file_name(key)?))
    }
}

impl Objects for DirectoryObjects {
    type Error = io::Error;

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Object>, io::Error>> {
        Box::pin(async move {
            let file = self.file(key)?;
            off_the_runtime(move || Ok(read(&file)?.map(|(object, _)| object))).await
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: &'a [u8],
        fence: Fence,
        expected: Option<&'a Tag>,
    ) -> BoxFuture<'a, Result<Put, io::Error>> {
        Box::pin(async move {
            let (file, body, expected) = (self.file(key)?, body.to_vec(), expected.cloned());
            off_the_runtime(move || {
                let _alone = Record::lock(&record::beside(&file, "lock"))?;
                let found = read(&file)?;
                if found.as_ref().map(|(object, _)| &object.tag) != expected.as_ref() {
                    return Ok(Put::Conflict);
                }
                let generation = found.map_or(1, |(_, generation)| generation + 1);
                let head = format!("fencepost-object 1 {fence} {generation}\n");
                record::replace(&file, &[head.as_bytes(), &body])?;
                Ok(Put::Done(Tag(generation.to_string())))
            })
            .await
        })
    }
}

/// The object and its generation.
fn read(file: &Path) -> io::Result<Option<(Object, u64)>> {
    let Some(content) = record::content(file)? else { return Ok(None) };
    let parsed = (|| {
        let end = content.iter().position(|byte| *byte == b'\n')?;
        let head = std::str::from_utf8(&content[..end]).ok()?.strip_prefix("fencepost-object 1 ")?;
        let (fence, generation) = head.split_once(' ')?;
        let fence = Fence::new(fence.parse().ok()?)?;
        Some((
            Object { body: content[end + 1..].to_vec(), fence: Some(fence), tag: Tag(generation.into()) },
            generation.parse().ok()?,
        ))
    })();
    let foreign = || io::Error::new(io::ErrorKind::InvalidData, format!("{}: no object of ours", file.display()));
    parsed.ok_or_else(foreign).map(Some)
}

/// The disk must not hold up the runtime.
async fn off_the_runtime<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
