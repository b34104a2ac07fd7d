//! What one sentinel says of the master, and whose word counts.

use std::{collections::HashMap, fmt};

use fencepost_core::error::{Applied, ErrorKind};
use redis::{FromRedisValue, Value};

use crate::failure::Failure;

/// A sentinel's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Word {
    pub(super) host: String,
    pub(super) port: u16,
    /// The number of the failover that made it the master; 0 where the sentinel does not tell.
    epoch: u64,
    /// The sentinel conducts a failover, which is not yet in the number.
    switching: bool,
}

impl Word {
    pub(super) fn read(answers: Vec<Value>, sentinel: &str, service: &str) -> Result<Self, Failure> {
        let [address, master] = <[Value; 2]>::try_from(answers).map_err(|_| Failure::puzzling())?;
        let (host, port) = match address {
            Value::Nil => {
                let said = format!("{sentinel} knows no service {service:?}");
                return Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said));
            }
            Value::ServerError(error) if error.details().is_some_and(|text| text.contains("unknown command")) => {
                return Err(Failure::new(ErrorKind::Misconfigured, Applied::No, format!("{sentinel} is no sentinel")));
            }
            Value::ServerError(error) => return Err(Failure::answered(&error.into())),
            address => <(String, u16)>::from_redis_value(address).map_err(|_| Failure::puzzling())?,
        };
        // Who may not ask for it can do without: then the address alone counts.
        let master = HashMap::<String, String>::from_redis_value(master).unwrap_or_default();
        let epoch = master.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        let switching = master.get("port").is_some_and(|known| *known != port.to_string())
            || master.get("ip").is_some_and(|known| *known != host);
        Ok(Self { host, port, epoch, switching })
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} since failover {}", self.host, self.port, self.epoch)
    }
}

/// The masters that were named, the most credible first: by the latest failover, then by the number of sentinels.
pub(super) fn ranked<'a>(words: impl Iterator<Item = &'a Word>) -> Vec<&'a Word> {
    let mut named: HashMap<(&str, u16), (&Word, usize)> = HashMap::new();
    for word in words {
        let (best, count) = named.entry((&word.host, word.port)).or_insert((word, 0));
        *count += 1;
        if (word.epoch, word.switching) > (best.epoch, best.switching) {
            *best = word;
        }
    }
    let mut named: Vec<_> = named.into_values().collect();
    named.sort_by_key(|(word, count)| std::cmp::Reverse((word.epoch, word.switching, *count)));
    named.into_iter().map(|(word, _)| word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(port: u16, epoch: u64, switching: bool) -> Word {
        Word { host: "h".to_owned(), port, epoch, switching }
    }

    #[test]
    fn the_latest_failover_counts_then_the_majority() {
        let first = |words: &[Word]| ranked(words.iter())[0].port;
        assert_eq!(first(&[word(1, 4, false), word(1, 4, false), word(2, 5, false)]), 2);
        assert_eq!(first(&[word(1, 4, false), word(1, 4, false), word(2, 4, true)]), 2);
        assert_eq!(first(&[word(1, 0, false), word(2, 0, false), word(2, 0, false)]), 2);
        assert_eq!(ranked([word(1, 4, false), word(1, 4, false)].iter()).len(), 1);
        assert_eq!(ranked([].iter()), Vec::<&Word>::new());
    }
}
