//! What stands in a lock's file: the format, and the counter that fences come from.
//!
//! One page, written whole when the file is new, so that a later write never needs room on the disk:
//!
//! | bytes | what | written |
//! |---|---|---|
//! | 0 – 63 | magic, format version, the file's [`Identity`], length of the name, checksum | once |
//! | 128 – 639 | the lock's name | once |
//! | 1024 – 1095 | [`Issued`]: last fence, its range, boot, owner, since, seats, checksum | by each grant but that of a further reader, in one write |
//! | 1096 – | the claimant as JSON, for people | with it |
//!
//! Two marks are in the file's *length*, beyond the page, so that the one fstat(2) that a taker needs anyway tells
//! them: [`QUEUE`], there may be waiters, and [`CLOSING`], somebody is about to remove the file. They are changed only
//! with the floor locked, and a longer file needs no room on the disk.
//!
//! A record is not wiped by a release: who holds is for the kernel to say, and the record tells who did last.

use std::path::Path;

use fencepost_core::{
    claim::{Claimant, Holder},
    fence::Fence,
    owner::{OWNER_BYTES, Owner},
};

use crate::problem::{Outcome, Problem};

pub(crate) const PAGE: usize = 4096;
/// A byte of length that says that there may be waiters.
pub(crate) const QUEUE: u64 = 1;
/// Two bytes of length that say that the file is about to be removed.
pub(crate) const CLOSING: u64 = 2;
/// Where the record of a grant begins.
pub(crate) const ISSUED: u64 = 1024;
/// What must be read to take a lock: everything but the JSON.
pub(crate) const TAKERS_PART: usize = ISSUED as usize + ISSUED_BYTES;

const MAGIC: [u8; 8] = *b"FENCELCK";
const VERSION: u32 = 1;
const NAME: usize = 128;
const ISSUED_BYTES: usize = 72;
/// The longest JSON that is kept; labels beyond it are left out.
const LONGEST_JSON: usize = PAGE - TAKERS_PART;

/// The boot of this kernel. While it lasts, what any process wrote can be read by all, synced or not.
pub(crate) type BootId = [u8; 16];

/// Which file it is. A copy that was put in a file's place has another, also when it was given the same inode again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) inode: u64,
    /// When the file was created, in nanoseconds since 1970; zero where the file system does not tell.
    pub(crate) born: u64,
}

/// The last grant that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issued {
    /// Its fence.
    pub(crate) fence: u64,
    /// The last fence of the range that this file was given by the [floor](crate::floor).
    pub(crate) range_end: u64,
    pub(crate) since_unix_ms: u64,
    pub(crate) boot: BootId,
    pub(crate) owner: Owner,
    /// Whether there may be others beside it. Written by the first of them, and taken back by the next who has it alone.
    pub(crate) seats: Seats,
}

/// Which [seats](crate::seats) there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seats {
    /// None: the lock is held by one alone, or was.
    None,
    /// Those of readers.
    Readers,
    /// Those of a semaphore with so many permits.
    Permits(u32),
}

impl Seats {
    const READERS: u32 = u32::MAX;

    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Readers => Self::READERS,
            Self::Permits(of) => of.clamp(1, Self::READERS - 1),
        }
    }

    fn of(number: u32) -> Self {
        match number {
            0 => Self::None,
            Self::READERS => Self::Readers,
            of => Self::Permits(of),
        }
    }
}

/// A lock's file as read.
#[derive(Debug, PartialEq)]
pub(crate) enum Content {
    /// Never written, or created shortly before the machine failed.
    New,
    /// Taken at least once.
    Used { identity: Identity, last: Issued },
}

impl Issued {
    /// The next fence of the range; `None` when a new range is needed: this one is used up, or the machine was
    /// restarted since, so that the last grants may never have reached the disk.
    pub(crate) fn next(&self, boot: &BootId) -> Option<u64> {
        (self.boot == *boot && self.fence < self.range_end).then(|| self.fence + 1)
    }

    /// What a grant writes, at [`ISSUED`].
    pub(crate) fn write(&self, claimant: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ISSUED_BYTES + claimant.len());
        bytes.extend([0; 4]);
        bytes.extend((claimant.len() as u32).to_le_bytes());
        bytes.extend(self.fence.to_le_bytes());
        bytes.extend(self.range_end.to_le_bytes());
        bytes.extend(self.since_unix_ms.to_le_bytes());
        bytes.extend(self.boot);
        bytes.extend(self.owner.as_bytes());
        bytes.extend(self.seats.number().to_le_bytes());
        let sum = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes.extend(claimant);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..ISSUED_BYTES)?;
        (crc32fast::hash(&bytes[4..]) == u32_at(bytes, 0)).then(|| Self {
            fence: u64_at(bytes, 8),
            range_end: u64_at(bytes, 16),
            since_unix_ms: u64_at(bytes, 24),
            boot: array_at(bytes, 32),
            owner: Owner::from_bytes(array_at::<OWNER_BYTES>(bytes, 48)),
            seats: Seats::of(u32_at(bytes, 48 + OWNER_BYTES)),
        })
    }
}

