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

#[test]
fn a_shop_on_redis_sells_what_there_is_and_once_for_each_order() {
    let told = ends_well("shop");
    for line in [
        "{shop}:order 1: reserved, 2 left\n{shop}:order 1: reserved, 2 left\n{shop}:order 2: there are only 2",
        "one more over the counter, 1 left",
        "paid: (40, 60); again: there are only 40; nothing was changed",
        "motto: the first one was written: true\nmotto: the second one was left out: true",
        "prices: 0 to be seen while they are written",
        "mails: mail 1 sent at the 2. try: true\nmails: mail 2 sent at the 1. try: true",
        "request 2: answered, 0 more at once\nrequest 3: later",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
}

#[test]
fn orders_in_postgres_are_paid_once_for_each_key() {
    let told = ends_well("orders");
    for line in [
        "try 1: paid, 40 left\npayment, try 2: paid, 40 left (as it was told before)\npayment of more: there are only 40",
        "document: \"a first line, a second one\" after 0 conflicts",
        "mails: 1 for the one, 1 for the other\nmails: what the one has, the other cannot acknowledge: true",
        "request 2: answered, 0 more at once\nrequest 3: later",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
}

#[test]
fn a_late_holder_is_refused_by_every_resource_that_checks() {
    let told = ends_well("resources");
    let (before, after) = told.split_once("the second holder has fence ").unwrap();
    let (fence, after) = after.split_once("; the service answers 200").unwrap();
    for resource in ["Redis key", "object", "file", "HTTP service"] {
        let written = format!("  {resource}: written");
        assert!(before.contains(&written) && after.contains(&written), "{told}");
        let late = after.lines().find(|line| line.starts_with(resource)).unwrap();
        assert!(late.contains(fence) && late.contains("the lock was passed on"), "{late}");
    }
}
