use std::{collections::HashMap, time::Duration};

use fencepost::{Attempt, LockName, Locks};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::held;

#[test]
fn metrics_count_what_happened() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(one_of_each()));

    let mut seen = HashMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let count = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(_) => continue,
        };
        *seen.entry(key.key().name().to_owned()).or_insert(0) += count;
    }
    let expected = [
        ("fencepost_acquired_total", 2),
        ("fencepost_busy_total", 2),
        ("fencepost_waited_seconds", 1),
        ("fencepost_held_seconds", 2),
        ("fencepost_lost_total", 1),
    ];
    for (name, count) in expected {
        assert_eq!(seen.get(name), Some(&count), "{name} in {seen:?}");
    }
}

async fn one_of_each() {
    let builder = Locks::builder("memory:observed").observed();
    let locks = builder.open().await.unwrap().fenced().unwrap();
    let mut first = held(locks.lock("a").acquire().await.unwrap());
    assert!(matches!(locks.lock("a").wait(Duration::ZERO).acquire().await.unwrap(), Attempt::Busy(_)));
    let (second, released) = tokio::join!(locks.lock("a").acquire(), async {
        tokio::task::yield_now().await;
        first.release().await
    });
    released.unwrap();
    let mut second = held(second.unwrap());
    locks.store().force(&LockName::new("a").unwrap(), None).await.unwrap();
    second.lost().await;
    second.release().await.unwrap();
    locks.close().await;
}
