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
    /// Those of an older version were there, and were brought to this one.
    Upgraded,
    /// They were there, in the version that this program needs.
    UpToDate,
}

/// Makes the tables and functions in the schema that `config` names, or brings those of an older version to this one, in one
/// transaction. Clients may be at work meanwhile. Run by a role that may create a schema, and that owns the tables of an older version;
/// those who use locks need less, see [`script`].
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] without the right to create; [`ErrorKind::Misconfigured`] for tables of a newer version.
///
/// # Cancel safety
/// Safe: the server does all of it or nothing.
pub async fn migrate(config: &PostgresConfig) -> Result<Migrated, Error> {
    let link = Link::new(config, BootClock::shared())?;
    make(&link, config).await.map_err(|failure| failure.error(Operation::Open, None))
}

async fn make(link: &Link, config: &PostgresConfig) -> Result<Migrated, Failure> {
    let (done, script) = match found(link, config).await? {
        Found::Nothing => (Migrated::Created, script(config)),
        Found::Version(VERSION) => return Ok(Migrated::UpToDate),
        Found::Version(other) => {
            (Migrated::Upgraded, upgrade_script(config, other).ok_or_else(|| other_version(other))?)
        }
    };
    // Two that migrate at once: the second waits here, fails, and finds the work done.
    let begin = format!("BEGIN;\nSET LOCAL search_path = {PATH};\nSELECT pg_advisory_xact_lock({MIGRATES});");
    match link.unversioned().await?.script(&format!("{begin}\n{script}\nCOMMIT;")).await {
        Ok(()) => Ok(done),
        Err(failure) => match found(link, config).await? {
            Found::Version(VERSION) => Ok(Migrated::UpToDate),
            _ => Err(failure),
        },
    }
}

enum Found {
    Nothing,
    Version(i32),
}

/// What is there already, seen on a connection of its own.
async fn found(link: &Link, config: &PostgresConfig) -> Result<Found, Failure> {
    let session = link.unversioned().await?;
    let is_there = "SELECT to_regclass($1 || '.state') IS NOT NULL";
    let answer = session.ask(is_there, &[(&config.schema, Type::TEXT)]).await?;
    if answer.first().and_then(|row| row.try_get(0).ok()) != Some(true) {
        return Ok(Found::Nothing);
    }
    let known = session.query(&link.statements.version, &[]).await?;
    let version = known.first().and_then(|row| row.try_get::<_, i32>(0).ok());
    version.map(Found::Version).ok_or_else(|| {
        let said = "the tables of Fencepost have no version that can be read";
        Failure::new(ErrorKind::Misconfigured, Applied::No, said).advise("the one row of `state` says it; restore it")
    })
}

/// The same as SQL, for those who run their migrations themselves. Its comments name the rights that roles need.
pub fn script(config: &PostgresConfig) -> String {
    format!("{}\n{}", statements::schema(&config.schema), statements::rights(&config.schema))
}

/// What brings tables of version `from` to this one as SQL; `None` where they need nothing, or no way is known.
pub fn upgrade_script(config: &PostgresConfig, from: i32) -> Option<String> {
    statements::upgrade(&config.schema, from)
}

fn other_version(found: i32) -> Failure {
    let said = format!("the tables of Fencepost have version {found}, and this program makes {VERSION}");
    Failure::new(ErrorKind::Misconfigured, Applied::No, said).advise("use the Fencepost of that version")
}
