use std::os::unix::fs::FileExt;

use fencepost_core::error::{ErrorKind, Operation};

use super::*;

fn floor(directory: &Path, boot: u8) -> Floor {
    Floor::open(directory, [boot; 16], Mode::RUSR | Mode::WUSR).unwrap()
}

/// The first number of a new range.
fn next(floor: &Floor) -> u64 {
    loop {
        let given = floor.lock().unwrap().new_range(0);
        match given {
            Ok((first, _)) => return first,
            Err(Problem::Again(Again::CeilingReached)) => floor.raise().unwrap(),
            Err(problem) => panic!("{problem:?}"),
        }
    }
}

fn content(directory: &Path) -> Vec<u8> {
    fs::read(directory.join(FILE)).unwrap()
}

fn set(directory: &Path, bytes: &[u8], at: u64) {
    let file = fs::File::options().write(true).open(directory.join(FILE)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn damage(directory: &Path, slot: u64) {
    set(directory, &[0xff; 4], slot + 14);
}

#[test]
fn f4_ranges_never_overlap_across_handles_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(next(&floor(directory.path(), 1)), 1);
    assert_eq!(next(&floor(directory.path(), 1)), 1 + RANGE);
    let after_restart = next(&floor(directory.path(), 2));
    assert_eq!(after_restart, 1 + RANGE * AHEAD, "what one boot wrote without fsync is not believed by another");
    assert_eq!(next(&floor(directory.path(), 2)), after_restart + RANGE);
}

#[test]
fn f4_one_torn_slot_is_survived_and_two_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    next(&floor(directory.path(), 1));
    damage(directory.path(), SLOTS[1]);
    let raised = next(&floor(directory.path(), 2));
    assert_eq!(raised, 1 + RANGE * AHEAD, "the other slot has the ceiling");
    for slot in SLOTS {
        damage(directory.path(), slot);
    }
    let damaged = floor(directory.path(), 2);
    let error = damaged.lock().unwrap().new_range(0).unwrap_err().into_error(Operation::Claim, None);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.advice().is_some());
}

/// The write of a ceiling can be torn by a failure of the machine, and what others wrote without fsync be lost with it,
/// at any time and time after time.
#[test]
fn f4_a_machine_that_fails_in_each_raising_never_takes_a_range_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut highest = 0;
    for boot in 1..40 {
        let here = floor(path, boot);
        for _ in 0..boot % 3 {
            let first = next(&here);
            assert!(first > highest, "boot {boot}");
            highest = first + RANGE - 1;
        }
        let before = content(path);
        // As if it had been used up, so that it has to be raised.
        set(path, &[0; NEXT_BYTES], NEXT);
        here.raise().unwrap();
        let after = content(path);
        let written: Vec<_> = SLOTS.into_iter().filter(|at| sector(&before, *at) != sector(&after, *at)).collect();
        let [written] = written[..] else { panic!("more than one slot was written: {written:?}") };
        // Whatever the disk has of it then: nothing, half, or all.
        match boot % 3 {
            0 => set(path, sector(&before, written), written),
            1 => damage(path, written),
            _ => {}
        }
        set(path, sector(&before, NEXT), NEXT);
    }
}

fn sector(content: &[u8], at: u64) -> &[u8] {
    &content[at as usize..at as usize + 512]
}

/// `kill -9` between the write of a ceiling and the moment at which it is on the disk: the next process reads it, and
/// must not take it for granted.
#[test]
fn f4_a_ceiling_whose_writer_was_killed_before_it_was_on_the_disk_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let here = floor(directory.path(), 1);
    next(&here);
    let on_the_disk = RANGE * AHEAD;
    set(directory.path(), &slot_bytes(100 * on_the_disk), SLOTS[1]);
    let mut last = 0;
    let problem = loop {
        match here.lock().unwrap().new_range(0) {
            Ok((_, end)) => last = end,
            Err(problem) => break problem,
        }
    };
    assert!(matches!(problem, Problem::Again(Again::CeilingReached)), "{problem:?}");
    assert_eq!(last, on_the_disk);
    assert_eq!(next(&here), on_the_disk + 1, "and once it is on the disk, it is");
}

#[test]
fn f4_a_missing_or_rewound_floor_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = floor(directory.path(), 1);
    let old = content(directory.path());
    for _ in 0..=AHEAD {
        next(&first);
    }
    let problem = first.lock().unwrap().new_range(RANGE * (AHEAD + 9)).unwrap_err();
    assert!(matches!(problem, Problem::Corrupt { .. }), "{problem:?}");
    // The copies of the ceiling come from a backup, the rest does not.
    set(directory.path(), &old[..NEXT as usize], 0);
    let problem = first.lock().unwrap().new_range(0).unwrap_err();
    assert!(matches!(problem, Problem::Corrupt { .. }), "{problem:?}");
    fs::write(directory.path().join("a.lock"), "").unwrap();
    fs::remove_file(directory.path().join(FILE)).unwrap();
    assert!(matches!(first.lock(), Err(Problem::Corrupt { .. })));
    let reopened = Floor::open(directory.path(), [1; 16], Mode::RUSR);
    assert!(matches!(reopened, Err(Problem::Corrupt { .. })));
}

#[test]
fn f1_the_last_fence_fits_63_bits() {
    let directory = tempfile::tempdir().unwrap();
    let floor = floor(directory.path(), 1);
    set(directory.path(), &slot_bytes(Fence::MAX), SLOTS[0]);
    assert!(matches!(floor.lock().unwrap().new_range(0), Err(Problem::Exhausted { .. })));
    assert!(matches!(floor.raise(), Err(Problem::Exhausted { .. })));
}
