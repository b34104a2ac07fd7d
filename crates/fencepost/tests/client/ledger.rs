//! The ledger example, on real stores: exact where the class promises it, and honest where it does not.

use std::process::Command;

use fencepost_servers::RedisServer;
use serde_json::Value;

/// The result of the example, whose exit code must be 0.
fn ledger(arguments: &[&str]) -> Value {
    let output = Command::new(crate::example("ledger")).args(arguments).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{}", output.status, String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn f1_the_ledger_is_exact_on_a_directory_under_kills_pauses_and_robberies() {
    let result = ledger(&["--seed", "1"]);
    assert_eq!((&result["exact"], &result["balance"], &result["lost"]), (&true.into(), &1600.into(), &0.into()));
    assert!(result["kills"].as_u64() > Some(0) && result["pauses"].as_u64() > Some(0), "{result}");
}

#[test]
fn f1_the_ledger_counts_what_is_lost_without_fences() {
    let server = RedisServer::start();
    let result = ledger(&["--seed", "1", "--increments", "100", "--store", &server.url()]);
    let number = |field: &str| result[field].as_u64().unwrap();
    assert_eq!((&result["fenced"], number("refused")), (&false.into(), 0));
    // A write that is accepted and not counted in the balance is what the class cannot exclude.
    assert!(number("written") >= 800 && number("balance") + number("lost") == number("written"), "{result}");
}
