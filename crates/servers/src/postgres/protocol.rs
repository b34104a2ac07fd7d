//! As much of the protocol as an administrator's statements need: a trusted login and the simple query.

use std::{
    io::{BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::Rows;

/// Sends one text of statements; answers the rows of the last one, or what the server said against it.
pub(super) fn query(address: SocketAddr, database: &str, text: &str) -> Result<Rows, String> {
    exchange(address, database, text).unwrap_or_else(|error| Err(error.to_string()))
}

fn exchange(address: SocketAddr, database: &str, text: &str) -> std::io::Result<Result<Rows, String>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let parameters = format!("user\0postgres\0database\0{database}\0application_name\0administrator\0\0");
    let mut startup = 196_608_i32.to_be_bytes().to_vec(); // version 3.0
    startup.extend(parameters.bytes());
    stream.write_all(&framed(None, &startup))?;
    let mut replies = BufReader::new(stream.try_clone()?);
    if let Err(refused) = until_ready(&mut replies)? {
        return Ok(Err(refused));
    }
    stream.write_all(&framed(Some(b'Q'), format!("{text}\0").as_bytes()))?;
    let answer = until_ready(&mut replies)?;
    stream.write_all(&framed(Some(b'X'), &[]))?;
    Ok(answer)
}

fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a statement of less than 4 GiB");
    kind.into_iter().chain(length.to_be_bytes()).chain(body.iter().copied()).collect()
}

fn until_ready(replies: &mut impl Read) -> std::io::Result<Result<Rows, String>> {
    let (mut rows, mut refused) = (Vec::new(), None);
    loop {
        let mut head = [0; 5];
        if let Err(error) = replies.read_exact(&mut head) {
            // A login that was refused ends with the connection.
            return refused.map_or(Err(error), |why| Ok(Err(why)));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length.saturating_sub(4)];
        replies.read_exact(&mut body)?;
        match head[0] {
            b'Z' => return Ok(refused.map_or(Ok(rows), Err)),
            b'T' => rows.clear(), // the columns of the next statement's rows
            b'D' => rows.push(columns(&body).ok_or(std::io::ErrorKind::InvalidData)?),
            b'E' => refused = Some(message(&body)),
            _ => {}
        }
    }
}

fn columns(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok();
        let (value, after) = after.split_at_checked(length.unwrap_or(0))?;
        columns.push(length.map(|_| String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(columns)
}

/// The message among an error's fields.
fn message(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    fields.filter_map(|field| field.strip_prefix('M').map(str::to_owned)).collect()
}
