//! The layer behind a real socket: every answer it can give, and eight processes that write through it.

use std::{
    convert::Infallible,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use fencepost::Fence;
use fencepost_patterns::fenced::http::{FENCING_TOKEN, FencingLayer};
use http::{Method, Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::fenced::{Place, fence, loses_nothing, refuses_what_is_late};

/// A document: GET reads it, PUT replaces it.
#[derive(Clone, Default)]
struct Document {
    content: Arc<Mutex<String>>,
    /// Where a PUT waits in its midst.
    gate: Option<Arc<Gate>>,
}

#[derive(Default)]
struct Gate {
    entered: Notify,
    open: Notify,
    /// A client hung up, and nobody waits for the answer any more.
    left: Notify,
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Infallible>> + Send>>;

impl Service<Request<String>> for Document {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Answer<String>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Answer<String> {
        let Self { content, gate } = self.clone();
        Box::pin(async move {
            if request.method() == Method::GET {
                return Ok(Response::new(content.lock().unwrap().clone()));
            }
            assert!(request.body() != "panic", "as it was asked to");
            if let Some(gate) = gate {
                gate.entered.notify_one();
                gate.open.notified().await;
            }
            *content.lock().unwrap() = request.into_body();
            Ok(Response::new(String::new()))
        })
    }
}

/// Serves what lies behind the layer until the test ends; answers its address. As hyper does, it drops the answer of a client that
/// hangs up.
async fn serve(directory: &Path, document: Document) -> String {
    let gate = document.gate.clone();
    let service = FencingLayer::open(directory).unwrap().layer(document);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut service, gate) = (service.clone(), gate.clone());
            tokio::spawn(async move {
                let (mut stream, request) = receive(stream).await;
                let answer = tokio::select! {
                    answer = service.call(request) => answer.unwrap(),
                    _ = stream.read_u8() => return gate.iter().for_each(|gate| gate.left.notify_one()),
                };
                let seen = answer.headers().get(FENCING_TOKEN).map_or("", |token| token.to_str().unwrap());
                let head = format!("HTTP/1.1 {}\r\nfencing-token: {seen}\r\n\r\n", answer.status().as_u16());
                let _ = stream.write_all((head + answer.body()).as_bytes()).await;
            });
        }
    });
    address
}

/// The least of HTTP/1.1 that these clients speak: a head, and as much of a body as it says.
async fn receive(mut stream: TcpStream) -> (TcpStream, Request<String>) {
    let mut text = Vec::new();
    let (head, length) = loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.unwrap();
        text.extend(&chunk[..read]);
        let said = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, _)) = said.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            break (head.to_owned(), length.map_or(0, |length| length.parse::<usize>().unwrap()));
        }
    };
    while text.len() < head.len() + 4 + length {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.unwrap();
        text.extend(&chunk[..read]);
    }
    let mut words = head.split(' ');
    let mut request = Request::builder().method(words.next().unwrap()).uri(words.next().unwrap());
    for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    (stream, request.body(String::from_utf8(text[head.len() + 4..].to_vec()).unwrap()).unwrap())
}

/// The status, the newest fence where it was told, and the body.
async fn ask(address: &str, method: &str, path: &str, tokens: &[&str], body: &str) -> (u16, String, String) {
    let mut stream = send(address, method, path, tokens, body).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split([' ', '\r']).nth(1).unwrap().parse().unwrap();
    (status, head.rsplit(": ").next().unwrap().to_owned(), body.to_owned())
}

