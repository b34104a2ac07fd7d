use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::world::{LONG, Running, World, ends_within, eventually, finish, is_alive};

const DOUBLE: &str = r#"{"at":1000,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
{"at":2000,"by":"a","event":"ok","answer":"granted","ttl":9000000000,"until":8000000000}
{"at":3000,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
{"at":4000,"by":"b","event":"ok","answer":"granted","ttl":9000000000,"until":8000000000}
"#;

#[test]
fn a_scenario_is_played_reported_and_rendered_again() {
    let world = World::new();
    let out = world.directory.path().join("out");
    let out = out.to_str().unwrap();
    let played = world.finish(&["lab", "run", "kleppmann-pause", "--store", "file", "--seed", "3", "--out", out]);
    assert_eq!(played.code, 0, "{}", played.stderr);
    assert!(played.stdout.starts_with("OVERLAP-FENCED "), "{}", played.stdout);
    let history = format!("{out}/kleppmann-pause.file.3.jsonl");
    let checked = world.finish(&["lab", "check", &history]);
    assert_eq!(checked.code, 42, "{}", checked.stdout);
    assert!(checked.stdout.contains("refused what came late from a"), "{}", checked.stdout);

    let page = fs::read_to_string(format!("{out}/report.html")).unwrap();
    fs::remove_file(format!("{out}/report.html")).unwrap();
    assert_eq!(world.finish(&["lab", "report", out]).code, 0);
    assert_eq!(fs::read_to_string(format!("{out}/report.html")).unwrap(), page, "the same from the files alone");
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "{outside} reaches outside of the page");
    }
}

#[test]
fn an_unknown_scenario_or_store_names_the_nearest() {
    let world = World::new();
    let refused = world.finish(&["lab", "run", "klepman-pause"]);
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("did you mean kleppmann-pause?"), "{}", refused.stderr);
    let refused = world.finish(&["lab", "list", "--store", "rediss"]);
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("redis"), "{}", refused.stderr);
    // The store of everyday use is left alone.
    let listed = world.finish(&["lab", "list"]);
    assert_eq!(listed.code, 0);
    assert!(listed.stderr.contains("servers of its own"), "{}", listed.stderr);
    assert!(listed.stdout.contains("kleppmann-pause"));
}

#[test]
fn a_history_is_judged_and_broken_lines_are_named() {
    let world = World::new();
    let file = world.directory.path().join("history.jsonl");
    let name = file.to_str().unwrap();
    fs::write(&file, DOUBLE).unwrap();
    let judged = world.finish(&["lab", "check", name]);
    assert_eq!(judged.code, 40, "{}", judged.stderr);
    assert!(judged.stdout.starts_with("lines 2 and 4: "), "{}", judged.stdout);

    fs::write(&file, format!("{DOUBLE}{{\"at\":5000,\"by\":\"b\"")).unwrap();
    let refused = world.finish(&["lab", "check", name]);
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("line 5: it ends in the middle"), "{}", refused.stderr);
    assert_eq!(world.finish(&["lab", "check", "--rest", name]).code, 40);

    let missing = world.finish(&["lab", "check", "/no/such/file"]);
    assert_eq!(missing.code, 64, "{}", missing.stderr);
}

#[test]
fn a_job_that_is_not_idempotent_is_found_by_running_it_twice() {
    let world = World::new();
    let data = world.directory.path().join("data");
    fs::create_dir(&data).unwrap();
    let data = data.to_str().unwrap();
    let same = world.finish(&["lab", "twice", "--dir", data, "--", "sh", "-c", "echo 1 > state"]);
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    let differs = world.finish(&["lab", "twice", "--dir", data, "--", "sh", "-c", "echo 1 >> state"]);
    assert_eq!(differs.code, 41, "{}", differs.stderr);
    assert!(differs.stdout.contains("state: has another content"), "{}", differs.stdout);
    let failed = world.finish(&["lab", "twice", "--dir", data, "--", "false"]);
    assert_eq!(failed.code, 70, "{}", failed.stderr);
    for (command, code) in [("no-such-command", 127), ("/dev/null", 126)] {
        assert_eq!(world.finish(&["lab", "twice", "--dir", data, "--", command]).code, code, "{command}");
    }
    assert_eq!(fs::read_dir(data).unwrap().count(), 0, "the directory itself is left alone");
}

