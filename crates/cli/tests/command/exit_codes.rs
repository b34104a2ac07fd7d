use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::world::World;

#[test]
fn the_commands_own_code_is_passed_on() {
    let world = World::new();
    for code in [0, 1, 3, 64, 75, 255] {
        assert_eq!(world.run(&[], "a", &format!("exit {code}")).ended().code, code);
    }
}

/// Case 41 (util-linux 1180): the codes of shells.
#[test]
fn case_41_a_killed_a_broken_and_a_missing_command_are_told_apart() {
    let world = World::new();
    assert_eq!(world.run(&[], "a", "kill -9 $$").ended().code, 137);
    assert_eq!(world.run(&[], "a", "kill -TERM $$").ended().code, 143);
    let broken = world.finish(&["run", "a", "--", "/etc/passwd"]);
    assert_eq!((broken.code, broken.stderr.lines().count()), (126, 1), "{}", broken.stderr);
    let missing = world.finish(&["run", "a", "--", "no-such-command-here"]);
    assert_eq!((missing.code, missing.stderr.lines().count()), (127, 1), "{}", missing.stderr);
    assert!(world.who("a")["holders"].as_array().unwrap().is_empty());
}

#[test]
fn a_script_without_a_first_line_runs_as_in_a_shell() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let script = world.directory.path().join("script");
    std::fs::write(&script, "echo \"$1\"; exit 4\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let finished = world.finish(&["run", "a", "--", script.to_str().unwrap(), "an argument"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (4, "an argument\n"), "{}", finished.stderr);
}

#[test]
fn bad_input_gets_one_line_and_64() {
    let world = World::new();
    let long = "x".repeat(513);
    let labels: Vec<_> = (0..9).map(|n| format!("key{n}={}", "x".repeat(250))).collect();
    let many: Vec<_> = labels.iter().flat_map(|label| ["--label", label]).collect();
    let bad: &[&[&str]] = &[
        &[],
        &["no-such-verb"],
        &["run"],
        &["run", "a"],
        &["run", "a", "--"],
        &["run", "a", "true"],
        &["run", "--", "a", "--", "true"],
        &["run", "a", "--", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "a\nb", "--", "true"],
        &["run", &long, "--", "true"],
        &["run", "--ttl", "0s", "a", "--", "true"],
        &["run", "--ttl", "366d", "a", "--", "true"],
        &["run", "--ttl", "5", "a", "--", "true"],
        &["run", "--wait", "-1s", "a", "--", "true"],
        &["run", "--grace", "30s", "a", "--", "true"],
        &["run", "--ttl", "2s", "--grace", "3s", "a", "--", "true"],
        &["run", "--max-hold", "1s", "--min-hold", "2s", "a", "--", "true"],
        &["run", "--label", "nothing", "a", "--", "true"],
        &["run", "--label", "a=1", "--label", "a=2", "a", "--", "true"],
        &[&["run"], &many[..], &["a", "--", "true"]].concat(),
        &["acquire", "--label", "a=1", "--label", "a=2", "a"],
        &["--store", "", "run", "a", "--", "true"],
        &["run", "--on-lost", "perhaps", "a", "--", "true"],
        &["run", "--busy-code", "256", "a", "--", "true"],
        &["--store", "carrier-pigeon:x", "run", "a", "--", "true"],
        &["--store", "no-scheme", "run", "a", "--", "true"],
        &["--store", "file:relative", "run", "a", "--", "true"],
        &["--store", "file:/tmp?no-such-option=1", "run", "a", "--", "true"],
        &["--namespace", "", "run", "a", "--", "true"],
        &["check", "a", "--owner", "not-an-owner"],
        &["break", "a", "--if-fence", "0"],
        &["acquire", "a", "--no-keep", "--detach"],
    ];
    for arguments in bad {
        let finished = world.finish(arguments);
        let lines = finished.stderr.lines().count();
        assert_eq!((finished.code, lines), (64, 1), "{arguments:?} said {:?}", finished.stderr);
        assert!(finished.stdout.is_empty());
    }
}

