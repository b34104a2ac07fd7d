use std::{
    fs,
    net::{SocketAddr, TcpStream},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    lan::Place,
    log,
    postgres::{free_address, give_away, unprivileged_program},
};

/// A PgBouncer before a server, in transaction mode: each transaction of a client may go over another connection. It ends
/// when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    address: SocketAddr,
    process: Child,
    directory: TempDir,
}

impl PgBouncer {
    /// Starts one with so many connections to the server, and settings beyond the harness's own.
    ///
    /// # Panics
    /// When the executable is missing, or it does not answer.
    pub fn before(server: SocketAddr, connections: u32, settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let users = directory.path().join("users");
        fs::write(&users, "\"postgres\" \"\"\n").expect("a temporary directory");
        let address = free_address();
        let (port, users) = (address.port(), users.display());
        let file = directory.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {users}\npool_mode = transaction\n\
             default_pool_size = {connections}\n{}\n",
            server.port(),
            settings.join("\n")
        );
        fs::write(&file, text).expect("a temporary directory");
        give_away(directory.path());
        let mut command = unprivileged_program("pgbouncer");
        log::keep(&mut command, directory.path()).expect("a log");
        let process = Place::default().spawn(command.arg(&file).stdin(Stdio::null()), "KILL");
        let process = process.expect("the package pgbouncer must be installed");
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Self { address, process, directory }
    }

    /// What it said, or the end of that.
    pub fn log(&self) -> String {
        log::read(self.directory.path())
    }

    /// The URL of a database for clients.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
