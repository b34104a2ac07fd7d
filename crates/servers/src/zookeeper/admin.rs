use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What an administrator does with `zkCli.sh`, without starting Java for it. It has nothing in common with the client
/// under test.
#[derive(Debug)]
pub struct Admin(Mutex<TcpStream>);

/// The server's code for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

impl Refused {
    /// The node is not there.
    pub const NO_NODE: Self = Self(-101);
}

/// A reply's body, read from the front.
struct Body(Vec<u8>, usize);

impl Admin {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut hello = Vec::new();
        hello.extend([0; 12]); // version, last transaction seen
        hello.extend(3_600_000_i32.to_be_bytes());
        hello.extend([0; 8]); // no session yet
        hello.extend(16_i32.to_be_bytes());
        hello.extend([0; 17]); // no password, and not for reading alone
        send(&mut stream, &hello)?;
        receive(&mut stream)?;
        Ok(Self(Mutex::new(stream)))
    }

    /// Logs in, for nodes that ask for it.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn log_in(&self, user_and_password: &str) {
        let mut request = 0_i32.to_be_bytes().to_vec();
        push(&mut request, b"digest");
        push(&mut request, user_and_password.as_bytes());
        self.ask(-4, 100, &request).expect("the login is taken");
    }

    /// Makes a node that stays.
    ///
    /// # Errors
    /// What the server refused.
    pub fn create(&self, path: &str, data: &[u8]) -> Result<(), Refused> {
        self.create_as(path, data, 0, ("world", "anyone"))
    }

    /// Makes a node that goes with this client.
    ///
    /// # Errors
    /// What the server refused.
    pub fn create_ephemeral(&self, path: &str, data: &[u8]) -> Result<(), Refused> {
        self.create_as(path, data, 1, ("world", "anyone"))
    }

    /// Makes a node that only those may touch who logged in as this client did.
    ///
    /// # Errors
    /// What the server refused.
    pub fn create_private(&self, path: &str) -> Result<(), Refused> {
        self.create_as(path, b"", 0, ("auth", ""))
    }

    fn create_as(&self, path: &str, data: &[u8], flags: i32, (scheme, id): (&str, &str)) -> Result<(), Refused> {
        let mut request = Vec::new();
        push(&mut request, path.as_bytes());
        push(&mut request, data);
        request.extend(1_i32.to_be_bytes());
        request.extend(31_i32.to_be_bytes());
        push(&mut request, scheme.as_bytes());
        push(&mut request, id.as_bytes());
        request.extend(flags.to_be_bytes());
        self.ask(1, 1, &request).map(drop)
    }

    /// Whether the server takes so many bytes into a node, and lives to say so.
    pub fn takes(&self, path: &str, bytes: usize) -> bool {
        let mut request = Vec::new();
        push(&mut request, path.as_bytes());
        push(&mut request, &vec![0; bytes]);
        request.extend((-1_i32).to_be_bytes()); // whatever its version is
        matches!(self.try_ask(1, 5, &request), Ok(Ok(_)))
    }

    /// Removes a node.
    ///
    /// # Errors
    /// What the server refused.
    pub fn delete(&self, path: &str) -> Result<(), Refused> {
        let mut request = Vec::new();
        push(&mut request, path.as_bytes());
        request.extend((-1_i32).to_be_bytes());
        self.ask(1, 2, &request).map(drop)
    }

    /// Removes a node and everything below it, where it is.
    pub fn delete_all(&self, path: &str) {
        for child in self.children(path) {
            self.delete_all(&format!("{path}/{child}"));
        }
        let _ = self.delete(path);
    }

    /// Writes a node's data.
    ///
    /// # Errors
    /// What the server refused.
    pub fn write(&self, path: &str, data: &[u8]) -> Result<(), Refused> {
        let mut request = Vec::new();
        push(&mut request, path.as_bytes());
        push(&mut request, data);
        request.extend((-1_i32).to_be_bytes());
        self.ask(1, 5, &request).map(drop)
    }

    /// A node's data, and the transaction that made it.
    ///
    /// # Errors
    /// What the server refused.
    pub fn read(&self, path: &str) -> Result<(Vec<u8>, i64), Refused> {
        let mut request = Vec::new();
        push(&mut request, path.as_bytes());
        request.push(0);
        let mut body = self.ask(1, 4, &request)?;
        Ok((body.buffer().to_vec(), body.long()))
    }

    /// The names of a node's children, sorted; none when it is not there.
    pub fn children(&self, path: &str) -> Vec<String> {
        let mut request = Vec::new();
        push(&mut request, path.as_bytes());
        request.push(0);
        let Ok(mut body) = self.ask(1, 8, &request) else { return Vec::new() };
        let count = body.int();
        let mut names: Vec<_> = (0..count).map(|_| String::from_utf8_lossy(body.buffer()).into_owned()).collect();
        names.sort();
        names
    }

    /// Waits until the server at hand has everything that the leader had.
    pub fn sync(&self) {
        let mut request = Vec::new();
        push(&mut request, b"/");
        let _ = self.ask(1, 9, &request);
    }

    /// Whether the server at hand answers a ping.
    pub fn ping(&self) -> bool {
        self.ask(-2, 11, &[]).is_ok()
    }

    fn ask(&self, xid: i32, operation: i32, body: &[u8]) -> Result<Body, Refused> {
        self.try_ask(xid, operation, body).expect("ZooKeeper answers")
    }

    fn try_ask(&self, xid: i32, operation: i32, body: &[u8]) -> io::Result<Result<Body, Refused>> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let request = [&xid.to_be_bytes()[..], &operation.to_be_bytes(), body].concat();
        send(&mut stream, &request)?;
        let mut reply = Body(receive(&mut stream)?, 0);
        let (_xid, _transaction, code) = (reply.int(), reply.long(), reply.int());
        Ok(if code == 0 { Ok(reply) } else { Err(Refused(code)) })
    }
}

impl Body {
    fn take(&mut self, length: usize) -> &[u8] {
        let from = self.1;
        self.1 += length;
        self.0.get(from..self.1).expect("a whole reply")
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn buffer(&mut self) -> &[u8] {
        let length = usize::try_from(self.int()).unwrap_or(0);
        self.take(length)
    }
}

fn push(request: &mut Vec<u8>, bytes: &[u8]) {
    request.extend((bytes.len() as i32).to_be_bytes());
    request.extend(bytes);
}

fn send(stream: &mut TcpStream, body: &[u8]) -> io::Result<()> {
    stream.write_all(&[&(body.len() as i32).to_be_bytes()[..], body].concat())
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; i32::from_be_bytes(length).max(0) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}
