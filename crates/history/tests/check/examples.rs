//! Each kind of wrong has an example, and the same history without its fault is clean.

use fencepost_history::{Findings, Kind, Options, check, read};

/// Times are in milliseconds here, for people to read.
fn findings(lines: &str) -> Findings {
    findings_with(lines, &Options::default())
}

fn findings_with(lines: &str, options: &Options) -> Findings {
    let history = read(in_nanoseconds(lines).as_bytes()).whole().expect("a history without a flaw");
    check(&history, options)
}

fn in_nanoseconds(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        for key in ["at", "ttl", "from", "until", "asked"] {
            if let Some(ms) = value.get(key).and_then(serde_json::Value::as_u64) {
                value[key] = (ms * 1_000_000).into();
            }
        }
        out.push_str(&format!("{value}\n"));
    }
    out
}

fn assert_only(findings: &Findings, kind: Kind) {
    let kinds: Vec<Kind> = findings.list.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [kind], "{:#?}", findings.list);
}

const A_HOLDS: &str = r#"
    {"at":0,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
    {"at":1,"by":"a","event":"ok","answer":"granted","ttl":1000,"until":900,"fence":1}
"#;

fn after_a(lines: &str) -> String {
    format!("{A_HOLDS}\n{lines}")
}

#[test]
fn an_orderly_hand_over_is_clean() {
    let findings = findings(&after_a(
        r#"{"at":10,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":20,"by":"ledger","event":"read","grant":"a1","fence":1,"version":0,"taken":true}
        {"at":30,"by":"ledger","event":"write","grant":"a1","fence":1,"basis":0,"version":1,"taken":true}
        {"at":40,"by":"a","event":"invoke","verb":"release","lock":"x","grant":"a1"}
        {"at":42,"by":"a","event":"ok","answer":"released"}
        {"at":43,"by":"b","event":"ok","answer":"granted","ttl":1000,"until":1040,"fence":2}
        {"at":50,"by":"ledger","event":"write","grant":"b1","fence":2,"basis":1,"version":2,"taken":true}"#,
    ));
    assert!(findings.list.is_empty(), "{:#?}", findings.list);
    assert_eq!(findings.measures.grants, 2);
    assert_eq!(findings.measures.longest_idle, 3_000_000, "from the release on until the next grant");
}

#[test]
fn a_second_grant_within_the_first_ones_ttl_is_a_double_grant() {
    let findings = findings(&after_a(
        r#"{"at":950,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":951,"by":"b","event":"ok","answer":"granted","ttl":1000,"until":1900,"fence":2}"#,
    ));
    assert_only(&findings, Kind::DoubleGrant);
}

#[test]
fn a_grant_just_before_the_release_is_a_double_grant_whatever_the_tolerance() {
    let findings = findings(&after_a(
        r#"{"at":10,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":11,"by":"b","event":"ok","answer":"granted","ttl":1000,"until":900,"fence":2}
        {"at":12,"by":"a","event":"invoke","verb":"release","lock":"x","grant":"a1"}
        {"at":13,"by":"a","event":"ok","answer":"already-expired"}"#,
    ));
    assert!(findings.has(Kind::DoubleGrant), "{:#?}", findings.list);
}

#[test]
fn a_grant_that_an_administrator_freed_may_be_given_again() {
    let findings = findings(&after_a(
        r#"{"at":900,"by":"lab","event":"freed","grant":"a1","why":"broken by force"}
        {"at":950,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":951,"by":"b","event":"ok","answer":"granted","ttl":1000,"until":1900,"fence":2}"#,
    ));
    assert!(findings.list.is_empty(), "{:#?}", findings.list);
}

#[test]
fn who_believes_beyond_the_end_overlaps_with_the_next() {
    let findings = findings(
        r#"{"at":0,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
        {"at":1,"by":"a","event":"ok","answer":"granted","ttl":1000}
        {"at":1100,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":1101,"by":"b","event":"ok","answer":"granted","ttl":1000,"until":2000}
        {"at":1200,"by":"a","event":"lost","grant":"a1","why":"expired"}"#,
    );
    let kinds: Vec<Kind> = findings.list.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::BeliefBeyondLease, Kind::BeliefOverlap]);
}

#[test]
fn a_look_into_the_store_that_shows_another_contradicts_a_belief() {
    let lines = after_a(
        r#"{"at":101,"by":"look","event":"sighting","lock":"x","asked":100}
        {"at":111,"by":"look","event":"sighting","lock":"x","asked":110}"#,
    );
    assert_only(&findings(&lines), Kind::BeliefBeyondLease);
    let lines = after_a(r#"{"at":101,"by":"look","event":"sighting","lock":"x","asked":100,"grant":"a1"}"#);
    assert!(findings(&lines).list.is_empty());
}

const THEN_B: &str = r#"
    {"at":40,"by":"a","event":"invoke","verb":"release","lock":"x","grant":"a1"}
    {"at":42,"by":"a","event":"ok","answer":"released"}
    {"at":50,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
"#;

fn b_with_fence(fence: u64) -> String {
    after_a(&format!(
        "{THEN_B}\n{{\"at\":51,\"by\":\"b\",\"event\":\"ok\",\"answer\":\"granted\",\"ttl\":1000,\"fence\":{fence}}}\n\
         {{\"at\":60,\"by\":\"b\",\"event\":\"died\"}}"
    ))
}

#[test]
fn fences_rise_and_come_once() {
    assert_only(&findings(&b_with_fence(0)), Kind::FenceBackwards);
    assert_only(&findings(&b_with_fence(1)), Kind::FenceTwice);
    assert!(findings(&b_with_fence(2)).list.is_empty());
}

/// A is paused beyond its lease; B holds; A's write arrives. What the resource made of it comes behind.
const A_IS_LATE: &str = r#"
    {"at":1100,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
    {"at":1101,"by":"b","event":"ok","answer":"granted","ttl":1000,"until":2000,"fence":2}
"#;

#[test]
fn a_late_write_is_judged_by_what_the_resource_made_of_it() {
    let read = r#"{"at":1102,"by":"ledger","event":"read","grant":"b1","fence":2,"version":0,"taken":true}"#;
    let late = |fence: &str, taken: bool| {
        format!(
            r#"{{"at":1103,"by":"ledger","event":"write","grant":"a1",{fence}"basis":0,"version":1,"taken":{taken}}}"#
        )
    };
    let refused = findings(&after_a(&format!("{A_IS_LATE}\n{read}\n{}", late("\"fence\":1,", false))));
    assert_only(&refused, Kind::StaleRefused);
    assert!(refused.overlap() && !refused.harm());

    let accepted = findings(&after_a(&format!("{A_IS_LATE}\n{read}\n{}", late("", true))));
    assert_only(&accepted, Kind::StaleAccepted);
    assert!(accepted.harm());

    let before_b_came = findings(&after_a(&format!("{A_IS_LATE}\n{}", late("\"fence\":1,", true))));
    assert_only(&before_b_came, Kind::LateAccepted);
    assert!(before_b_came.overlap() && !before_b_came.harm());
}

#[test]
fn a_resource_that_takes_a_lower_fence_is_found() {
    let findings = findings(&after_a(
        r#"{"at":10,"by":"ledger","event":"read","grant":"a1","fence":5,"version":0,"taken":true}
        {"at":11,"by":"ledger","event":"read","grant":"a1","fence":4,"version":0,"taken":true}"#,
    ));
    assert_only(&findings, Kind::EffectBackwards);
}

#[test]
fn a_write_on_an_old_version_loses_an_update() {
    let findings = findings(&after_a(
        r#"{"at":10,"by":"ledger","event":"write","grant":"a1","basis":0,"version":1,"taken":true}
        {"at":11,"by":"ledger","event":"write","grant":"a1","basis":0,"version":2,"taken":true}"#,
    ));
    assert_only(&findings, Kind::LostUpdate);
}

#[test]
fn a_refusal_of_the_newest_holder_and_an_unknown_grant_are_found() {
    let refused = r#"{"at":10,"by":"ledger","event":"read","grant":"a1","fence":1,"version":0,"taken":false}"#;
    assert_only(&findings(&after_a(refused)), Kind::RightfulRefused);
    let unknown = r#"{"at":10,"by":"ledger","event":"read","grant":"z9","version":0,"taken":true}"#;
    assert_only(&findings(&after_a(unknown)), Kind::NeverGranted);
}

#[test]
fn answers_that_cannot_have_been_so_are_found() {
    let late_grant = r#"{"at":0,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
        {"at":1200,"by":"a","event":"ok","answer":"granted","ttl":1000,"until":900}"#;
    assert_only(&findings(late_grant), Kind::DishonestAnswer);

    let late_check = after_a(
        r#"{"at":1001,"by":"a","event":"invoke","verb":"check","lock":"x","grant":"a1"}
        {"at":1002,"by":"a","event":"ok","answer":"held"}"#,
    );
    assert_only(&findings(&late_check), Kind::DishonestAnswer);

    let released_anothers = after_a(&format!(
        r#"{A_IS_LATE}
        {{"at":1200,"by":"a","event":"invoke","verb":"release","lock":"x","grant":"a1"}}
        {{"at":1201,"by":"a","event":"ok","answer":"released"}}"#
    ));
    assert_only(&findings(&released_anothers), Kind::DishonestAnswer);

    let busy_with_nobody = r#"{"at":0,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
        {"at":1,"by":"a","event":"fail","why":"busy"}"#;
    assert_only(&findings(busy_with_nobody), Kind::DishonestAnswer);
    let busy_with_a = after_a(
        r#"{"at":3,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":4,"by":"b","event":"fail","why":"busy"}"#,
    );
    assert!(findings(&busy_with_a).list.is_empty());
}

#[test]
fn who_is_passed_over_and_who_waits_for_the_dead_is_measured() {
    let lines = after_a(
        r#"{"at":10,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":20,"by":"c","event":"invoke","verb":"acquire","lock":"x","grant":"c1"}
        {"at":30,"by":"a","event":"died"}
        {"at":1030,"by":"c","event":"ok","answer":"granted","ttl":500,"from":1029,"until":1400,"fence":2}
        {"at":1040,"by":"c","event":"invoke","verb":"release","lock":"x","grant":"c1"}
        {"at":1041,"by":"c","event":"ok","answer":"released"}
        {"at":1042,"by":"b","event":"ok","answer":"granted","ttl":5000,"until":1500,"fence":3}"#,
    );
    let measured = findings(&lines);
    assert!(measured.list.is_empty(), "{:#?}", measured.list);
    assert_eq!(measured.measures.most_bypassed, 1);
    assert_eq!(measured.measures.slowest_recovery, Some(1_000_000_000));
    assert_eq!(measured.measures.longest_idle, 1_000_000_000);

    let strict = Options { most_bypassed: Some(0), ..Options::default() };
    assert_only(&findings_with(&lines, &strict), Kind::Bypassed);
    let strict = Options { slowest_recovery: Some(999_000_000), ..Options::default() };
    assert_only(&findings_with(&lines, &strict), Kind::SlowRecovery);
}

#[test]
fn a_session_that_died_may_be_succeeded_at_once() {
    let findings = findings(
        r#"{"at":0,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
        {"at":1,"by":"a","event":"ok","answer":"granted"}
        {"at":5,"by":"a","event":"died"}
        {"at":6,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
        {"at":7,"by":"b","event":"ok","answer":"granted"}"#,
    );
    assert!(findings.list.is_empty(), "{:#?}", findings.list);
}

#[test]
fn a_renewal_extends_what_the_store_promised() {
    let lines = |second_grant: u64| {
        after_a(&format!(
            r#"{{"at":500,"by":"a","event":"invoke","verb":"renew","lock":"x","grant":"a1"}}
        {{"at":501,"by":"a","event":"ok","answer":"renewed","ttl":1000,"until":1400}}
        {{"at":1100,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}}
        {{"at":{second_grant},"by":"b","event":"ok","answer":"granted","ttl":1000,"until":2000,"fence":2}}"#
        ))
    };
    assert!(findings(&lines(1500)).list.is_empty());
    let early = findings(&lines(1450));
    assert_only(&early, Kind::DoubleGrant);
}