/// Asks, and leaves the answer to whoever has the connection.
async fn send(address: &str, method: &str, path: &str, tokens: &[&str], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let tokens: String = tokens.iter().map(|token| format!("Fencing-Token: {token}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\n{tokens}content-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await.unwrap();
    stream
}

async fn under(address: &str, method: &str, fence: Fence, body: &str) -> Result<String, u64> {
    match ask(address, method, "/x", &[&fence.to_string()], body).await {
        (200, _, body) => Ok(body),
        (412, seen, _) => Err(seen.parse().unwrap()),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn get(address: &str, fence: Fence) -> Result<String, u64> {
    under(address, "GET", fence, "").await
}

pub(crate) async fn put(address: &str, fence: Fence, content: &str) -> Result<(), u64> {
    under(address, "PUT", fence, content).await.map(drop)
}

#[test]
fn f1_a_service_behind_the_layer_refuses_what_is_late_and_loses_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, two] =
        directories.each_ref().map(|directory| runtime.block_on(serve(directory.path(), Document::default())));
    runtime.block_on(refuses_what_is_late(Place::Http(one)));
    loses_nothing(&Place::Http(two));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_says_what_is_wrong_with_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let address = serve(directory.path(), Document::default()).await;
    let status = async |method, tokens: &[&str]| ask(&address, method, "/a", tokens, "").await.0;
    assert_eq!(status("GET", &[]).await, 200);
    assert_eq!(status("PUT", &[]).await, 428);
    for wrong in [&["0"][..], &["-1"], &["x"], &["+7"], &[""], &["9223372036854775808"], &["1", "1"]] {
        assert_eq!(status("PUT", wrong).await, 400, "{wrong:?}");
    }
    assert_eq!(status("PUT", &["9"]).await, 200);
    assert_eq!(status("GET", &["8"]).await, 412);
    assert_eq!(ask(&address, "PUT", "/b", &["8"], "").await.0, 200, "another resource");
    std::fs::write(directory.path().join("%2Fa.fence"), "damaged").unwrap();
    assert_eq!(status("PUT", &["9"]).await, 503);
    // Another process that serves the same, or the same one after a restart.
    let again = serve(directory.path(), Document::default()).await;
    assert_eq!(ask(&again, "PUT", "/b", &["7"], "").await.0, 412);
}

/// Else a request that was compared in time could write after a newer one has read.
#[tokio::test(flavor = "multi_thread")]
async fn f1_no_newer_token_is_seen_while_a_request_is_at_work() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let document = Document { gate: Some(gate.clone()), ..Document::default() };
    let address = serve(directory.path(), document).await;
    let older = tokio::spawn({
        let address = address.clone();
        async move { put(&address, fence(1), "in time").await }
    });
    gate.entered.notified().await;
    let newer = tokio::spawn(async move { get(&address, fence(2)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!newer.is_finished(), "the newer one read in the midst of a write");
    gate.open.notify_one();
    assert_eq!(older.await.unwrap(), Ok(()));
    assert_eq!(newer.await.unwrap(), Ok("in time".to_owned()));
}

/// hyper drops the answer then, and what the handler began goes on.
#[tokio::test(flavor = "multi_thread")]
async fn f1_no_newer_token_is_seen_before_a_write_is_over_whose_client_hung_up() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let document = Document { gate: Some(gate.clone()), ..Document::default() };
    let address = serve(directory.path(), document).await;
    let older = send(&address, "PUT", "/x", &["1"], "to its end").await;
    gate.entered.notified().await;
    drop(older);
    gate.left.notified().await;
    let newer = tokio::spawn(async move { get(&address, fence(2)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!newer.is_finished(), "the newer one read in the midst of a write");
    gate.open.notify_one();
    assert_eq!(newer.await.unwrap(), Ok("to its end".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_does_so_for_its_server_and_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut service = FencingLayer::open(directory.path()).unwrap().layer(Document::default());
    let mut put = |token: &str, body: &str| {
        let request = Request::put("/x").header(FENCING_TOKEN, token).body(body.to_owned()).unwrap();
        tokio::spawn(service.call(request))
    };
    assert!(put("1", "panic").await.unwrap_err().is_panic());
    assert_eq!(put("2", "").await.unwrap().unwrap().status(), 200);
}

/// Whoever still waits, in another runtime, is not told that nothing was done.
#[test]
fn a_request_whose_runtime_ends_in_its_midst_is_of_unknown_outcome() {
    let [one, two] = [0; 2].map(|_| tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let document = Document { gate: Some(gate.clone()), ..Document::default() };
    let mut service = FencingLayer::open(directory.path()).unwrap().layer(document);
    let request = Request::put("/x").header(FENCING_TOKEN, "1").body(String::new()).unwrap();
    let mut answer = service.call(request);
    one.block_on(async {
        tokio::select! {
            _ = &mut answer => panic!("it waits in its midst"),
            () = gate.entered.notified() => {}
        }
    });
    drop(one);
    let answer = two.block_on(answer).unwrap();
    assert_eq!(answer.status(), 500);
    assert!(answer.body().contains("unknown"), "{}", answer.body());
}

/// One thread for what blocks, and twenty who wait for one resource: none of them waits on it.
#[test]
fn requests_that_wait_for_one_resource_hold_up_no_other() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        let document = Document { gate: Some(gate.clone()), ..Document::default() };
        // As two processes that share the directory: what the one is at work on, the others find locked.
        let address = serve(directory.path(), document.clone()).await;
        let one = serve(directory.path(), document).await;
        let first = tokio::spawn(async move { put(&one, fence(1), "first").await });
        gate.entered.notified().await;
        let wait = |address: String| tokio::spawn(async move { get(&address, fence(2)).await });
        let waiting: Vec<_> = (0..20).map(|_| wait(address.clone())).collect();
        tokio::time::sleep(Duration::from_millis(300)).await; // else they would not wait yet
        let other = ask(&address, "GET", "/y", &["1"], "");
        let other = tokio::time::timeout(Duration::from_secs(5), other).await;
        assert_eq!(other.expect("it waited for the others").0, 200);
        gate.open.notify_one();
        first.await.unwrap().unwrap();
        for answer in waiting {
            assert_eq!(answer.await.unwrap(), Ok("first".to_owned()));
        }
    });
}
