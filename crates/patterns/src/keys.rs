//! Names of keys that belong to another key, in its slot of a cluster.

use redis::{ErrorKind, RedisError, RedisResult};

/// `{KEY}:WHAT`, or `KEY:WHAT` where the key has a hash tag.
pub(crate) fn beside(key: &str, what: &str) -> RedisResult<String> {
    match key.split_once('{').and_then(|(_, rest)| rest.split_once('}')) {
        Some((tag, _)) if !tag.is_empty() => Ok(format!("{key}:{what}")),
        _ if !key.contains('}') && !key.is_empty() => Ok(format!("{{{key}}}:{what}")),
        _ => {
            let said = "no key can lie beside this one in a cluster";
            let advice = "give it a hash tag: a part in braces that is not empty".to_owned();
            Err(RedisError::from((ErrorKind::InvalidClientConfig, said, advice)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_key_lies_in_its_slot() {
        for (key, fence) in [("a", "{a}:fence"), ("a{b}c", "a{b}c:fence"), ("a{b", "{a{b}:fence")] {
            assert_eq!(beside(key, "fence").unwrap(), fence);
        }
        for bad in ["", "a}b", "a{}b", "}{"] {
            assert!(beside(bad, "fence").is_err(), "{bad}");
        }
    }
}
