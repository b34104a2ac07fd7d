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

/// The SQL and the Redis commands are tried in the tests of `fencepost-patterns`, on real servers.
#[test]
fn the_shell_of_every_answer_does_what_it_says() {
    let answers = fencepost::patterns::choosing::TREE.answers();
    let texts = answers.iter().flat_map(|answer| answer.by_hand).filter(|text| text.language == "sh");
    let mut tried = 0;
    for text in texts.map(|text| text.text) {
        let world = World::new();
        let script = text.split("./").nth(1).and_then(|rest| rest.split_once(".sh")).expect("it starts a script").0;
        let path = world.directory.path().join(format!("{script}.sh"));
        std::fs::write(&path, "#!/bin/sh\ntouch ran\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let ours = std::path::Path::new(env!("CARGO_BIN_EXE_fencepost")).parent().unwrap();
        let mut shell = world.command(&[]);
        let variables: Vec<_> =
            shell.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        shell = std::process::Command::new("sh");
        shell.args(["-c", text]).current_dir(world.directory.path()).envs(variables);
        shell.env("PATH", format!("{}:{}", ours.display(), std::env::var("PATH").unwrap()));
        shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        let finished = finish(shell.stderr(std::process::Stdio::piped()));
        assert_eq!(finished.code, 0, "{text}: {}", finished.stderr);
        assert!(world.directory.path().join("ran").exists(), "{text}");
        tried += 1;
    }
    assert!(tried >= 4);
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