#[test]
fn what_differs_is_told_to_programs_as_well() {
    let world = World::new();
    let data = world.directory.path().join("data");
    fs::create_dir(&data).unwrap();
    let data = data.to_str().unwrap();
    let told = world.finish(&["lab", "twice", "--json", "--dir", data, "--", "sh", "-c", "echo said; echo 1 >> state"]);
    assert_eq!(told.code, 41, "{}", told.stderr);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["once"]["code"], 0);
    assert_eq!(told["differences"][0]["what"], "state");
    assert_eq!(told["differences"][0]["how"], "content");
}

#[test]
fn an_interrupted_comparison_leaves_neither_copies_nor_jobs() {
    let world = World::new();
    let (data, copies) = (world.directory.path().join("data"), world.directory.path().join("copies"));
    fs::create_dir(&data).unwrap();
    fs::create_dir(&copies).unwrap();
    let pid = world.directory.path().join("pid");
    let script = format!("sleep 61 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
    let mut twice = world.command(&["lab", "twice", "--dir", data.to_str().unwrap(), "--", "sh", "-c", &script]);
    let running = Running::of(twice.env("TMPDIR", &copies));
    eventually(|| pid.exists());
    let job = Pid::from_raw(fs::read_to_string(&pid).unwrap().trim().parse().unwrap()).unwrap();
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 1);
    running.signal(Signal::INT);
    assert_eq!(running.ended().code, 130);
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 0, "the copies are removed");
    assert!(ends_within(job, LONG), "the job outlived the laboratory");
}

#[test]
fn histories_of_other_tools_are_named_as_such_and_an_empty_one_proves_nothing() {
    let world = World::new();
    let file = world.directory.path().join("history");
    let name = file.to_str().unwrap();
    let jepsen = "{:process 0, :type :invoke, :f :acquire, :value nil}\n";
    let trace = "{\"type\":\"invoke\",\"f\":\"acquire\",\"process\":0}\n";
    let porcupine = "{\"ClientId\":0,\"Input\":1,\"Call\":3,\"Output\":2,\"Return\":5}\n";
    let pictures = "\u{1}\u{2}PNG\n";
    for (foreign, called) in
        [(jepsen, "as EDN"), (trace, "as JSON"), (porcupine, "Porcupine"), (pictures, "binary file")]
    {
        fs::write(&file, foreign.repeat(3)).unwrap();
        for verb in ["check", "report"] {
            let refused = world.finish(&["lab", verb, "--rest", name]);
            assert_eq!(refused.code, 64);
            let said = refused.stderr;
            assert!(said.contains(called) && said.contains("line 1: ") && said.contains("\"event\""), "{said}");
        }
    }
    fs::write(&file, "").unwrap();
    assert_eq!(world.finish(&["lab", "check", name]).code, 45);
    let directory = world.finish(&["lab", "check", world.directory.path().to_str().unwrap()]);
    assert_eq!((directory.code, directory.stderr.contains("is a directory")), (64, true), "{}", directory.stderr);
}

#[test]
fn what_is_listed_is_told_to_programs_as_well() {
    let world = World::new();
    let told = world.finish(&["lab", "list", "--json", "--store", "etcd/naive,file"]);
    let told: Vec<serde_json::Value> = serde_json::from_str(&told.stdout).unwrap();
    let pause = told.iter().find(|one| one["scenario"] == "kleppmann-pause").unwrap();
    let of = |store: &str| pause["stores"].as_array().unwrap().iter().find(|on| on["store"] == store).unwrap();
    assert_eq!(of("file")["expected"], "OVERLAP-FENCED");
    assert_eq!(of("etcd/naive")["expected"], "OVERLAP");
}

