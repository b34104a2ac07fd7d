//! What answers at the address is not what it should be.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use fencepost_core::error::{Applied, ErrorKind};

use super::{SOON, open, within};

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_server_that_accepts_and_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}?connect_timeout=300ms&timeout=300ms", silent.local_addr().unwrap());
    let error = within(SOON, "the limit", open(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let url = url.replacen("redis://", "rediss://", 1);
    let error = within(SOON, "the limit", open(&url)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_web_server_is_not_taken_for_redis() {
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://:hunter2@{}", web.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in web.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 100]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let error = within(SOON, "the refusal", open(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("does not speak the protocol of Redis"), "{error}");
    assert!(!error.to_string().contains("hunter2"));
}
