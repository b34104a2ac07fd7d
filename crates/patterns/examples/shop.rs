//! A shop on Redis without a lock: stock, payments, prices, tickets and a rate.
//!
//! `cargo run -p fencepost-patterns --example shop` starts a Redis server of its own.

use std::time::Duration;

use fencepost_patterns::{
    atomic::{
        Refusal,
        redis::{Amounts, Scripted, Shadow, Watching},
    },
    claims::{Worker, redis::Tickets},
    rate::{self, Decision, Rate},
    update::{CompareAndSet, Edit, Update},
};
use fencepost_servers::RedisServer;
use redis::aio::MultiplexedConnection;

type Failed = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url())?;
    let mut redis = client.get_multiplexed_async_connection().await?;
    sell(&mut redis).await?;
    pay(&mut redis).await?;
    agree_on_a_motto(&mut redis, &mut Watching::open(&client).await?).await?;
    print_new_prices(&mut redis).await?;
    send_mails(&mut redis).await?;
    answer_requests(&mut redis).await
}

/// Each order takes its share once, however often it is sent.
async fn sell(redis: &mut MultiplexedConnection) -> Result<(), Failed> {
    redis::cmd("SET").arg("{shop}:stock").arg(5).query_async::<()>(redis).await?;
    let mut amounts = Amounts::on(redis);
    for (order, pieces) in [("{shop}:order 1", 3), ("{shop}:order 1", 3), ("{shop}:order 2", 3)] {
        match amounts.reserve("{shop}:stock", order, pieces).await? {
            Ok(left) => println!("{order}: reserved, {left} left"),
            Err(Refusal::Insufficient { has }) => println!("{order}: there are only {has}"),
            Err(other) => return Err(other.into()),
        }
    }
    amounts.confirm("{shop}:stock", "{shop}:order 1").await??;
    println!("one more over the counter, {} left", amounts.take("{shop}:stock", 1).await??);
    Ok(())
}

/// All of it or nothing.
async fn pay(redis: &mut MultiplexedConnection) -> Result<(), Failed> {
    redis::cmd("MSET").arg("{bank}:alice").arg(100).arg("{bank}:shop").arg(0).query_async::<()>(redis).await?;
    let mut amounts = Amounts::on(redis).in_a_cluster();
    let paid = amounts.transfer("{bank}:alice", "{bank}:shop", 60).await??;
    if let Err(refusal) = amounts.transfer("{bank}:alice", "{bank}:shop", 60).await? {
        println!("paid: {paid:?}; again: {refusal}");
    }
    Ok(())
}

/// Read, think, write if unchanged: by a script, and by WATCH.
async fn agree_on_a_motto(redis: &mut MultiplexedConnection, watching: &mut Watching) -> Result<(), Failed> {
    let ours = |motto: &'static str| {
        move |old: Option<Vec<u8>>| if old.is_none() { Edit::Write(motto.into()) } else { Edit::Leave }
    };
    let first = Scripted::on(redis).key("motto").update(ours("first come, first served")).await?;
    let second = watching.key("motto").update(ours("the customer is king")).await?;
    println!("motto: the first one was written: {}", matches!(first, Update::Written { conflicts: 0, .. }));
    println!("motto: the second one was left out: {}", second == Update::Left);
    Ok(())
}

/// Readers see all of the old prices or all of the new.
async fn print_new_prices(redis: &mut MultiplexedConnection) -> Result<(), Failed> {
    let shadow = Shadow::of("prices")?;
    for (what, price) in [("apples", 3), ("pears", 4)] {
        shadow
            .write(redis, |pipeline, key| {
                pipeline.hset(key, what, price);
            })
            .await?;
        let seen: u32 = redis::cmd("HLEN").arg("prices").query_async(redis).await?;
        println!("prices: {seen} to be seen while they are written");
    }
    println!("prices: published: {}", shadow.publish(redis).await?);
    Ok(())
}

/// Each mail is with one worker at a time.
async fn send_mails(redis: &mut MultiplexedConnection) -> Result<(), Failed> {
    let mails = Tickets::called("mails")?;
    mails.put(redis, &["mail 1", "mail 2"]).await?;
    let (dies, lives) = (Worker::new()?, Worker::new()?);
    let lost = mails.take(redis, &dies, 1, Duration::from_millis(1)).await?;
    println!("mails: {} taken by a worker that dies", lost.len());
    tokio::time::sleep(Duration::from_millis(20)).await;
    for mail in mails.take(redis, &lives, 10, Duration::from_secs(60)).await? {
        let done = mails.done(redis, &lives, &[&mail.key]).await?;
        println!("mails: {} sent at the {}. try: {}", mail.key, mail.tries, !done.is_empty());
    }
    Ok(())
}

/// Two at once, and no more than one in ten seconds after that.
async fn answer_requests(redis: &mut MultiplexedConnection) -> Result<(), Failed> {
    let rate = Rate::new(6, Duration::from_secs(60), 2)?;
    for request in 1..=3 {
        match rate::redis::ask(redis, "requests of alice", rate, 1).await? {
            Decision::Through { left } => println!("request {request}: answered, {left} more at once"),
            Decision::Denied { .. } => println!("request {request}: later"),
        }
    }
    Ok(())
}
