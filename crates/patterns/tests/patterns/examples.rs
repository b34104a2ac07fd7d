//! The examples come to the end that they tell of.

use std::process::Command;

fn ends_well(example: &str) -> String {
    // Beside the folder that tests lie in; cargo builds the examples along with a package's tests.
    let tests = std::env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join("examples").join(example);
    assert!(path.exists(), "built by `cargo test -p fencepost-patterns`");
    let ended = Command::new(path).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{told}\n{}", String::from_utf8_lossy(&ended.stderr));
    told
}

#[test]
fn the_late_write_is_refused_where_fences_are_checked() {
    assert!(ends_well("late").contains("the lock was passed on, and nothing was written"));
}

#[test]
fn a_single_writer_sells_no_seat_twice_and_a_second_owner_shuts_out_the_first() {
    let told = ends_well("single_writer");
    assert!(told.contains("5 of 8 sold a seat, 5 are in the log"), "{told}");
    assert!(told.contains("the first one is refused: Err("), "{told}");
}
