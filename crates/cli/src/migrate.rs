//! `migrate` and `fence-table`: what PostgreSQL needs in its schema.

use fencepost::url::StoreUrl;
use fencepost_postgres::{
    Migrated, PostgresConfig, SCHEME, SESSION_SCHEME,
    fenced::{FencedTable, fence_table as add_fence},
};

use crate::{
    arguments::{FenceTable, Global, Migrate},
    exit::Ending,
};

/// Makes the tables, or prints what makes them.
pub(crate) fn migrate(global: &Global, verb: &Migrate) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let config = config(global, verb.print)?;
        if verb.print {
            let script = match verb.from {
                None => fencepost_postgres::script(&config),
                Some(from) => fencepost_postgres::upgrade_script(&config, from)
                    .ok_or_else(|| Ending::usage(format!("there is no step from version {from} to this one")))?,
            };
            return Ok(crate::print(&script));
        }
        let said = match fencepost_postgres::migrate(&config).await? {
            Migrated::Created => "the tables were made",
            Migrated::Upgraded => "the tables were brought to this version",
            Migrated::UpToDate => "the tables were there",
        };
        Ok(Ending::done().saying(said))
    })
}

/// Lets a table refuse stale fences, or prints what does.
pub(crate) fn fence_table(global: &Global, verb: &FenceTable) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let table = FencedTable::new(&verb.table)?.column(&verb.column)?;
        if verb.print {
            return Ok(crate::print(&table.script()));
        }
        add_fence(&config(global, false)?, &table).await?;
        Ok(Ending::done().saying(format!("{} refuses stale fences", verb.table)))
    })
}

/// The database that was named. What is only printed needs none.
fn config(global: &Global, print: bool) -> Result<PostgresConfig, Ending> {
    let url = match global.stated_store() {
        Some(url) => StoreUrl::parse(url)?,
        None if print => StoreUrl::parse("postgres://anybody@/")?,
        None => return Err(Ending::usage("say which database with --store postgres://HOST/DATABASE")),
    };
    if !SCHEME.names.contains(&url.scheme()) && !SESSION_SCHEME.names.contains(&url.scheme()) {
        let said = format!("a store `{}:` needs nothing of the kind; this is for postgres:", url.scheme());
        return Err(Ending::usage(said));
    }
    Ok(PostgresConfig::from_url(url)?)
}