#[test]
fn what_is_refused_is_told_to_programs_as_well() {
    let world = World::new();
    for arguments in [&["--json"][..], &["run", "--json", "a"], &["ls", "--json", "--no-such-flag"]] {
        let refused = world.finish(arguments);
        assert_eq!((refused.code, &refused.ending()["outcome"]), (64, &"usage".into()), "{}", refused.stderr);
    }
    // Here it is the command's.
    let refused = world.finish(&["run", "--ttl", "0s", "a", "--", "true", "--json"]);
    assert_eq!((refused.code, refused.stderr.lines().count()), (64, 1), "{}", refused.stderr);
}

const VERBS: [&str; 19] = [
    "run",
    "once",
    "elect",
    "advise",
    "acquire",
    "renew",
    "check",
    "release",
    "ls",
    "who",
    "break",
    "watch",
    "observe",
    "migrate",
    "fence-table",
    "bench",
    "lab",
    "completions",
    "man",
];

#[test]
fn help_goes_to_stdout_and_shows_an_example_for_every_verb() {
    let world = World::new();
    let whole = world.finish(&["-h"]).stdout;
    let listed = whole.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let listed: Vec<_> =
        listed.filter(|line| !line.starts_with("   ")).map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, VERBS.into_iter().chain(["help"]).map(Some).collect::<Vec<_>>());
    for flag in ["-h", "--help"] {
        for verb in VERBS.map(Some).into_iter().chain([None]) {
            let arguments: Vec<_> = verb.into_iter().chain([flag]).collect();
            let help = world.finish(&arguments);
            assert_eq!(help.code, 0);
            assert!(help.stdout.contains("\nExample: ") || help.stdout.contains("\nExamples:\n"), "{verb:?}");
            // The store's URL stands in the environment and may hold a password.
            assert!(!help.stdout.contains(&world.store), "{verb:?}");
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        let completions = world.finish(&["completions", shell]).stdout;
        assert!(["fencepost", "elect", "permits", "once-per"].iter().all(|word| completions.contains(word)), "{shell}");
    }
}

#[test]
fn the_help_lists_the_stores_of_this_build_that_other_processes_can_see() {
    let help = World::new().finish(&["run", "--help"]).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for scheme in fencepost::registry::SCHEMES {
        let listed = help.contains(&format!(" {}:", scheme.names[0]));
        assert_eq!(listed, scheme.names != fencepost::memory::SCHEME.names, "{}: {help}", scheme.names[0]);
    }
}

#[test]
fn there_is_a_manual_page_for_the_whole_and_for_every_verb() {
    let world = World::new();
    let whole = world.finish(&["man"]).stdout;
    assert!(whole.contains(".TH fencepost 1") && whole.contains(".SH EXIT CODES\n"), "{whole}");
    for verb in VERBS {
        // The page that the whole's refers to.
        assert!(whole.contains(&format!("fencepost\\-{}(1)", verb.replace('-', "\\-"))), "{verb}");
        let page = world.finish(&["man", verb]).stdout;
        assert!(page.contains(&format!(".TH fencepost-{verb} 1")), "{verb}: {page}");
        assert!(page.contains(".SH EXAMPLE") && page.contains("\\-\\-store"), "{verb}: {page}");
    }
    assert_eq!(world.finish(&["man", "no-such-verb"]).code, 64);
}