/// A whole new page: `name` in this very file, with its first grant.
pub(crate) fn new_page(name: &str, identity: Identity, first: &Issued, claimant: &[u8]) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..8].copy_from_slice(&MAGIC);
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    page[12..16].copy_from_slice(&(name.len() as u32).to_le_bytes());
    page[16..24].copy_from_slice(&identity.inode.to_le_bytes());
    page[24..32].copy_from_slice(&identity.born.to_le_bytes());
    page[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
    let sum = header_sum(&page, name.len());
    page[60..64].copy_from_slice(&sum.to_le_bytes());
    let issued = first.write(claimant);
    page[ISSUED as usize..ISSUED as usize + issued.len()].copy_from_slice(&issued);
    page
}

/// The marks that a file of this length has.
pub(crate) fn marks(length: u64) -> u64 {
    length.saturating_sub(PAGE as u64) & (QUEUE | CLOSING)
}

/// The length of a file with these marks.
pub(crate) fn length(marks: u64) -> u64 {
    PAGE as u64 + marks
}

/// Reads what a taker needs, and refuses what is not this lock's.
pub(crate) fn read(path: &Path, bytes: &[u8], name: &str) -> Outcome<Content> {
    // A file that was just created, or whose first page the disk did not get before the machine failed. Starting
    // above the directory's floor is right for both.
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(Content::New);
    }
    let found = name_in(path, bytes)?;
    if found != name {
        let found = format!("belongs to the lock {found:?}: the file system or a hash puts both names on one file");
        return Err(Problem::Foreign { path: path.to_owned(), found });
    }
    let last = bytes.get(ISSUED as usize..).and_then(Issued::read);
    let last = last.ok_or_else(|| corrupt(path, "has a counter whose checksum is wrong, or is cut short"))?;
    if !(1..=last.range_end).contains(&last.fence) || last.range_end > Fence::MAX {
        return Err(corrupt(path, "has a counter outside its range"));
    }
    Ok(Content::Used { identity: Identity { inode: u64_at(bytes, 16), born: u64_at(bytes, 24) }, last })
}

/// The name of the lock that a file belongs to.
pub(crate) fn name_in<'a>(path: &Path, bytes: &'a [u8]) -> Outcome<&'a str> {
    if bytes.len() < NAME {
        return Err(corrupt(path, "is cut short"));
    }
    if bytes[..8] != MAGIC {
        return Err(corrupt(path, "does not begin as a lock's file does"));
    }
    let version = u32_at(bytes, 8);
    if version > VERSION {
        return Err(Problem::Newer { path: path.to_owned(), version });
    }
    let length = u32_at(bytes, 12) as usize;
    let name = bytes.get(NAME..NAME.saturating_add(length)).and_then(|name| std::str::from_utf8(name).ok());
    name.filter(|_| header_sum(bytes, length) == u32_at(bytes, 60))
        .ok_or_else(|| corrupt(path, "has a header whose checksum is wrong"))
}

/// The last grant, to show to people.
pub(crate) fn holder(bytes: &[u8]) -> Option<Holder> {
    let last = bytes.get(ISSUED as usize..).and_then(Issued::read)?;
    let length = u32_at(bytes, ISSUED as usize + 4) as usize;
    let json = bytes.get(TAKERS_PART..TAKERS_PART.saturating_add(length));
    Some(Holder {
        claimant: json.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default(),
        owner: Some(last.owner),
        fence: Fence::new(last.fence),
        since_unix_ms: Some(last.since_unix_ms),
        ..Holder::default()
    })
}

/// Which seats there may be; none where the record cannot be read.
pub(crate) fn seats_in(bytes: &[u8]) -> Seats {
    bytes.get(ISSUED as usize..).and_then(Issued::read).map_or(Seats::None, |last| last.seats)
}

/// The JSON of the last grant.
pub(crate) fn claimant_in(bytes: &[u8]) -> Option<&[u8]> {
    let length = u32_at(bytes.get(..TAKERS_PART)?, ISSUED as usize + 4) as usize;
    bytes.get(TAKERS_PART..TAKERS_PART.saturating_add(length))
}

