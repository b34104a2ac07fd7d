//! What we receive.

use crate::wire::{
    Code,
    request::{CHECK, CREATE, DELETE, WRITE},
};

/// Reads Jute's encoding. Every method answers `None` when the bytes end early or make no sense.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// A buffer; one that is absent counts as empty.
    fn buffer(&mut self) -> Option<&'a [u8]> {
        match self.int()? {
            -1 => Some(&[]),
            length => {
                let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
                self.0 = rest;
                Some(bytes)
            }
        }
    }

    fn text(&mut self) -> Option<String> {
        self.buffer().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// An answer that can be read from a reply's body.
pub(crate) trait Answer: Sized {
    fn read(body: &mut Reader<'_>) -> Option<Self>;
}

impl Answer for () {
    fn read(_: &mut Reader<'_>) -> Option<Self> {
        Some(())
    }
}

/// The server's answer to the first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The session's timeout as the server grants it, in milliseconds.
    pub(crate) timeout_ms: i32,
    /// Zero when the session asked for is over.
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

impl Answer for Greeting {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        let version = body.int()?;
        let greeting = Self { timeout_ms: body.int()?, session: body.long()?, password: body.buffer()?.to_vec() };
        (version == 0 && body.0.len() <= 1).then_some(greeting)
    }
}

/// What ZooKeeper keeps about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The transaction that made it: rises with every change in the whole ensemble.
    pub(crate) created: i64,
    /// When it was made: milliseconds since 1970 on the leader's clock.
    pub(crate) created_unix_ms: i64,
    /// The transaction that last wrote its data.
    pub(crate) modified: i64,
    /// When that was, on the leader's clock.
    pub(crate) modified_unix_ms: i64,
    /// How often its data were written since.
    pub(crate) version: i32,
    /// The number of changes to its children, which the next sequential name takes.
    pub(crate) children_version: i32,
    /// The session whose end removes it.
    pub(crate) session: i64,
}

impl Answer for Stat {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        let (created, modified) = (body.long()?, body.long()?);
        let (created_unix_ms, modified_unix_ms) = (body.long()?, body.long()?);
        let (version, children_version, _acl_version) = (body.int()?, body.int()?, body.int()?);
        let session = body.long()?;
        let (_length, _children, _last_child_change) = (body.int()?, body.int()?, body.long()?);
        Some(Self { created, created_unix_ms, modified, modified_unix_ms, version, children_version, session })
    }
}

/// A node that was made, with the name it was given.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub(crate) path: String,
    pub(crate) stat: Stat,
}

impl Answer for Created {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        Some(Self { path: body.text()?, stat: Stat::read(body)? })
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) data: Vec<u8>,
    pub(crate) stat: Stat,
}

impl Answer for Node {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        Some(Self { data: body.buffer()?.to_vec(), stat: Stat::read(body)? })
    }
}

/// A node's children, in no order.
#[derive(Clone, Debug)]
pub(crate) struct Children {
    pub(crate) names: Vec<String>,
    pub(crate) parent: Stat,
}

impl Answer for Children {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        let count = body.int()?.max(0);
        let names = (0..count).map(|_| body.text()).collect::<Option<_>>()?;
        Some(Self { names, parent: Stat::read(body)? })
    }
}

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// All its steps were done; what is known of the node that was written last.
    All(Option<Stat>),
    /// None was done, since the servers refused one of them so.
    None(Code),
}

impl Answer for Done {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        const ERROR: i32 = -1;
        /// Of steps next to the one that was refused.
        const NEIGHBOUR: Code = Code(-2);
        let (mut written, mut refused) = (None, None);
        loop {
            let (operation, last, _) = (body.int()?, body.array::<1>()?, body.int()?);
            if last != [0] {
                return Some(refused.map_or(Self::All(written), Self::None));
            }
            match operation {
                ERROR => {
                    let code = Code(body.int()?);
                    refused = refused.or((code != Code(0) && code != NEIGHBOUR).then_some(code));
                }
                CREATE => drop(body.text()?),
                WRITE => written = Some(Stat::read(body)?),
                DELETE | CHECK => {}
                _ => return None,
            }
        }
    }
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) change: Change,
    pub(crate) path: String,
}

/// What happened to a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Deleted,
    Other,
}

impl Answer for Event {
    fn read(body: &mut Reader<'_>) -> Option<Self> {
        const DELETED: i32 = 2;
        let (sort, _state) = (body.int()?, body.int()?);
        let change = if sort == DELETED { Change::Deleted } else { Change::Other };
        Some(Self { change, path: body.text()? })
    }
}
