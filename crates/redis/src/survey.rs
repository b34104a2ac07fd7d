//! Looking without changing: the first greeting and the listing of locks.

use std::{collections::HashMap, time::Duration};

use fencepost_core::{
    claim::{Holder, LockState, Waiter},
    error::{Applied, ErrorKind},
    name::LockName,
    owner::OWNER_BYTES,
};
use futures_util::future::join_all;
use redis::{FromRedisValue, Pipeline, Value, cmd, pipe};

use crate::{
    connection::Link,
    failure::{Failure, field},
    keys::Keys,
    nodes::Nodes,
    record::{Crowd, LockRecord, WaiterRecord},
};

/// Keys that the server looks at for one answer of a scan.
const SCAN_COUNT: usize = 1000;
/// The limit for a look that only warns.
const LOOK_WITHIN: Duration = Duration::from_millis(500);
/// An owner value as text.
const OWNER_HEX: usize = 2 * OWNER_BYTES;
/// Locks read by one pipeline.
const READ_AT_ONCE: usize = 100;

/// Finds out whether the server answers, is one that locks can live in, and can be trusted to keep what it is told.
pub(crate) async fn greet(link: &Link) -> Result<(), Failure> {
    let mut questions = pipe();
    questions.cmd("PING").cmd("INFO");
    let answers = link.read(&mut questions).await?;
    if let Some(Value::ServerError(error)) = answers.first() {
        let failure = Failure::answered(&error.clone().into());
        // A user without the right to PING may still have all those that matter.
        if !(failure.kind == ErrorKind::PermissionDenied && error.code() == "NOPERM") {
            return Err(failure);
        }
    }
    // Who may not ask for it meets all this at the first claim, and can do without the warning.
    match answers.into_iter().nth(1).and_then(|answer| String::from_redis_value(answer).ok()) {
        Some(info) => judge(&info),
        None => Ok(()),
    }
}

fn judge(info: &str) -> Result<(), Failure> {
    match field(info, "redis_mode") {
        Some("cluster") => return Err(Failure::node_of_a_cluster()),
        Some("sentinel") => {
            return Err(Failure::new(
                ErrorKind::Misconfigured,
                Applied::No,
                "this server is a sentinel and keeps no locks",
            )
            .advise("write redis+sentinel://SENTINEL,…/SERVICE"));
        }
        _ => {}
    }
    if field(info, "role") == Some("slave") {
        return Err(Failure::replica());
    }
    warn_of_eviction(info);
    Ok(())
}

/// Looks at every master of a cluster, and names those that do not answer soon: the others serve their locks all the same.
pub(crate) async fn look_at_masters(nodes: &Nodes) {
    let looks = nodes.masters().await.unwrap_or_default().into_iter().map(|master| async move {
        let answered = tokio::time::timeout(LOOK_WITHIN, master.read(pipe().cmd("INFO").arg("memory"))).await;
        match answered.unwrap_or_else(|_| Err(Failure::silent(LOOK_WITHIN))) {
            Ok(answers) => {
                if let Some(info) = answers.into_iter().next().and_then(|info| String::from_redis_value(info).ok()) {
                    warn_of_eviction(&info);
                }
            }
            Err(failure) => tracing::warn!(
                master = %master.destination(), reason = %failure.message(),
                "a master of the cluster cannot be reached: the locks in its slots are unavailable"
            ),
        }
    });
    join_all(looks).await;
}

fn warn_of_eviction(info: &str) {
    let limited = field(info, "maxmemory").is_some_and(|limit| limit != "0");
    match field(info, "maxmemory_policy") {
        Some(policy) if limited && policy != "noeviction" => tracing::warn!(
            %policy,
            "this Redis evicts keys when its memory is full, locks too: set maxmemory-policy noeviction"
        ),
        _ => {}
    }
}

/// Every lock that is held or waited for, sorted by name; or just `only`.
pub(crate) async fn inspect(nodes: &Nodes, keys: &Keys, only: Option<&LockName>) -> Result<Vec<LockState>, Failure> {
    let mut names = match only {
        Some(name) => vec![name.clone()],
        None => {
            let mut names = Vec::new();
            for master in nodes.masters().await? {
                scan(&master, keys, &mut names).await?;
            }
            names
        }
    };
    names.sort();
    names.dedup(); // a scan may show a key twice
    let mut states = Vec::new();
    for names in nodes.together(&names, READ_AT_ONCE, |name| keys.lock(name)) {
        let mut reads = pipe();
        reads.cmd("TIME");
        names.iter().for_each(|name| ask_for(&mut reads, &keys.all(name)));
        let mut answers = nodes.read(&keys.lock(&names[0]), &mut reads).await?.into_iter();
        let now_unix_ms = server_time(answers.next())?;
        for name in names {
            let found = Found::take(&mut answers)?;
            match found.state(name, now_unix_ms) {
                Some(state) => states.extend((!state.holders.is_empty() || !state.waiters.is_empty()).then_some(state)),
                None if only.is_some() => return Err(Failure::foreign()),
                None => tracing::warn!(lock = %name, "the lock's key in Redis holds something that is not a lock"),
            }
        }
    }
    Ok(states)
}

