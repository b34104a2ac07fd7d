//! `advise`: from the need to what serves it, by flags and on a terminal.

use serde_json::Value;

use crate::world::{World, finish};

#[test]
fn flags_lead_to_the_answer_and_the_store_is_judged_without_a_connection() {
    let world = World::on("redis://127.0.0.1:1".into());
    let finished =
        world.finish(&["advise", "--json", "--shared", "yes", "--need", "job", "--breach", "data", "--checks", "yes"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let advice: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(advice["answer"]["word"], "fenced-lock");
    assert_eq!(advice["way"][2]["question"], "breach");
    assert_eq!((&advice["store"]["class"], &advice["store"]["serves"]), (&"efficiency".into(), &false.into()));

    let told = world.finish(&["advise", "--shared", "yes", "--need", "job", "--breach", "data", "--checks", "yes"]);
    for part in ["Correctness lock with a fence", "it does not serve this: it has no fence", "In SQL:", "go wrong:"] {
        assert!(told.stdout.contains(part), "{part} is not in {}", told.stdout);
    }
}

#[test]
fn a_store_that_keeps_nothing_does_not_serve_what_is_kept() {
    let judged = |store: &str| {
        let told = World::on(store.into()).finish(&["advise", "--shared", "yes", "--need", "request"]);
        assert_eq!(told.code, 0, "{}", told.stderr);
        told.stdout
    };
    let redlock = judged("redlock://h1,h2,h3");
    assert!(redlock.contains("it does not serve this: it keeps no cells"), "{redlock}");
    let redis = judged("redis://h1");
    assert!(redis.contains("it serves this"), "{redis}");
}

#[test]
fn what_a_script_leaves_out_is_named_with_its_choices() {
    let world = World::new();
    let finished = world.finish(&["advise", "--shared", "yes"]);
    assert_eq!(finished.code, 64);
    assert!(finished.stderr.contains("Say --need state|request|pieces|rate|job"), "{}", finished.stderr);
    let finished = world.finish(&["advise", "--shared", "perhaps"]);
    assert_eq!(finished.code, 64);
    let beside = world.finish(&["advise", "--shared", "no", "--breach", "data"]);
    assert_eq!(beside.code, 64);
    assert!(beside.stderr.contains("--breach is not asked on this way"), "{}", beside.stderr);
    let unknown = finish(world.command(&["advise", "--shared", "no"]).env("FENCEPOST_STORE", "nosuch://host"));
    assert_eq!(unknown.code, 64);
}

#[test]
fn on_a_terminal_it_asks_by_name_or_number_and_again_after_a_wrong_one() {
    let world = World::new();
    let talk = r#"{ printf 'maybe\nyes\n5\nwork\n'; } | script -qec "$FENCEPOST advise" /dev/null"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", talk]).env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost")).env("FENCEPOST_STORE", &world.store);
    shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let finished = finish(shell.stderr(std::process::Stdio::piped()));
    assert_eq!(finished.code, 0, "{}", finished.stdout);
    assert!(finished.stdout.contains(r#""maybe" is no answer to "shared"; there are no, yes"#), "{}", finished.stdout);
    assert!(finished.stdout.contains("Efficiency lock"), "{}", finished.stdout);
    assert!(finished.stdout.contains("directory is a store for correctness (one host): it serves this."));
}