#[test]
fn verbose_logs_each_step_on_stderr_without_colours_for_a_file_and_without_the_owner_value() {
    let world = World::new();
    assert_eq!(world.run(&[], "a", "true").ended().stderr, "");
    let logged = world.run(&["-v"], "a", "echo $FENCEPOST_OWNER").ended();
    for part in ["claim{lock=a}", "release{lock=a}"] {
        assert!(logged.stderr.contains(part), "no {part} in {:?}", logged.stderr);
    }
    assert!(!logged.stderr.contains('\u{1b}') && !logged.stderr.contains(logged.stdout.trim()), "{:?}", logged.stderr);
    let more = world.run(&["-vv"], "a", "true").ended();
    assert!(more.stderr.lines().count() > logged.stderr.lines().count(), "{:?}", more.stderr);
}

/// Case 43: wanted by users of flock, consul and terraform.
#[test]
fn case_43_busy_is_told_at_once_with_who_since_when_and_for_how_long_yet() {
    let world = World::new();
    let mut holder = world.run(&["--label", "job=nightly"], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    let began = Instant::now();
    let busy = world.finish(&["run", "--wait", "0s", "a", "--", "true"]);
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!((busy.code, busy.stderr.lines().count()), (75, 1), "{}", busy.stderr);
    for part in [
        "a is held by",
        &format!("pid {}", holder.pid().as_raw_pid()),
        "job=nightly",
        "since",
        "until it is given back",
    ] {
        assert!(busy.stderr.contains(part), "no {part:?} in {:?}", busy.stderr);
    }
    let other = world.finish(&["--json", "run", "--wait", "0s", "--busy-code", "9", "a", "--", "true"]);
    assert_eq!((other.code, other.ending()["outcome"].as_str()), (9, Some("busy")));
    assert_eq!(world.finish(&["-q", "run", "--wait", "0s", "a", "--", "true"]).stderr, "");
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.ended().code, 143);
}

#[test]
fn t3_the_waiting_time_ends_a_wait_neither_at_once_nor_late() {
    let world = World::new();
    let mut holder = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    let began = Instant::now();
    assert_eq!(world.finish(&["run", "--wait", "400ms", "a", "--", "true"]).code, 75);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
    assert!(world.who("a")["waiters"].as_array().unwrap().is_empty());
    holder.signal(rustix::process::Signal::KILL);
    holder.ended();
}

/// Case 3 (rslock 0.10, pottery 404): unavailable is never busy and never endless.
#[test]
fn case_3_a_store_that_cannot_be_reached_or_does_not_answer_is_unavailable_within_the_waiting_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = { TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    for address in [silent.local_addr().unwrap(), closed] {
        let world = World::on(format!("redis://someone:hunter2@{address}"));
        for wait in ["1s", "0s"] {
            let began = Instant::now();
            let finished = world.finish(&["--json", "run", "--wait", wait, "a", "--", "true"]);
            assert_eq!(finished.code, 69, "{}", finished.stderr);
            assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
            assert_eq!(finished.ending()["outcome"], "unavailable");
            assert!(!finished.stderr.contains("hunter2"), "{}", finished.stderr);
        }
    }
}

#[test]
fn c4_a_file_where_the_directory_should_be_is_told_and_left_alone() {
    let world = World::new();
    let path = world.directory.path().join("locks");
    std::fs::write(&path, "precious").unwrap();
    let finished = world.finish(&["run", "--wait", "0s", "a", "--", "true"]);
    assert_eq!((finished.code, finished.stderr.lines().count()), (70, 1), "{}", finished.stderr);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn with_json_the_last_line_tells_outcome_fence_waited_and_held() {
    let world = World::new();
    let mut fences = Vec::new();
    for code in [0, 7] {
        let finished = world.run(&["--json", "--min-hold", "300ms"], "a", &format!("exit {code}")).ended();
        let ending = finished.ending();
        assert_eq!((finished.code, &ending["outcome"], &ending["exit_code"]), (code, &"ended".into(), &code.into()));
        assert!(ending["held_ms"].as_u64().unwrap() >= 300 && ending["waited_ms"].is_u64(), "{ending}");
        fences.push(ending["fence"].as_u64().unwrap());
    }
    assert!(fences[0] < fences[1], "{fences:?}");
}
