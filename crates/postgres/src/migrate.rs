//! Making the tables and functions, or printing what makes them.

use fencepost_core::{
    clock::BootClock,
    error::{Applied, Error, ErrorKind, Operation},
};

use crate::{
    config::PostgresConfig,
    connection::Link,
    failure::Failure,
    session::PATH,
    statements::{self, VERSION},
};
use tokio_postgres::types::Type;

/// The key of the advisory lock of whoever makes the tables.
const MIGRATES: i64 = 1_717_923_427;

/// What [`migrate`] found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrated {
    /// The tables and functions were made.
    Created,
    /// They were there, in the version that this program needs.
    UpToDate,
}

/// Makes the tables and functions in the schema that `config` names, in one transaction. Run by a role that may create a
/// schema; those who use locks need less, see [`script`].
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] without the right to create; [`ErrorKind::Misconfigured`] for tables of another version.
///
/// # Cancel safety
/// Safe: the server does all of it or nothing.
pub async fn migrate(config: &PostgresConfig) -> Result<Migrated, Error> {
    let link = Link::new(config, BootClock::shared())?;
    make(&link, config).await.map_err(|failure| failure.error(Operation::Open, None))
}

async fn make(link: &Link, config: &PostgresConfig) -> Result<Migrated, Failure> {
    if let Some(found) = found(link, config).await? {
        return found;
    }
    // Two that migrate at once: the second waits here, fails, and finds the work done.
    let begin = format!("BEGIN;\nSET LOCAL search_path = {PATH};\nSELECT pg_advisory_xact_lock({MIGRATES});");
    let text = format!("{begin}\n{}\nCOMMIT;", script(config));
    match link.unversioned().await?.script(&text).await {
        Ok(()) => Ok(Migrated::Created),
        Err(failure) => found(link, config).await?.unwrap_or(Err(failure)),
    }
}

/// What is there already, seen on a connection of its own.
async fn found(link: &Link, config: &PostgresConfig) -> Result<Option<Result<Migrated, Failure>>, Failure> {
    let session = link.unversioned().await?;
    let is_there = "SELECT to_regclass($1 || '.state') IS NOT NULL";
    let answer = session.ask(is_there, &[(&config.schema, Type::TEXT)]).await?;
    if answer.first().and_then(|row| row.try_get(0).ok()) != Some(true) {
        return Ok(None);
    }
    let known = session.query(&link.statements.version, &[]).await?;
    Ok(Some(match known.first().and_then(|row| row.try_get::<_, i32>(0).ok()) {
        Some(VERSION) => Ok(Migrated::UpToDate),
        other => Err(other_version(other)),
    }))
}

/// The same as SQL, for those who run their migrations themselves. Its comments name the rights that roles need.
pub fn script(config: &PostgresConfig) -> String {
    format!("{}\n{}", statements::schema(&config.schema), statements::rights(&config.schema))
}

fn other_version(found: Option<i32>) -> Failure {
    let found = found.map_or("no version that can be read".to_owned(), |version| format!("version {version}"));
    let said = format!("the tables of Fencepost have {found}, and this program makes {VERSION}");
    Failure::new(ErrorKind::Misconfigured, Applied::No, said).advise("use the Fencepost of that version")
}
