//! A cell's file: a line of text, and the value after it.

use std::time::Duration;

use fencepost_core::{
    cells::{Cell, Version},
    clock::{BootClock, Clock, wall_unix_ms},
    owner::Owner,
};

use crate::record::BootId;

/// What a cell's file says.
pub(super) struct Written<'a> {
    pub(super) by: Owner,
    pub(super) version: u64,
    pub(super) expires: Option<Expiry>,
    pub(super) name: &'a str,
    pub(super) value: &'a [u8],
}

/// When a cell ends: on the clock of the boot it was written in, and by the wall clock after another boot.
#[derive(Clone, Copy)]
pub(super) struct Expiry {
    boot: BootId,
    boot_ms: u64,
    unix_ms: u64,
}

impl Expiry {
    pub(super) fn after(span: Duration, boot: BootId) -> Self {
        let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (boot_ms, unix_ms) = (since_boot_ms().saturating_add(span), wall_unix_ms(&BootClock).saturating_add(span));
        Self { boot, boot_ms, unix_ms }
    }

    /// How long yet; `None` when it is over.
    fn left(self, boot: &BootId) -> Option<Duration> {
        let (end, now) =
            if self.boot == *boot { (self.boot_ms, since_boot_ms()) } else { (self.unix_ms, wall_unix_ms(&BootClock)) };
        end.checked_sub(now).filter(|left| *left > 0).map(Duration::from_millis)
    }
}

fn since_boot_ms() -> u64 {
    BootClock.now().as_nanos() / 1_000_000
}

impl<'a> Written<'a> {
    /// `fencepost-cell 1 BY VERSION BOOT BOOT_MS UNIX_MS NAME`, with `-` for what does not expire. A name holds no line
    /// break.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?.strip_prefix("fencepost-cell 1 ")?;
        let mut words = line.splitn(6, ' ');
        let (by, version) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (boot, boot_ms, unix_ms) = (words.next()?, words.next()?, words.next()?);
        let expires = match boot {
            "-" => None,
            hex => Some(Expiry { boot: boot_of(hex)?, boot_ms: boot_ms.parse().ok()?, unix_ms: unix_ms.parse().ok()? }),
        };
        Some(Self { by, version, expires, name: words.next()?, value: &bytes[end + 1..] })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let expires = match self.expires {
            None => "- - -".to_owned(),
            Some(at) => format!("{} {} {}", hex(&at.boot), at.boot_ms, at.unix_ms),
        };
        let mut bytes = format!("fencepost-cell 1 {} {} {expires} {}\n", self.by, self.version, self.name).into_bytes();
        bytes.extend(self.value);
        bytes
    }

    pub(super) fn cell(&self, boot: &BootId) -> Option<Cell> {
        let expires_in = match self.expires {
            None => None,
            Some(expiry) => Some(expiry.left(boot)?),
        };
        Some(Cell { value: self.value.into(), version: Version(self.version), by: self.by, expires_in })
    }
}

fn hex(boot: &BootId) -> String {
    boot.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn boot_of(text: &str) -> Option<BootId> {
    let mut boot = BootId::default();
    if text.len() != 2 * boot.len() || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in boot.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = [7; 16];

    fn written(expires: Option<Expiry>) -> Vec<u8> {
        let by = Owner::from_bytes([1; 20]);
        Written { by, version: 9, expires, name: "a b c", value: b"line\nline" }.bytes()
    }

    #[test]
    fn a_cells_file_reads_back_and_nothing_foreign_does() {
        for expires in [None, Some(Expiry::after(Duration::from_secs(60), BOOT))] {
            let bytes = written(expires);
            let read = Written::parse(&bytes).unwrap();
            assert_eq!((read.name, read.version, read.value), ("a b c", 9, &b"line\nline"[..]));
            let cell = read.cell(&BOOT).unwrap();
            assert_eq!(cell.expires_in.is_some(), expires.is_some());
        }
        let whole = written(None);
        let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for length in 0..header {
            assert!(Written::parse(&whole[..length]).is_none(), "{length} bytes");
        }
        assert!(Written::parse(b"fencepost-cell 2 x\nvalue").is_none());
    }

    /// The clock of a boot starts anew; what was written before is judged by the wall clock.
    #[test]
    fn t2_a_cell_expires_also_after_a_restart_of_the_machine() {
        let wall = wall_unix_ms(&BootClock);
        let before = |unix_ms| Expiry { boot: [8; 16], boot_ms: u64::MAX, unix_ms };
        assert_eq!(before(wall.saturating_sub(1)).left(&BOOT), None);
        assert!(before(wall + 60_000).left(&BOOT).is_some_and(|left| left > Duration::from_secs(50)));
    }
}
