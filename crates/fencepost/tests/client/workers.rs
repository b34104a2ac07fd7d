//! The workers example: jobs that move when a worker is killed, with one owner at a time.

use std::process::Command;

use serde_json::Value;

#[test]
fn f1_every_job_of_a_killed_worker_is_taken_over_and_each_has_one_owner_at_a_time() {
    let output = Command::new(crate::example("workers")).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let jobs = report["jobs"].as_object().unwrap();
    assert_eq!(jobs.keys().collect::<Vec<_>>(), ["A", "B", "C", "D", "E", "F"]);
    for (job, stretches) in jobs {
        let stretches = stretches.as_array().unwrap();
        let (mut next, mut fence) = (1, 0);
        for stretch in stretches {
            assert_eq!(stretch["first"], next, "{job}: {report}");
            assert!(stretch["fence"].as_u64() > Some(fence), "{job}: {report}");
            (next, fence) = (stretch["last"].as_u64().unwrap() + 1, stretch["fence"].as_u64().unwrap());
        }
        assert_eq!(next, 61, "{job} is done: {report}");
    }
    // It had begun A and cannot have finished it.
    assert_eq!(jobs["A"][0]["worker"], report["killed"], "{report}");
    assert_ne!(jobs["A"].as_array().unwrap().last().unwrap()["worker"], report["killed"], "{report}");
}