#[test]
fn somebodys_own_history_becomes_a_page() {
    let world = World::new();
    let file = world.directory.path().join("mine.jsonl");
    let name = file.to_str().unwrap();
    fs::write(&file, DOUBLE.replace("\"by\":\"a\"", "\"by\":\"<script>\"")).unwrap();
    let drawn = world.finish(&["lab", "report", name]);
    assert_eq!(drawn.code, 0, "{}", drawn.stderr);
    let page = fs::read_to_string(format!("{name}.html")).unwrap();
    assert!(page.contains("DOUBLE-GRANT") && page.contains("lines 2 and 4: ") && page.contains("<svg"), "{page}");
    assert!(!page.contains("<script"), "names are text");
    let elsewhere = world.directory.path().join("page.html");
    assert_eq!(world.finish(&["lab", "report", name, "--out", elsewhere.to_str().unwrap()]).code, 0);
    assert_eq!(fs::read_to_string(elsewhere).unwrap(), page);
    let nowhere = world.finish(&["lab", "report", name, "--out", "/no/such/directory/page.html"]);
    assert_eq!(nowhere.code, 70, "{}", nowhere.stderr);
}

#[test]
fn limits_on_ones_own_history_are_kept_to() {
    let world = World::new();
    let file = world.directory.path().join("history.jsonl");
    let name = file.to_str().unwrap();
    let second = r#"{"at":1,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
{"at":2,"by":"a","event":"ok","answer":"granted","ttl":100000000,"until":90000000}
{"at":3,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
{"at":4,"by":"a","event":"died"}
{"at":300000000,"by":"b","event":"ok","answer":"granted","ttl":1000000000,"until":900000000}
"#;
    fs::write(&file, second).unwrap();
    assert_eq!(world.finish(&["lab", "check", name]).code, 0);
    for limit in [["--slowest-recovery", "200ms"], ["--longest-idle", "200ms"]] {
        assert_eq!(world.finish(&["lab", "check", name, limit[0], limit[1]]).code, 43, "{limit:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_to_is_told_before_anything_is_played() {
    let world = World::new();
    let file = world.directory.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = world.finish(&["lab", "run", "contention", "--store", "file", "--out", file.to_str().unwrap()]);
    assert_eq!((refused.code, refused.stdout.as_str()), (70, ""), "{}", refused.stderr);
}

#[test]
fn a_server_that_is_missing_is_named_with_its_package_and_never_counts_as_success() {
    let world = World::new();
    for (store, package) in [("redis", "redis-server"), ("etcd", "etcd-server"), ("zookeeper", "default-jre-headless")]
    {
        let mut run = world.command(&["lab", "run", "contention", "--store", store]);
        let run = run.env("PATH", world.directory.path()).env("TMPDIR", world.directory.path()).output().unwrap();
        assert_eq!(run.status.code(), Some(46), "{store}");
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(said.starts_with("NOT-RUN") && said.contains(&format!("install the package {package}")), "{said}");
    }
}

#[test]
fn a_server_of_another_version_is_told() {
    let world = World::new();
    let other = world.directory.path().join("redis-server");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'Redis server v=99.1.2 sha=0'\nPATH=${PATH#*:}\nexec redis-server \"$@\"\n";
    fs::write(&other, script).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", world.directory.path().display(), std::env::var("PATH").unwrap());
    let mut run = world.command(&["lab", "run", "contention", "--store", "redis/naive"]);
    let run = run.env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("Redis 99.1.2 is installed; what is expected was seen on Redis 7.0"), "{said}");
    assert_eq!(run.status.code(), Some(0), "it is played all the same");
}

#[test]
fn an_interrupted_laboratory_leaves_no_server_behind() {
    let world = World::new();
    let running = world.start(&["lab", "run", "server-frozen", "--store", "redis"]);
    let mut server = None;
    eventually(|| {
        server = child_called("redis-server", running.pid());
        server.is_some()
    });
    running.signal(Signal::TERM);
    assert_eq!(running.ended().code, 143);
    assert!(ends_within(server.unwrap(), LONG), "the server outlived the laboratory");
}

#[test]
fn a_network_is_cut_by_relays_where_that_is_asked_for_and_it_is_said() {
    let world = World::new();
    let played = world.finish(&["lab", "run", "cut-off", "--store", "redis/naive", "--cut-by", "relays"]);
    assert_eq!(played.code, 0, "{}{}", played.stdout, played.stderr);
    assert!(played.stderr.contains("relays were asked for; cut by relays instead"), "{}", played.stderr);
}

/// As a user that may do nothing else: the machine decides whether there are user namespaces for him.
#[test]
fn who_is_not_root_cuts_networks_in_a_user_namespace_or_is_told_why_not() {
    let world = World::new();
    let out = world.directory.path().join("out");
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut run = world.command(&["lab", "run", "cut-off", "--store", "postgres", "--out", out.to_str().unwrap()]);
    if rustix::process::geteuid().is_root() {
        run.uid(65534).gid(65534);
    }
    let played = finish(run.env("TMPDIR", world.directory.path()).env("HOME", world.directory.path()));
    assert_eq!(played.code, 0, "{}{}", played.stdout, played.stderr);
    let by_kernel = played.stderr.contains("networks are cut by the kernel");
    if !by_kernel {
        eprintln!("SKIPPED, no user namespaces here: {}", played.stderr);
        let why = played.stderr.contains("no privileges for network namespaces: ");
        assert!(why && played.stderr.contains("; cut by relays instead"), "{}", played.stderr);
    }
    let histories = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path());
    for history in histories.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")) {
        let history = fs::read_to_string(history).unwrap();
        let way = if by_kernel { "cut off from the store, by network namespaces" } else { "cut by relays instead" };
        assert!(history.contains(way), "{history}");
    }
}

#[test]
fn a_killed_laboratory_leaves_no_network_behind() {
    let world = World::new();
    let running =
        world.start(&["lab", "run", "leader-in-a-minority", "--store", "etcd-cluster", "--cut-by", "namespaces"]);
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let machine = network("self").unwrap();
    let mut networks = None;
    // A member that does not come up is started anew, so that each may be gone the next moment.
    eventually(|| {
        let of = |pid: Pid| network(&pid.as_raw_nonzero().to_string());
        let both = child_called("etcd", running.pid()).and_then(|member| Some([of(running.pid())?, of(member)?]));
        networks = both.filter(|[ours, member]| ours != member && *ours != machine && *member != machine);
        networks.is_some() || !is_alive(running.pid())
    });
    let Some(networks) = networks else {
        return eprintln!("SKIPPED, no namespaces here: {}", running.ended().stderr);
    };
    running.signal(Signal::KILL);
    running.ended();
    let processes = || fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    eventually(|| !processes().filter_map(|pid| network(&pid)).any(|network| networks.contains(&network)));
}

#[test]
fn what_a_server_said_is_kept_where_something_went_wrong() {
    let world = World::new();
    let out = world.directory.path().join("out");
    let running = world.start(&["lab", "run", "contention", "--store", "redis/naive", "--out", out.to_str().unwrap()]);
    // Its clients come when it serves.
    eventually(|| child_called("(fencepost", running.pid()).is_some());
    kill_process(child_called("redis-server", running.pid()).unwrap(), Signal::KILL).unwrap();
    assert!((40..48).contains(&running.ended().code), "the server was killed under it");
    let logs = fs::read_dir(&out).unwrap().filter_map(|file| Some(file.ok()?.path()));
    let logs: Vec<_> = logs.filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect();
    assert!(!logs.is_empty(), "{:?}", fs::read_dir(&out).unwrap().collect::<Vec<_>>());
    assert!(fs::read_to_string(&logs[0]).unwrap().contains("Ready to accept connections"));
}

/// A child of `parent` that runs this program.
fn child_called(program: &str, parent: Pid) -> Option<Pid> {
    let line_of = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).ok();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_one = |pid: &i32| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        // The name stands in parentheses; the parent is the second field behind it.
        let Some((before, after)) = stat.rsplit_once(") ") else { return false };
        let its_parent = after.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()).and_then(Pid::from_raw);
        // The laboratory asks programs for their versions before it does anything else.
        let asked = || line_of(*pid).is_some_and(|line| line.ends_with(b"--version\0"));
        // A copy of the laboratory, for a moment, until it runs what it was made for.
        let copied = || line_of(*pid) == line_of(parent.as_raw_nonzero().get());
        before.ends_with(program) && its_parent == Some(parent) && !asked() && !copied()
    };
    processes.into_iter().find(is_one).and_then(Pid::from_raw)
}
