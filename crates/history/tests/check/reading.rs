//! Broken input is named by its line, and the rest can be used.

use fencepost_history::{Event, History, What, read};

const GOOD: &str = r#"{"at":5,"by":"a","event":"note","text":"good"}"#;

#[test]
fn a_truncated_line_is_named_and_the_rest_can_be_used() {
    let text = format!("{GOOD}\n\n{{\"at\":7,\"by\":\"a\",\"eve");
    let reading = read(text.as_bytes());
    assert_eq!(reading.history.events().len(), 1);
    assert_eq!(reading.broken.len(), 1);
    assert_eq!(reading.broken[0].line, 3);
    let error = reading.whole().unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("truncated"), "{error}");
}

#[test]
fn what_is_no_json_and_what_is_no_event_is_told_apart() {
    let text = format!("hello\n{{\"type\":\"invoke\",\"f\":\"acquire\",\"process\":3}}\n\u{0}\n{GOOD}");
    let reading = read(text.as_bytes());
    let broken: Vec<_> = reading.broken.iter().map(|broken| (broken.line, broken.why.as_str())).collect();
    assert_eq!(broken.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(broken[0].1.starts_with("it is not JSON"), "{broken:?}");
    assert!(broken[1].1.starts_with("it is not an event of a history"), "{broken:?}");
    assert_eq!(reading.history.events()[0].line, 4);
}

#[test]
fn many_broken_lines_make_a_short_message() {
    let error = read("x\n".repeat(100).as_bytes()).whole().unwrap_err().to_string();
    assert!(error.ends_with("and 95 more"), "{error}");
}

#[test]
fn lines_in_any_order_are_read_by_their_times() {
    let text = r#"{"at":9,"by":"a","event":"note","text":"second"}
{"at":5,"by":"a","event":"note","text":"first"}"#;
    let history = read(text.as_bytes()).whole().unwrap();
    let times: Vec<_> = history.events().iter().map(|recorded| (recorded.event.at, recorded.line)).collect();
    assert_eq!(times, [(5, 2), (9, 1)]);
}

#[test]
fn what_is_written_is_read_back() {
    let event = Event {
        at: 1,
        by: "ledger".to_owned(),
        what: What::Read { grant: "ä\"\\".to_owned(), fence: None, version: u64::MAX, taken: true },
    };
    let line = serde_json::to_string(&event).unwrap();
    let history = read(line.as_bytes()).whole().unwrap();
    let back = history.events()[0].event.clone().map(|name| history.text(name).to_owned());
    assert_eq!(back, event);
    assert_eq!(History::of([event]).events(), history.events());
}
