//! The tree itself: what is asked, and what is answered.

use super::{Answer, ByHand, Choice, Needs, Next, Question};

/// The first question.
pub static TREE: &Question = &Question {
    word: "shared",
    asks: "Do several processes change the same thing?",
    since: "What only one process changes needs no protection from the others; a mutex inside it will do.",
    choices: &[
        Choice {
            word: "no",
            says: "each has its own, or all only read, or all only add what never collides",
            next: Next::Answer(&NO_LOCK),
        },
        Choice { word: "yes", says: "at least two can change it at the same time", next: Next::Ask(&NEED) },
    ],
};

static NEED: Question = Question {
    word: "need",
    asks: "What is it about?",
    since: "Most of what is protected by locks has a form that is safe without one.",
    choices: &[
        Choice {
            word: "state",
            says: "a value that several change: a balance, a stock, a row, a document, a file",
            next: Next::Ask(&WHERE),
        },
        Choice {
            word: "request",
            says: "the same request or message may come twice, and shall have its effect once",
            next: Next::Answer(&ONCE),
        },
        Choice {
            word: "pieces",
            says: "many pieces of work, each to be done by one of many workers",
            next: Next::Answer(&CLAIM),
        },
        Choice {
            word: "rate",
            says: "something may be done so often in a span and no more",
            next: Next::Answer(&RATE),
        },
        Choice { word: "job", says: "one job, or one leader, at a time", next: Next::Ask(&BREACH) },
    ],
};

static WHERE: Question = Question {
    word: "conditional",
    asks: "Can the place that keeps it compare and change it in one step?",
    since: "A database, Redis, etcd and ZooKeeper can, in a statement, a script or a transaction. Comparing in the \
            program and writing afterwards is no such step.",
    choices: &[
        Choice {
            word: "yes",
            says: "one store keeps all of it, and takes a condition along with the write",
            next: Next::Answer(&CONDITIONAL_UPDATE),
        },
        Choice {
            word: "no",
            says: "it is a file, a device, a service of others, or lies in several stores",
            next: Next::Ask(&SPLIT),
        },
    ],
};

static SPLIT: Question = Question {
    word: "split",
    asks: "Can each piece of it belong to one process for a long while?",
    since: "Whoever owns a piece changes it without asking for each change.",
    choices: &[
        Choice { word: "yes", says: "by a key, as accounts, customers or files have", next: Next::Answer(&PARTITION) },
        Choice { word: "no", says: "any process may have to change any part of it", next: Next::Ask(&BREACH) },
    ],
};

static BREACH: Question = Question {
    word: "breach",
    asks: "What does it cost if two do it at once, for some seconds?",
    since: "A lock between processes is a lease. A paused process believes that it holds one which has ended, so that \
            two at once can be made rare and not impossible.",
    choices: &[
        Choice {
            word: "work",
            says: "the work is done twice, or somebody gets two mails",
            next: Next::Answer(&EFFICIENCY_LOCK),
        },
        Choice { word: "data", says: "data is lost or wrong, or money is spent", next: Next::Ask(&CHECKS) },
    ],
};

static CHECKS: Question = Question {
    word: "checks",
    asks: "Can the thing that is changed refuse a write that brings a number lower than it has seen?",
    since: "That number is the fence, which rises with each grant of a lock. Only the resource can tell who is late.",
    choices: &[
        Choice {
            word: "yes",
            says: "it is a table, a key, a file or a service of your own, or can be put behind one",
            next: Next::Answer(&FENCED_LOCK),
        },
        Choice { word: "no", says: "nothing in it compares anything", next: Next::Answer(&UNCHECKED) },
    ],
};

static NO_LOCK: Answer = Answer {
    word: "no-lock",
    title: "No lock",
    because: "Nothing collides, so there is nothing to exclude. Inside one process, a mutex or a task that owns the state \
              costs nanoseconds and cannot expire.",
    rust: "\
async fn add(total: &tokio::sync::Mutex<u64>, amount: u64) {
    *total.lock().await += amount;
}",
    by_hand: &[],
    still: &[
        "A second copy of the process, started by a deployment or by hand: if that would do harm, several processes do \
         change the same thing.",
    ],
    needs: Needs::NoLock,
};

