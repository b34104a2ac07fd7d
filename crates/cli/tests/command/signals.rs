use rustix::process::Signal;

use crate::world::{World, is_alive};

const SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1];

/// Case 38 (consul 797; etcdctl swallows them): what the command makes of a signal is passed on.
#[test]
fn case_38_a_signal_reaches_the_commands_whole_group_and_its_code_comes_back() {
    let world = World::new();
    for signal in SIGNALS {
        // The shell's child is in the group as well, and dies of it or the test hangs.
        let script = format!("trap 'exit 42' {}; echo ready; sleep 1000 & wait $!; wait", signal.as_raw());
        let mut running = world.run(&[], "a", &script);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.ended().code, 42, "{signal:?}");
        assert!(world.who("a")["holders"].as_array().unwrap().is_empty());
    }
    let mut running = world.run(&[], "a", "echo ready; exec sleep 1000");
    assert_eq!(running.line(), "ready");
    running.signal(Signal::TERM);
    assert_eq!(running.ended().code, 143);
}

/// Case 38: the place in the queue goes with the one who waits.
#[test]
fn case_38_a_signal_while_waiting_leaves_the_queue() {
    let world = World::new();
    let mut holder = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    for signal in SIGNALS {
        let waiter = world.run(&["--json"], "a", "echo ran");
        world.await_waiters("a", 1);
        waiter.signal(signal);
        let finished = waiter.ended();
        assert_eq!((finished.code, finished.stdout.as_str()), (128 + signal.as_raw(), ""), "{}", finished.stderr);
        assert_eq!(finished.ending()["outcome"], "interrupted");
        assert!(world.who("a")["waiters"].as_array().unwrap().is_empty(), "{signal:?}");
    }
    holder.signal(Signal::TERM);
    holder.ended();
}

#[test]
fn a_signal_that_nohup_made_ignored_stays_ignored() {
    let world = World::new();
    let mut command = std::process::Command::new("sh");
    let script =
        format!("trap '' HUP; exec {} run a -- sh -c 'echo ready; read x; exit 6'", env!("CARGO_BIN_EXE_fencepost"));
    command.args(["-c", &script]).env("FENCEPOST_STORE", &world.store);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut stdout, &mut ready).unwrap();
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    assert!(is_alive(pid));
    drop(stdin); // the command's `read` ends, and it with code 6
    assert_eq!(child.wait().unwrap().code(), Some(6));
}