/// The claimant as JSON, short enough for the page.
pub(crate) fn claimant_json(claimant: &Claimant) -> Vec<u8> {
    let json = |claimant: &Claimant| serde_json::to_vec(claimant).unwrap_or_default();
    let whole = json(claimant);
    if whole.len() <= LONGEST_JSON {
        return whole;
    }
    let short = json(&Claimant { labels: Vec::new(), ..claimant.clone() });
    if short.len() <= LONGEST_JSON { short } else { Vec::new() }
}

fn corrupt(path: &Path, found: &str) -> Problem {
    let repair = "remove the file once nobody holds the lock: the next one starts above every fence of this directory";
    Problem::Corrupt { path: path.to_owned(), found: found.to_owned(), repair: repair.to_owned() }
}

fn header_sum(page: &[u8], name_length: usize) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&page[..60]);
    sum.update(&page[NAME..NAME + name_length]);
    sum.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// `N` bytes at `at`; every caller has checked the length.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    const HERE: Identity = Identity { inode: 5, born: 7 };

    use fencepost_core::error::{ErrorKind, Operation};
    use proptest::prelude::*;

    use super::*;

    fn issued(fence: u64, range_end: u64) -> Issued {
        Issued {
            fence,
            range_end,
            since_unix_ms: 7,
            boot: [3; 16],
            owner: Owner::from_bytes([9; 20]),
            seats: Seats::None,
        }
    }

    proptest! {
        #[test]
        fn a_record_reads_back_as_it_was_written(
            name in "\\PC{1,100}", fence in 1..u64::MAX / 4, more in 0u64..1000, since: u64, boot: [u8; 16],
            owner: [u8; 20], inode: u64, born: u64, host in "\\PC{0,40}", pid: u32, seats: u32,
            labels in prop::collection::vec(("[a-z]{1,9}", "\\PC{0,20}"), 0..4),
        ) {
            let owner = Owner::from_bytes(owner);
            let seats = Seats::of(seats);
            let last = Issued { fence, range_end: fence + more, since_unix_ms: since, boot, owner, seats };
            let claimant = Claimant { host, pid, user: "u".into(), labels };
            let identity = Identity { inode, born };
            let page = new_page(&name, identity, &last, &claimant_json(&claimant));
            prop_assert_eq!(page.len(), PAGE);
            let content = read(Path::new("f"), &page[..TAKERS_PART], &name).unwrap();
            prop_assert_eq!(content, Content::Used { identity, last });
            let holder = holder(&page).unwrap();
            prop_assert_eq!((holder.claimant, holder.owner), (claimant, Some(owner)));
            prop_assert_eq!(holder.fence, Fence::new(fence));
        }

        #[test]
        fn f4_a_damaged_byte_never_yields_another_fence(at in 0usize..TAKERS_PART, bit in 0u8..8) {
            let mut page = new_page("n", HERE, &issued(41, 100), b"{}");
            page[at] ^= 1 << bit;
            match read(Path::new("f"), &page, "n") {
                Ok(Content::Used { last, .. }) => prop_assert_eq!(last.fence, 41),
                Ok(Content::New) => prop_assert!(false, "a used file was taken for a new one"),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn f4_a_file_cut_short_is_refused_with_the_repair() {
        let page = new_page("n", HERE, &issued(41, 100), b"{}");
        for length in [1, 60, 100, 500, 1024, 1090] {
            let problem = read(Path::new("f"), &page[..length], "n").unwrap_err();
            let error = problem.into_error(Operation::Claim, None);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{length}");
            assert!(error.advice().unwrap().contains("remove the file"));
        }
        assert_eq!(read(Path::new("f"), &[], "n").unwrap(), Content::New);
    }

    #[test]
    fn f4_another_boot_and_a_used_up_range_ask_for_a_new_range() {
        assert_eq!(issued(41, 100).next(&[3; 16]), Some(42));
        assert_eq!(issued(41, 100).next(&[4; 16]), None);
        assert_eq!(issued(100, 100).next(&[3; 16]), None);
    }

    #[test]
    fn c3_another_name_on_the_same_file_is_a_foreign_value() {
        let page = new_page("Name", HERE, &issued(1, 100), b"{}");
        let error = read(Path::new("f"), &page, "name").unwrap_err().into_error(Operation::Claim, None);
        assert_eq!(error.kind(), ErrorKind::ForeignValue);
    }

    #[test]
    fn a_newer_format_is_refused_clearly() {
        let mut page = new_page("n", HERE, &issued(1, 100), b"{}");
        page[8] = 2;
        let error = read(Path::new("f"), &page, "n").unwrap_err().into_error(Operation::Claim, None);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
