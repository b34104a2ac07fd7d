//! T2: which of the kernel's clocks it is that deadlines are read on.
//!
//! `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` differ only by the time that the machine was suspended, which a test cannot
//! do to the machine it runs on. A time namespace can shift one without the other, so the test runs itself once more
//! in there.
#![cfg(target_os = "linux")]

use std::{io::Write, process::Command, time::Duration};

use fencepost_core::clock::{BootClock, Clock, sleep};

const INSIDE: &str = "FENCEPOST_TEST_SHIFTED";
/// Eleven days asleep, in seconds.
const ASLEEP: u64 = 1_000_000;

#[test]
fn t2_the_clock_and_its_timers_count_time_asleep() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let test = std::env::current_exe().expect("this test's executable");
    let shifted = |user: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(user).args(["--time", "--boottime", &ASLEEP.to_string(), "--fork", "--"]);
        command
    };
    // As root, or as the root of a user namespace where those are allowed.
    let ways: [&[&str]; 2] = [&[], &["--map-root-user"]];
    let Some(way) =
        ways.into_iter().find(|way| shifted(way).arg("true").output().is_ok_and(|out| out.status.success()))
    else {
        let said = "boot_clock: does not apply: no right to make a time namespace (run as root to prove T2)";
        let _ = writeln!(std::io::stderr(), "{said}");
        return;
    };
    let name = "t2_the_clock_and_its_timers_count_time_asleep";
    let run = shifted(way).arg(test).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output();
    let run = run.expect("this test, once more");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

fn inside() {
    let now = Duration::from_nanos(BootClock.now().as_nanos());
    assert!(now.as_secs() >= ASLEEP, "the clock stood still while the machine was asleep: {now:?}");
    let uptime = std::fs::read_to_string("/proc/uptime").expect("the kernel's own account");
    let uptime: f64 = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
    assert!((uptime - now.as_secs_f64()).abs() < 60.0, "{uptime} s up, and the clock says {now:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        // A timer of another clock would end at once, or in eleven days.
        let nap = Duration::from_millis(50);
        let before = BootClock.now();
        let slept = tokio::time::timeout(Duration::from_secs(20), sleep(&BootClock, nap)).await;
        slept.expect("a timer of the same clock");
        assert!(BootClock.now().since(before) >= nap);
    });
}
