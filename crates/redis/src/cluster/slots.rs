//! Which slot a key belongs to, and which master has the slot.

use redis::{FromRedisValue, Value};

use crate::failure::Failure;

/// Slots of a cluster.
pub(super) const SLOTS: usize = 16384;

/// The slot of a key: of its hash tag, where it has one.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS as u16
}

/// CRC-16/XMODEM, as the cluster's specification says.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// A range of slots, its master, and its replicas, by their addresses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) nodes: Vec<(String, u16)>,
}

/// Reads the answer to `CLUSTER SLOTS`. A node that does not know its own address means the one it was asked at.
pub(super) fn read(answer: Value, asked: &str) -> Result<Vec<Range>, Failure> {
    let ranges = Vec::<Vec<Value>>::from_redis_value(answer).map_err(|_| Failure::puzzling())?;
    ranges.into_iter().map(|parts| range(parts, asked).ok_or_else(Failure::puzzling)).collect()
}

fn range(parts: Vec<Value>, asked: &str) -> Option<Range> {
    let mut parts = parts.into_iter();
    let mut number = || u16::from_redis_value(parts.next()?).ok();
    let (first, last) = (number()?, number()?);
    let node = |node: Value| {
        let mut node = Vec::<Value>::from_redis_value(node).ok()?.into_iter();
        let host = Option::<String>::from_redis_value(node.next()?).ok()?;
        let port = u16::from_redis_value(node.next()?).ok()?;
        let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| asked.to_owned());
        Some((host, port))
    };
    let nodes = parts.map(node).collect::<Option<Vec<_>>>()?;
    let known = usize::from(last) < SLOTS && first <= last && !nodes.is_empty();
    known.then_some(Range { first, last, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the specification, and of a real server.
    #[test]
    fn a_key_has_the_slot_of_its_tag() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("shop:{foo}:queue"), 12182);
        assert_eq!(slot("{}foo"), crc16(b"{}foo") % 16384);
        assert_eq!(slot("foo{{bar}}zap"), crc16(b"{bar") % 16384);
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
    }

    #[test]
    fn what_a_node_tells_is_read() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        let range = |last, nodes: Vec<Value>| {
            Value::Array(vec![Value::Array([vec![Value::Int(0), Value::Int(last)], nodes].concat())])
        };
        let told = read(range(16383, vec![node(text("h"), 1), node(Value::Nil, 2)]), "asked").unwrap();
        let nodes = vec![("h".to_owned(), 1), ("asked".to_owned(), 2)];
        assert_eq!(told, [Range { first: 0, last: 16383, nodes }]);
        for bad in
            [range(16384, vec![node(text("h"), 1)]), range(5, vec![]), Value::Okay, Value::Array(vec![Value::Int(1)])]
        {
            assert!(read(bad, "asked").is_err());
        }
    }
}
