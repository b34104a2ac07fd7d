//! Broken input is named by its line, and the rest can be used.

use fencepost_history::{Event, Foreign, Head, History, What, read};

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

/// There is a way that is quick, and one that says what is wrong; they must agree.
#[test]
fn each_kind_of_event_is_read_as_its_type_says() {
    let lines = [
        r#"{"at":1,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}"#,
        r#"{"grant":"a1","lock":"x","verb":"downgrade","event":"invoke","by":"a","at":1,"holding":"shared"}"#,
        r#"{"at":1,"by":"a","event":"invoke","verb":"renew","lock":"x","grant":"a1","holding":{"permits":{"count":1,"limit":3}}}"#,
        r#"{"at":1,"by":"a","event":"ok","answer":"granted"}"#,
        r#"{"at":1,"by":"a","event":"ok","answer":"granted","fence":9,"ttl":8,"from":7,"until":null,"slots":[1,2]}"#,
        r#"{"at":1,"by":"a","event":"fail","why":"busy","lock":17,"taken":"who knows"}"#,
        r#"{"at":1,"by":"a","event":"unknown","why":"line\nbreak \u00e9","more":{"of":[1]}}"#,
        r#"{"at":1,"by":"a","event":"lost","grant":"a1","why":"expired"}"#,
        r#"{"at":1,"by":"a","event":"died"}"#,
        r#"{"at":1,"by":"a","event":"freed","grant":"a1","why":"by hand"}"#,
        r#"{"at":1,"by":"a","event":"sighting","lock":"x","asked":0}"#,
        r#"{"at":1,"by":"a","event":"sighting","lock":"x","grant":"a1","asked":0}"#,
        r#"{"at":1,"by":"ledger","event":"read","grant":"a1","version":3,"taken":true}"#,
        r#"{"at":1,"by":"ledger","event":"write","grant":"a1","fence":2,"basis":3,"version":4,"taken":false}"#,
        r#"{"at":1,"by":"lab","event":"fault","fault":"cut","target":"a","phase":"begin","installed":true}"#,
        r#"{"at":1,"by":"lab","event":"clock","of":"a","offset_ms":-3}"#,
        r#"{"at":1,"by":"lab","event":"note","text":"x"}"#,
    ];
    for line in lines {
        let history = read(line.as_bytes()).whole().unwrap();
        let event = history.events()[0].event.clone().map(|name| history.text(name).to_owned());
        assert_eq!(event, serde_json::from_str(line).unwrap(), "{line}");
    }
    let missing = [
        r#"{"at":1,"by":"a","event":"invoke","lock":"x","grant":"a1"}"#,
        r#"{"at":1,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1","holding":null}"#,
        r#"{"at":1,"by":"a","event":"read","grant":"a1","version":3,"taken":null}"#,
        r#"{"at":1,"by":"a","event":"sleeps"}"#,
        r#"{"at":-1,"by":"a","event":"died"}"#,
        r#"{"at":1,"at":1,"by":"a","event":"died"}"#,
    ];
    for line in missing {
        assert!(serde_json::from_str::<Event>(line).is_err() && read(line.as_bytes()).whole().is_err(), "{line}");
    }
}

#[test]
fn a_file_says_which_version_it_is_and_one_of_before_that_is_still_read() {
    let head = serde_json::to_string(&Head::default()).unwrap();
    assert_eq!(head, r#"{"format":"fencepost-history","version":2}"#);
    // Where files were joined, it stands in the middle.
    for text in [GOOD.to_owned(), format!("{head}\n{GOOD}\n"), format!("{GOOD}\n{head}\n")] {
        assert_eq!(read(text.as_bytes()).whole().unwrap().events().len(), 1, "{text}");
    }
    let newer = read(format!("{}\n{GOOD}", head.replace('2', "3")).as_bytes());
    assert!(newer.broken[0].why.contains("version 3 of the format, and this build reads up to 2"), "{newer:?}");
    assert_eq!(newer.history.events().len(), 1, "what is understood of it can be used");
    let other = read(br#"{"format":"somebody-elses","version":1}"#.as_slice());
    assert!(other.broken[0].why.contains("somebody-elses"), "{other:?}");
}

#[test]
fn files_of_other_tools_are_called_by_their_names() {
    let of = |text: &[u8]| read(text).foreign;
    let edn = Some(Foreign::JepsenEdn);
    assert_eq!(of(b"{:process 0, :type :invoke, :f :acquire, :value nil, :time 12, :index 0}\n"), edn);
    assert_eq!(of(b"[{:type :ok, :f :txn, :value [[:append 3 1]]}]"), edn);
    assert_eq!(of(b"#jepsen.history.Op{:index 0, :time 1, :type :invoke}"), edn);
    let json = br#"{"type":"invoke","f":"txn","value":[["append",3,1]],"process":0,"time":1}"#;
    assert_eq!(of(json), Some(Foreign::JepsenJson));
    assert_eq!(of(&[b"[", json.as_slice(), b"]"].concat()), Some(Foreign::JepsenJson));
    assert_eq!(of(b"0\t:invoke\t:acquire\tnil\n"), Some(Foreign::JepsenText));
    assert_eq!(of(b"INFO  jepsen.util - 4\t:ok\t:read\tnil\n"), Some(Foreign::JepsenText));
    let porcupine = br#"{"ClientId":1,"Input":{"op":0,"key":"x"},"Call":0,"Output":{},"Return":9}"#;
    assert_eq!(of(porcupine), Some(Foreign::Porcupine));
    assert_eq!(of(br#"{"ClientId":1,"Kind":0,"Value":{},"Id":3}"#), Some(Foreign::Porcupine));
    assert_eq!(of(format!("[{GOOD}]").as_bytes()), Some(Foreign::Array));
    assert_eq!(of(b"{\n  \"at\": 5\n}\n"), Some(Foreign::Indented));
    assert_eq!(of(br#"{"level":"info"}"#), Some(Foreign::Json));
    assert_eq!(of(b"<!DOCTYPE html>"), Some(Foreign::Html));
    assert_eq!(of(b"\x1f\x8b\x08\x00\n"), Some(Foreign::Compressed));
    assert_eq!(of(b"\x7fELF\x02\x01\n"), Some(Foreign::Binary));
    assert_eq!(of(b"dear diary\n"), Some(Foreign::Text));
    assert_eq!(of(b""), None);
    assert_eq!(of(format!("{GOOD}\ndear diary").as_bytes()), None, "it is a history with a broken line");
    let said = Foreign::JepsenEdn.to_string();
    assert!(said.contains("Jepsen") && said.contains("\"at\", \"by\" and \"event\""), "{said}");
}

#[test]
fn what_has_no_lines_does_not_fill_the_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(0));
    let reading = read(endless);
    assert_eq!((reading.broken.len(), reading.foreign), (1, Some(Foreign::Binary)));
    let one_long = format!("{GOOD}\n{}\n{GOOD}\n", "x".repeat(3 << 20));
    let reading = read(one_long.as_bytes());
    assert_eq!((reading.history.events().len(), reading.broken[0].line), (2, 2), "what stands behind it is read");
    let foreign = read("no\n".repeat(1_000_000).as_bytes());
    assert_eq!(foreign.broken.len(), 1000, "enough was seen");
}

#[test]
fn an_editor_of_another_system_changes_nothing() {
    let text = format!("\u{feff}{GOOD}\r\n\r\n{GOOD}\r\n");
    assert_eq!(read(text.as_bytes()).whole().unwrap().events().len(), 2);
}