static CONDITIONAL_UPDATE: Answer = Answer {
    word: "conditional-update",
    title: "Conditional update",
    because: "The store compares and changes in one step, so that whoever comes second finds out and nothing is lost. It \
              needs no lock, nobody can hold it up by dying, and it is the faster way.",
    rust: "\
use fencepost::{Edit, Locks, Update, patterns::atomic::{Refusal, redis::Amounts}};

/// Whether there was one left to sell: a number in Redis; atomic::postgres has the same for a row.
async fn sell(redis: &mut redis::aio::MultiplexedConnection) -> Result<bool, Box<dyn std::error::Error>> {
    match Amounts::on(redis).take(\"stock:4711\", 1).await? {
        Ok(_left) => Ok(true),
        Err(Refusal::Insufficient { .. }) => Ok(false),
        Err(refusal) => Err(refusal.into()), // no such key, or no number in it
    }
}

/// The same for any value of your own, on any store that keeps cells.
async fn sell_from_a_cell(locks: &Locks) -> Result<bool, fencepost::Error> {
    let stock = locks.cell::<u32>(\"stock/4711\")?;
    let sold = stock.update(|left| match left {
        Some(left @ 1..) => Edit::Write(left - 1),
        left => Edit::Refuse(Refusal::Insufficient { has: left.unwrap_or(0).into() }),
    });
    Ok(matches!(sold.await?, Update::Written { .. }))
}",
    by_hand: &[
        ByHand {
            language: "sql",
            text: "\
-- No row changed: sold out.
UPDATE stock SET pieces = pieces - 1 WHERE item = 4711 AND pieces >= 1;
-- With a version, for what was read and thought about: no row changed means read again.
UPDATE documents SET body = $1, version = version + 1 WHERE id = $2 AND version = $3;
-- Between two rows, which are locked in one order, so that two transfers never wait for each other in a circle. No row changed:
-- there is too little, or one of the two is missing.
WITH both_rows AS MATERIALIZED (SELECT name FROM accounts WHERE name IN ($1, $2) ORDER BY name FOR UPDATE),
     taken AS (UPDATE accounts SET balance = balance - $3
               WHERE name = $1 AND balance >= $3 AND (SELECT count(*) FROM both_rows) = 2 RETURNING 1)
UPDATE accounts SET balance = balance + $3 WHERE name = $2 AND EXISTS (SELECT FROM taken);",
        },
        ByHand {
            language: "redis",
            text: "\
# 0: sold out.
EVAL \"if tonumber(redis.call('GET', KEYS[1]) or '0') < 1 then return 0 end redis.call('DECR', KEYS[1]) return 1\" 1 stock:4711",
        },
    ],
    still: &[
        "Under much contention most tries are for nothing; the count of conflicts tells. Then split the value, or let one \
         process own it.",
        "An answer that was lost leaves open whether the change was made. A change of a version can be asked for; a plain \
         decrement cannot.",
        "A change of two stores is two changes. The one that comes second may never come.",
    ],
    needs: Needs::NoLock,
};

static ONCE: Answer = Answer {
    word: "once",
    title: "Once for each key",
    because: "Whoever asks brings a key that is the same in each repetition. The first one does the work, its result is \
              kept under the key, and every other gets that result.",
    rust: "\
use fencepost::{Efficiency, Error, Locks, Ran};

/// The payment's receipt, from whichever try it is; `None` while another is at it, or for another payload.
async fn pay(locks: &Locks<Efficiency>, key: &str, body: &str) -> Result<Option<String>, Error> {
    match locks.once(key).fingerprint(body).run(charge(body)).await? {
        Ran::Now(receipt) | Ran::NotKept { value: receipt, .. } => Ok(Some(receipt)),
        Ran::Repeated(kept) => Ok(Some(kept.value)),
        Ran::Refused(refusal) => {
            println!(\"HTTP status {}: {refusal}\", refusal.status());
            Ok(None)
        }
        Ran::Failed(error) => Err(error),
    }
}

async fn charge(body: &str) -> Result<String, Error> {
    Ok(format!(\"receipt for {body}\"))
}",
    by_hand: &[
        ByHand { language: "sh", text: "fencepost once invoice/2026-11 -- ./send-invoice.sh 2026-11" },
        ByHand {
            language: "sql",
            text: "\
-- In the transaction of the work itself: both are committed or neither is.
INSERT INTO seen (key, result) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING;",
        },
    ],
    still: &[
        "After the key has expired, a repetition counts as new. Keep it for longer than anybody repeats.",
        "Where the key and the work are not in one transaction, a crash between the two leaves work that is done and not \
         noted. The repetition does it again. In PostgreSQL, `fencepost::patterns::requests` puts both into one.",
        "A caller that makes a new key for each try is not protected by it.",
    ],
    needs: Needs::Cells,
};

static CLAIM: Answer = Answer {
    word: "claim",
    title: "Claim",
    because: "The store hands out each piece once. A worker that dies gives its pieces back by the end of their time.",
    rust: "\
use fencepost::patterns::claims::{Worker, postgres::Tickets};
use std::time::Duration;

async fn send_some(database: &mut tokio_postgres::Client, me: &Worker) -> Result<(), tokio_postgres::Error> {
    let mails = Tickets::of(\"mails\", \"id\"); // claims::redis has the same
    for ticket in mails.take::<_, i64>(database, me, 10, Duration::from_secs(60)).await? {
        println!(\"sending {}, for the {}. time\", ticket.key, ticket.tries);
        if mails.done(database, me, &[ticket.key]).await?.is_empty() {
            println!(\"it took too long, and is another's by now\");
        }
    }
    Ok(())
}",
    by_hand: &[ByHand {
        language: "sql",
        text: "\
-- Takes a piece that nobody has, or whose worker let its time pass.
UPDATE pieces SET worker = $1, until = clock_timestamp() + interval '1 minute'
WHERE id = (SELECT id FROM pieces WHERE done IS NULL AND (until IS NULL OR until < clock_timestamp())
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id;
-- Done, if it is still ours.
UPDATE pieces SET done = clock_timestamp() WHERE id = $2 AND worker = $1 AND done IS NULL;",
    }],
    still: &[
        "A worker that was paused for longer than the time it had does a piece that another has by now. Its \
         acknowledgement is refused, its effects elsewhere are not: give them the piece's name as the key of a \
         [once](#once-for-each-key).",
        "Pieces that kill their worker come back for ever. Count the tries.",
    ],
    needs: Needs::NoLock,
};

static RATE: Answer = Answer {
    word: "rate",
    title: "Rate limit",
    because: "One number for each key, on the store's clock, says when the next one may come. It is compared and raised in \
              one step.",
    rust: "\
use fencepost::patterns::rate::{Decision, Rate, file::Rates};
use std::time::Duration;

/// Whether one more may be called now: a hundred in a minute, ten at once, from all processes of this host.
fn may_call(rates: &Rates, customer: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let rate = Rate::new(100, Duration::from_secs(60), 10)?;
    match rates.ask(customer, rate, 1)? { // rate::redis and rate::postgres: from all hosts
        Decision::Through { .. } => Ok(true),
        Decision::Denied { retry_in } => {
            println!(\"again in {retry_in:?}\");
            Ok(false)
        }
    }
}",
    by_hand: &[ByHand {
        language: "redis",
        text: "\
# One in a quarter of an hour; nil: not yet.
SET report:due 1 NX EX 900",
    }],
    still: &[
        "What was let through is not what was done: a caller may be paused after it.",
        "A store that loses its last second, as Redis may in a failover, lets more through.",
    ],
    needs: Needs::NoLock,
};

static PARTITION: Answer = Answer {
    word: "partition",
    title: "Partition",
    because: "Each piece has one owner, who changes it alone and finds out when it passes on. One lock for each share, taken \
              rarely, in place of one for each change.",
    rust: "\
use fencepost::{Correctness, Locks, ShardEvent};
use std::{collections::HashMap, time::Duration};

async fn own_a_share(locks: &Locks<Correctness>, name: &str) -> Result<(), fencepost::Error> {
    let ttl = Duration::from_secs(10);
    let member = locks.members(\"accounts\")?.join(name, ttl).await?;
    let mut shards = member.shards(64, ttl)?;
    let mut ours = HashMap::new();
    loop {
        match shards.next().await? {
            ShardEvent::Gained { shard, lease } => drop(ours.insert(shard, lease)), // write with lease.fence()
            ShardEvent::Leave { shard } => drop(ours.remove(&shard)),               // finish first
        }
    }
}",
    by_hand: &[],
    still: &[
        "While shares move, a former owner that was paused can still write. Let the resource check the fence of the \
         share's lock, or make it harmless.",
        "A key that gets most of the work makes its owner the bottleneck.",
    ],
    needs: Needs::Fence,
};

static EFFICIENCY_LOCK: Answer = Answer {
    word: "efficiency-lock",
    title: "Efficiency lock",
    because: "Two at once are harmless and should be rare. Any store will do, the one that is there already first of all.",
    rust: "\
use fencepost::{Acquired, Locks};
use std::time::Duration;

async fn rebuild_cache(url: &str) -> Result<(), fencepost::Error> {
    let locks = Locks::open(url).await?.for_efficiency();
    if let Acquired(mut lease) = locks.lock(\"cache\").wait(Duration::ZERO).acquire().await? {
        lease.run(async { /* the work; dropped if the lease is lost */ }).await?;
        lease.release().await?;
    }
    Ok(())
}",
    by_hand: &[
        ByHand { language: "sh", text: "fencepost run --wait 0s cache -- ./rebuild-cache.sh" },
        ByHand {
            language: "redis",
            text: "\
SET lock:cache $random NX PX 30000
EVAL \"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0\" 1 lock:cache $random",
        },
    ],
    still: &[
        "Two at once, after a pause longer than the TTL or a failover that lost the grant.",
        "Nobody for a TTL, after the holder died.",
    ],
    needs: Needs::AnyStore,
};

static FENCED_LOCK: Answer = Answer {
    word: "fenced-lock",
    title: "Correctness lock with a fence",
    because: "The lock keeps the others away, the fence keeps out whoever is late. A new holder first makes the resource see \
              its fence, then reads, then writes, and the resource compares and writes in one step.",
    rust: "\
use fencepost::{Acquired, Locks, patterns::fenced::FencedFile};
use std::time::Duration;

async fn settle(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let locks = Locks::open(url).await?.fenced()?;
    if let Acquired(mut lease) = locks.lock(\"orders/1001\").wait(Duration::from_secs(5)).acquire().await? {
        let order = FencedFile::at(\"/var/lib/shop/orders/1001\");
        let before = order.advance(lease.fence())?; // from here on nobody older can write
        let after = [before.unwrap_or_default().as_slice(), b\"settled\"].concat();
        order.replace(lease.fence(), &after)?; // refused if the lock was passed on meanwhile
        lease.release().await?;
    }
    Ok(())
}",
    by_hand: &[
        ByHand {
            language: "sql",
            text: "\
-- 1. Advance, which reads as well: no row means that somebody newer was here, so stop.
UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING *;
-- 2. Write: no row means the same.
UPDATE orders SET state = 'settled' WHERE id = $2 AND fence = $1;",
        },
        ByHand {
            language: "sh",
            text: "fencepost run --fenced settle -- sh -c './settle.sh --fence \"$FENCEPOST_FENCE\"'",
        },
    ],
    still: &[
        "A resource that was never advanced to the newest fence lets the older one through: advance before you read.",
        "A write that bypasses the check is not checked. For PostgreSQL, `fencepost fence-table` adds a trigger.",
        "Work that is half done when the lease is lost stays half done. Write it in one step, or so that the next holder \
         can finish it.",
    ],
    needs: Needs::Fence,
};

static UNCHECKED: Answer = Answer {
    word: "unchecked",
    title: "Put a check in front, or bear the rest",
    because: "No lock alone makes this safe, whoever offers it. Put something in front that compares the fence, such as \
              the HTTP layer of `fencepost::patterns::fenced`, and let nobody reach the resource except through it; or make the effect the same when it comes twice.",
    rust: "\
use fencepost::{Acquired, Locks};
use std::time::Duration;

/// Rare, not impossible: the work is dropped when the lease is lost, and what it sent before is on its way.
async fn drive(url: &str) -> Result<(), fencepost::Error> {
    let locks = Locks::open(url).await?.fenced()?;
    if let Acquired(mut lease) = locks.lock(\"robot\").wait(Duration::from_secs(5)).acquire().await? {
        lease.run(async { /* short steps; look at lease.check() between them */ }).await?;
        lease.release().await?;
    }
    Ok(())
}",
    by_hand: &[ByHand { language: "sh", text: "fencepost run --fenced --on-lost kill robot -- ./drive.sh" }],
    still: &[
        "A holder that is paused between its check and its write writes late, and nothing stops it.",
        "A request that is on its way when the lease ends arrives afterwards.",
    ],
    needs: Needs::Fence,
};
