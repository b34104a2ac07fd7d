//! The commands written to a blocking socket and the answers read from it, with nothing in between.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::TcpStream,
};

use fencepost::{Error, clock::Moment};
use fencepost_redis::RedisConfig;

use super::{TTL_MS, VALUE, failed, key};
use tokio::sync::Mutex;

use crate::{
    floor::{Cycle, Measuring},
    samples::Samples,
};

pub(super) struct Socket {
    stream: Mutex<BufReader<TcpStream>>,
    prefix: String,
    hash: String,
}

impl Socket {
    pub(super) fn connect(config: &RedisConfig, prefix: String, hash: String) -> Result<Self, Error> {
        let connected = || {
            let stream = TcpStream::connect((config.host.as_str(), config.port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(config.timeout))?;
            let mut stream = BufReader::new(stream);
            if let Some(password) = &config.password {
                let user = config.user.as_deref().unwrap_or("default");
                ask(&mut stream, &request(&["AUTH", user, password]))?;
            }
            if config.database != 0 {
                ask(&mut stream, &request(&["SELECT", &config.database.to_string()]))?;
            }
            Ok::<_, io::Error>(stream)
        };
        Ok(Self { stream: Mutex::new(connected().map_err(failed)?), prefix, hash })
    }
}

impl Cycle for Socket {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = key(&self.prefix, name);
        let set = request(&["SET", &key, VALUE, "NX", "PX", TTL_MS]);
        let delete = request(&["EVALSHA", &self.hash, "1", &key, VALUE]);
        Box::pin(async move {
            let mut stream = self.stream.lock().await;
            samples
                .fill(until, async || {
                    ask(&mut stream, &set).map_err(failed)?;
                    ask(&mut stream, &delete).map_err(failed)
                })
                .await
        })
    }
}

fn request(parts: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len());
    for part in parts {
        bytes.push_str(&format!("${}\r\n{part}\r\n", part.len()));
    }
    bytes.into_bytes()
}

/// Every answer here is one line.
fn ask(stream: &mut BufReader<TcpStream>, request: &[u8]) -> io::Result<()> {
    stream.get_mut().write_all(request)?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    if answer.starts_with(['+', ':']) { Ok(()) } else { Err(io::Error::other(answer.trim_end().to_owned())) }
}