async fn scan(link: &Link, keys: &Keys, names: &mut Vec<LockName>) -> Result<(), Failure> {
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(keys.pattern()).arg("COUNT").arg(SCAN_COUNT);
        let answer = link.ask(&scan).await?;
        let found = <(String, Vec<String>)>::from_redis_value(answer).map_err(|_| Failure::puzzling())?;
        names.extend(found.1.iter().filter_map(|key| keys.name(key)));
        cursor = found.0;
        if cursor == "0" {
            return Ok(());
        }
    }
}

fn ask_for(reads: &mut Pipeline, [lock, queue, waiters]: &[String; 3]) {
    reads.cmd("GET").arg(lock);
    reads.cmd("HGETALL").arg(lock); // one of the two is of the wrong type
    reads.cmd("PTTL").arg(lock);
    reads.cmd("ZRANGE").arg(queue).arg(0).arg(-1);
    reads.cmd("HGETALL").arg(waiters);
}

/// What the keys of one lock hold.
struct Found {
    lock: Option<Vec<u8>>,
    /// Those who hold beside each other, by their owner values, and what they have in common.
    crowd: HashMap<String, String>,
    key_left: Option<Duration>,
    queue: Vec<String>,
    waiters: HashMap<String, String>,
    foreign: bool,
}

impl Found {
    fn take(answers: &mut impl Iterator<Item = Value>) -> Result<Self, Failure> {
        // Nothing where it is of another type.
        let mut next = || match answers.next() {
            Some(Value::ServerError(error)) => {
                let failure = Failure::answered(&error.into());
                if failure.kind == ErrorKind::ForeignValue { Ok(None) } else { Err(failure) }
            }
            Some(answer) => Ok(Some(answer)),
            None => Err(Failure::puzzling()),
        };
        let (lock, crowd, left, queue, waiters) = (next()?, next()?, next()?, next()?, next()?);
        let foreign = (lock.is_none() && crowd.is_none()) || queue.is_none() || waiters.is_none();
        Ok(Self {
            lock: read(lock.unwrap_or(Value::Nil))?,
            crowd: read::<Option<_>>(crowd.unwrap_or(Value::Nil))?.unwrap_or_default(),
            key_left: u64::try_from(read::<i64>(left.unwrap_or(Value::Int(-1)))?).ok().map(Duration::from_millis),
            queue: read::<Option<_>>(queue.unwrap_or(Value::Nil))?.unwrap_or_default(),
            waiters: read::<Option<_>>(waiters.unwrap_or(Value::Nil))?.unwrap_or_default(),
            foreign,
        })
    }

    /// `None` when it is not ours.
    fn state(&self, name: &LockName, now_unix_ms: u64) -> Option<LockState> {
        if self.foreign {
            return None;
        }
        let mut holders = Vec::new();
        if let Some(value) = &self.lock {
            let record = LockRecord::parse(value)?;
            let left = record.left(now_unix_ms, self.key_left);
            holders.extend(left.map(|left| record.holder(Some(left), None)));
        } else if !self.crowd.is_empty() {
            holders = self.beside_each_other(now_unix_ms)?;
        }
        let waiters = self.queue.iter().filter_map(|owner| self.waiter(owner, now_unix_ms)).collect();
        Some(LockState { name: name.clone(), holders, waiters })
    }

    /// Those who hold beside each other, in the order of their coming. `None` when it is not ours.
    fn beside_each_other(&self, now_unix_ms: u64) -> Option<Vec<Holder>> {
        let crowd = Crowd::parse(self.crowd.get(Crowd::FIELD)?)?;
        let records = self.crowd.iter().filter(|(field, _)| field.len() == OWNER_HEX);
        let records = records.filter_map(|(_, record)| LockRecord::parse(record.as_bytes()));
        let holder = |record: LockRecord<'_>| {
            let left = record.left(now_unix_ms, None)?;
            Some(record.holder(Some(left), crowd.limit))
        };
        let mut holders: Vec<Holder> = records.filter_map(holder).collect();
        holders.sort_by_key(|holder| (holder.since_unix_ms, holder.slots.first().copied(), holder.owner));
        Some(holders)
    }

    /// A waiter whose client still shows signs of life.
    fn waiter(&self, owner: &str, now_unix_ms: u64) -> Option<Waiter> {
        let record = WaiterRecord::parse(self.waiters.get(owner)?)?;
        let alive_until: u64 = self.waiters.get(&format!("@{}", record.channel))?.parse().ok()?;
        (alive_until > now_unix_ms).then(|| record.waiter())
    }
}

fn server_time(answer: Option<Value>) -> Result<u64, Failure> {
    match answer {
        Some(Value::ServerError(error)) => Err(Failure::answered(&error.into())),
        Some(answer) => {
            let (seconds, micros) = read::<(u64, u64)>(answer)?;
            Ok(seconds * 1000 + micros / 1000)
        }
        None => Err(Failure::new(ErrorKind::Misconfigured, Applied::No, "Redis told no time")),
    }
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, Failure> {
    T::from_redis_value(value).map_err(|_| Failure::puzzling())
}
