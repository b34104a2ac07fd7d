//! Resources that check fences, under a lock in Redis whose fences come from a directory: a holder that comes late is refused by each.
//!
//! `cargo run -p fencepost-patterns --example resources` starts a Redis server of its own.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use fencepost::{Acquired, Fence, FencedBy, Locks};
use fencepost_patterns::fenced::{
    DirectoryObjects, FencedDirectory, FencedKeys, FencedObject, Refused,
    http::{FENCING_TOKEN, Fencing, FencingLayer},
};
use fencepost_servers::RedisServer;
use http::{Request, Response};
use redis::aio::MultiplexedConnection;
use tower_layer::Layer;
use tower_service::Service;

type Failed = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let server = RedisServer::start();
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    // Fast, but it forgets fences in a failover; these come from a store that does not.
    let fast = Locks::open(&server.url()).await?.for_efficiency();
    let sure = Locks::open(&format!("file:{}", path("locks").display())).await?.fenced()?;
    let locks = fast.fenced_by(&sure)?;

    for directory in ["files", "objects"] {
        std::fs::create_dir(path(directory))?;
    }
    let mut all = Resources {
        redis: redis::Client::open(server.url())?.get_multiplexed_async_connection().await?,
        object: FencedObject::new(DirectoryObjects::at(path("objects")), "report"),
        files: FencedDirectory::at(path("files")),
        service: FencingLayer::open(path("fences"))?.layer(Document),
    };
    let late = all.written_by_a_holder(&locks, "the first").await?;
    all.written_by_a_holder(&locks, "the second").await?;
    for (resource, answer) in all.write(late, "too late").await? {
        println!("{resource}: {answer}");
    }
    Ok(())
}

struct Resources {
    redis: MultiplexedConnection,
    object: FencedObject<DirectoryObjects>,
    files: FencedDirectory,
    service: Fencing<Document>,
}

impl Resources {
    /// Takes the lock, makes every resource see its fence, and writes; answers the fence.
    async fn written_by_a_holder(&mut self, locks: &FencedBy, who: &str) -> Result<Fence, Failed> {
        let Acquired(mut lease) = locks.lock("report").acquire().await? else {
            return Err("nobody else has it".into());
        };
        let fence = lease.fence();
        // First the fence. From here on nobody older can write, and what is read stays so.
        let _before: Option<String> = FencedKeys::on(&mut self.redis).advance("report", fence).await?;
        self.object.advance(fence).await?;
        self.files.advance(fence)?;
        let (seen, _) = self.ask("GET", fence, "").await?;
        println!("{who} holder has fence {fence}; the service answers {seen}");
        for (resource, answer) in self.write(fence, who).await? {
            println!("  {resource}: {answer}");
        }
        lease.release().await?;
        Ok(fence)
    }

    async fn write(&mut self, fence: Fence, text: &str) -> Result<[(&'static str, String); 4], Failed> {
        let key = FencedKeys::on(&mut self.redis).call::<()>("report", fence, "SET", text).await;
        let object = self.object.replace(fence, text.as_bytes()).await.map(drop);
        let file = self.files.replace(fence, "report", text.as_bytes());
        let (status, said) = self.ask("PUT", fence, text).await?;
        let service = if status == 200 { "written".to_owned() } else { format!("{status}, {}", said.trim_end()) };
        Ok([("Redis key", told(key)), ("object", told(object)), ("file", told(file)), ("HTTP service", service)])
    }

    async fn ask(&mut self, method: &str, fence: Fence, body: &str) -> Result<(u16, String), Failed> {
        let request = Request::builder().method(method).uri("/report").header(FENCING_TOKEN, fence.get());
        let answer = self.service.call(request.body(body.to_owned())?).await?;
        Ok((answer.status().as_u16(), answer.into_body()))
    }
}

fn told<E: std::fmt::Display>(outcome: Result<(), Refused<E>>) -> String {
    outcome.map_or_else(|refused| refused.to_string(), |()| "written".to_owned())
}

/// What the layer stands before; this one takes everything.
#[derive(Clone)]
struct Document;

impl Service<Request<String>> for Document {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}
