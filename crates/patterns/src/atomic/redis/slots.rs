//! In which slot of a cluster a key lies.

use super::super::{Outcome, Refusal};

/// Refuses keys that lie in different slots.
pub(super) fn together(keys: &[impl AsRef<str>]) -> Outcome<()> {
    let mut pairs = keys.windows(2).map(|pair| [pair[0].as_ref(), pair[1].as_ref()]);
    match pairs.find(|[one, other]| slot(one) != slot(other)) {
        Some(pair) => Err(Refusal::OtherSlot { keys: pair.map(str::to_owned) }),
        None => Ok(()),
    }
}

/// CRC-16 (XMODEM) of the hash tag, or of all of it, over 16,384 slots: as the specification of Redis Cluster says.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The first is the specification's own check value, the second what CLUSTER KEYSLOT answers.
        assert_eq!(slot("123456789"), 12_739);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("x{foo}bar"), 12_182);
        assert_ne!(slot("a{}foo"), 12_182);
        assert!(together(&["{shop}:a", "{shop}:b"]).is_ok());
        assert!(matches!(together(&["a", "b"]), Err(Refusal::OtherSlot { .. })));
    }
}
