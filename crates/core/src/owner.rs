//! The random value that makes a grant ours (O1).

use std::{fmt, str::FromStr};

use crate::error::{Error, ErrorKind, Operation};

/// Bytes in an owner value.
pub const OWNER_BYTES: usize = 20;

/// The owner value of one claim: 20 bytes from the system's random generator, chosen before
/// anything is sent and never used for a second claim.
///
/// Whoever knows it can renew and release the grant, so it is shown only where it was asked for:
/// `Debug` prints the first four bytes, `Display` all of it as 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner([u8; OWNER_BYTES]);

impl Owner {
    /// Draws a new owner value.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`] when the operating system has no randomness to give.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; OWNER_BYTES];
        getrandom::fill(&mut bytes).map_err(|source| {
            Error::new(ErrorKind::Misconfigured, Operation::Claim, "the system's random generator failed")
                .not_applied()
                .caused_by(source)
        })?;
        Ok(Self(bytes))
    }

    /// The bytes themselves.
    pub fn as_bytes(&self) -> &[u8; OWNER_BYTES] {
        &self.0
    }

    /// An owner value read back from where a store keeps it.
    pub fn from_bytes(bytes: [u8; OWNER_BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written with every request: formatting byte by byte would show in the cost of a free lock.
        let mut digits = String::with_capacity(2 * OWNER_BYTES);
        let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
        digits.extend(self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
        f.write_str(&digits)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…")
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let said = "an owner value is 40 hexadecimal digits, as `fencepost acquire` printed it";
            Error::new(ErrorKind::InvalidInput, Operation::Parse, said).not_applied()
        };
        if text.len() != 2 * OWNER_BYTES || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; OWNER_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o1_owner_values_are_unique_and_read_back() {
        let (a, b) = (Owner::random().unwrap(), Owner::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.to_string().parse::<Owner>().unwrap(), a);
        assert!(!format!("{a:?}").contains(&a.to_string()));
        for bad in ["", "zz", &"+f".repeat(20), &"g".repeat(40), &"é".repeat(20)] {
            assert_eq!(bad.parse::<Owner>().unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
