//! Readers may be together and writers not, and there are only so many permits.

use fencepost_history::{Kind, Options, check, read};

/// The kinds that are found, when each of these grants is held to the end: who, how (as JSON), and what else was answered.
fn found(grants: &[(&str, &str, &str)]) -> Vec<Kind> {
    let mut text = String::new();
    for (number, (by, holding, answered)) in (1..).zip(grants) {
        let (asked, granted) = (number * 10_000_000, number * 10_000_000 + 1_000_000);
        text.push_str(&format!(
            r#"{{"at":{asked},"by":"{by}","event":"invoke","verb":"acquire","lock":"x","grant":"{by}1","holding":{holding}}}
{{"at":{granted},"by":"{by}","event":"ok","answer":"granted","ttl":9000000000,"until":8000000000{answered}}}
"#
        ));
    }
    let history = read(text.as_bytes()).whole().expect("a history without a flaw");
    check(&history, &Options::default()).list.into_iter().map(|finding| finding.kind).collect()
}

const READER: &str = r#""shared""#;
const WRITER: &str = r#""alone""#;
const ONE_OF_TWO: &str = r#"{"permits":{"count":1,"limit":2}}"#;
const BOTH: [Kind; 2] = [Kind::DoubleGrant, Kind::BeliefOverlap];

#[test]
fn readers_are_beside_readers() {
    assert_eq!(found(&[("a", READER, r#","fence":3"#), ("b", READER, r#","fence":3"#)]), []);
}

#[test]
fn no_writer_is_beside_a_reader() {
    assert_eq!(found(&[("a", READER, ""), ("b", WRITER, "")]), BOTH);
    assert_eq!(found(&[("a", WRITER, ""), ("b", READER, "")]), BOTH);
    assert_eq!(found(&[("a", READER, ""), ("b", READER, ""), ("c", WRITER, "")]), BOTH, "told once");
}

#[test]
fn between_readers_fences_have_no_order() {
    assert_eq!(found(&[("a", READER, r#","fence":4"#), ("b", READER, r#","fence":3"#)]), []);
}

#[test]
fn there_are_as_many_permits_as_there_are() {
    assert_eq!(found(&[("a", ONE_OF_TWO, ""), ("b", ONE_OF_TWO, "")]), []);
    assert_eq!(found(&[("a", ONE_OF_TWO, ""), ("b", ONE_OF_TWO, ""), ("c", ONE_OF_TWO, "")]), BOTH);
    assert_eq!(found(&[("a", ONE_OF_TWO, ""), ("b", WRITER, "")]), BOTH);
}

#[test]
fn no_slot_is_held_twice_and_each_has_fences_of_its_own() {
    let slot = |slot: u32, fence: u32| format!(r#","slots":[{slot}],"fence":{fence}"#);
    assert_eq!(found(&[("a", ONE_OF_TWO, &slot(0, 1)), ("b", ONE_OF_TWO, &slot(1, 1))]), []);
    assert_eq!(found(&[("a", ONE_OF_TWO, &slot(0, 1)), ("b", ONE_OF_TWO, &slot(0, 2))]), BOTH);
    let mut all = BOTH.to_vec();
    all.push(Kind::FenceTwice);
    assert_eq!(found(&[("a", ONE_OF_TWO, &slot(0, 1)), ("b", ONE_OF_TWO, &slot(0, 1))]), all);
}
