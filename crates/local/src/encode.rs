//! Names of locks as names of files (C3).
//!
//! Letters, digits, `-`, `_` and dots stay, every other byte becomes `%XX`, and so does a leading dot. What is then
//! longer than [`LONGEST`] becomes `%h` and the SHA-256 of the name: no encoded name begins like that, since `h`
//! is no hexadecimal digit. The name itself stands in the file, so it can be listed, and so that two
//! names on one file (a file system that folds case) are noticed instead of being one lock.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use fencepost_core::name::LockName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

/// The longest encoded name; with its suffix it stays below the 255 bytes that file systems allow.
const LONGEST: usize = 200;
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

pub(crate) const LOCK_SUFFIX: &str = ".lock";
pub(crate) const QUEUE_SUFFIX: &str = ".queue";
const SEATS_SUFFIX: &str = ".seats";

/// `text` as the name of a file or directory, without a suffix.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() + 16);
    if text.starts_with('.') {
        encoded.push_str("%2E");
    }
    encoded.extend(utf8_percent_encode(text.strip_prefix('.').unwrap_or(text), KEPT));
    if encoded.len() <= LONGEST {
        return encoded;
    }
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold("%h".to_owned(), |hashed, byte| hashed + &format!("{byte:02x}"))
}

/// Where one lock's things lie.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: LockName,
    /// The lock's own file; its last part is also what file events name.
    pub(crate) file: PathBuf,
}

impl Place {
    pub(crate) fn of(directory: &Path, name: &LockName) -> Self {
        let mut encoded = encode(name.as_str());
        encoded.push_str(LOCK_SUFFIX);
        Self { name: name.clone(), file: directory.join(encoded) }
    }

    /// The last part of its path.
    pub(crate) fn file_name(&self) -> &OsStr {
        self.file.file_name().unwrap_or_default() // never without one
    }

    /// The directory of its waiters' tickets, there only while somebody waits.
    pub(crate) fn queue(&self) -> PathBuf {
        // The lock's file ends with another suffix of the same kind.
        self.file.with_extension(&QUEUE_SUFFIX[1..])
    }

    /// The directory of the seats of those who hold it beside each other, made for the first of them.
    pub(crate) fn seats(&self) -> PathBuf {
        self.file.with_extension(&SEATS_SUFFIX[1..])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn c3_names_become_file_names_and_can_be_read_back(text in "\\PC{1,60}") {
            let encoded = encode(&text);
            prop_assert!(encoded.len() <= LONGEST && !encoded.starts_with('.') && !encoded.contains('/'));
            if !encoded.starts_with("%h") {
                prop_assert_eq!(percent_decode_str(&encoded).decode_utf8().unwrap(), text);
            }
        }
    }

    #[test]
    fn c3_names_never_share_a_file() {
        let long = "x".repeat(300);
        let longer = "x".repeat(301);
        let names = [
            "a", "A", "a.lock", "a.queue", "a.seats", ".", "..", "%2E", ".a", "%h", "a/b", "a%2Fb", "é", &long, &longer,
        ];
        let mut files = HashMap::new();
        for name in names {
            let place = Place::of(Path::new("/d"), &LockName::new(name).unwrap());
            for path in [place.queue(), place.seats(), place.file] {
                let file_name = path.file_name().unwrap().to_str().unwrap().to_owned();
                assert!(file_name.len() <= 255 && !file_name.starts_with('.'), "{file_name}");
                assert_eq!(files.insert(file_name, name), None);
            }
        }
    }
}
