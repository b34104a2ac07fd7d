//! `migrate`: the tables of a PostgreSQL store.

use fencepost::url::StoreUrl;
use fencepost_postgres::{Migrated, PostgresConfig, SCHEME};

use crate::{
    arguments::{Global, Migrate},
    exit::Ending,
};

/// Makes the tables, or prints what makes them.
pub(crate) fn migrate(global: &Global, verb: &Migrate) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let config = match global.stated_store() {
            Some(url) => config(url)?,
            None if verb.print => config("postgres://anybody@/")?, // names the usual schema, and is not connected to
            None => return Err(Ending::usage("`migrate` needs --store postgres://HOST/DATABASE")),
        };
        if verb.print {
            return Ok(crate::print(&fencepost_postgres::script(&config)));
        }
        let said = match fencepost_postgres::migrate(&config).await? {
            Migrated::Created => "the tables were made",
            Migrated::UpToDate => "the tables were there",
        };
        Ok(Ending::done().saying(said))
    })
}

fn config(url: &str) -> Result<PostgresConfig, Ending> {
    let url = StoreUrl::parse(url)?;
    if !SCHEME.names.contains(&url.scheme()) {
        let said = format!("a store `{}:` needs no tables; `migrate` is for postgres:", url.scheme());
        return Err(Ending::usage(said));
    }
    Ok(PostgresConfig::from_url(url)?)
}
