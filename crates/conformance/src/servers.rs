//! Servers of the harness's own: on a free port of the loopback interface, in a temporary directory, ended by their
//! process id.

mod redis;

pub use redis::{RedisServer, Reply};
