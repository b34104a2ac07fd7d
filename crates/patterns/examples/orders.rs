//! Orders in PostgreSQL without a lock: requests that have their effect once, a document with a version, pieces of work, a rate.
//!
//! `cargo run -p fencepost-patterns --example orders` starts a PostgreSQL server of its own.

use std::time::Duration;

use fencepost_patterns::{
    atomic::{
        Refusal,
        postgres::{Amounts, Versioned},
    },
    claims::{Worker, postgres::Tickets},
    rate::{Decision, Rate, postgres::Rates},
    requests::{Begun, Requests},
    update::{Edit, Update},
};
use fencepost_servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

type Failed = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let server = PostgresServer::start();
    let (mut client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO accounts VALUES ('alice', 100), ('shop', 0);
             CREATE TABLE documents (id bigint PRIMARY KEY, body text NOT NULL, version bigint NOT NULL DEFAULT 0);
             CREATE TABLE mails (id bigint PRIMARY KEY)",
        )
        .await?;
    for try_of_it in 1..=2 {
        println!("payment, try {try_of_it}: {}", pay_once(&mut client, "payment 7", 60).await?);
    }
    println!("payment of more: {}", pay_once(&mut client, "payment 8", 60).await?);
    write_a_document(&client).await?;
    send_mails(&client).await?;
    answer_requests(&client).await
}

/// The payment and the note that it was made are one transaction: both are there or neither.
async fn pay_once(client: &mut Client, key: &str, amount: i64) -> Result<String, Failed> {
    let requests = Requests::of("requests");
    client.batch_execute(&requests.script()).await?;
    let transaction = client.transaction().await?;
    let ours = match requests.begin(&transaction, key, Some(amount.to_string().as_bytes())).await? {
        Begun::Ours(ours) => ours,
        Begun::Repeated(receipt) => return Ok(format!("{} (as it was told before)", String::from_utf8(receipt)?)),
        Begun::InProgress => return Ok("another is at it".into()),
        Begun::OtherPayload => return Ok("the key stands for another amount".into()),
    };
    let accounts = Amounts::of("accounts", "name", "balance");
    let receipt = match accounts.transfer(&transaction, &"alice", &"shop", amount).await? {
        Ok((left, _)) => format!("paid, {left} left"),
        Err(Refusal::Insufficient { has }) => format!("there are only {has}"),
        Err(other) => return Err(other.into()),
    };
    requests.keep(&transaction, ours, receipt.as_bytes(), Duration::from_secs(86_400)).await??;
    transaction.commit().await?;
    Ok(receipt)
}

/// Whoever comes second is shown the newer version.
async fn write_a_document(client: &Client) -> Result<(), Failed> {
    let documents = Versioned::of("documents", "id", "body", "version");
    for line in ["a first line", "a second one"] {
        let written = documents.update(client, &1_i64, |old: Option<String>| {
            Edit::Write(old.map_or(line.to_owned(), |old| format!("{old}, {line}")))
        });
        if let Update::Written { value, conflicts } = written.await? {
            println!("document: {value:?} after {conflicts} conflicts");
        }
    }
    Ok(())
}

/// Each mail is with one worker at a time.
async fn send_mails(client: &Client) -> Result<(), Failed> {
    let mails = Tickets::of("mails", "id");
    client.batch_execute(&mails.script()).await?;
    client.batch_execute("INSERT INTO mails (id) VALUES (1), (2)").await?;
    let (one, other) = (Worker::new()?, Worker::new()?);
    let first = mails.take::<_, i64>(client, &one, 1, Duration::from_secs(60)).await?;
    let second = mails.take::<_, i64>(client, &other, 10, Duration::from_secs(60)).await?;
    println!("mails: {} for the one, {} for the other", first.len(), second.len());
    let stolen = mails.done(client, &other, &[first[0].key]).await?;
    println!("mails: what the one has, the other cannot acknowledge: {}", stolen.is_empty());
    Ok(())
}

/// Two at once, and no more than one in ten seconds after that.
async fn answer_requests(client: &Client) -> Result<(), Failed> {
    let rates = Rates::of("rates");
    client.batch_execute(&rates.script()).await?;
    let rate = Rate::new(6, Duration::from_secs(60), 2)?;
    for request in 1..=3 {
        match rates.ask(client, "alice", rate, 1).await? {
            Decision::Through { left } => println!("request {request}: answered, {left} more at once"),
            Decision::Denied { .. } => println!("request {request}: later"),
        }
    }
    Ok(())
}
