//! The statements, and the schema that they need. What happens in one transaction of the server is written in the `.sql`
//! files; here are only the calls.

use tokio_postgres::types::Type;

/// The version of the tables and functions that this crate works with.
pub(crate) const VERSION: i32 = 2;

const TABLES: &str = include_str!("sql/tables.sql");
const TRIGGERS: &str = include_str!("sql/triggers.sql");
/// What makes the tables of an older version those of the next one: the first of version 1 those of version 2.
const STEPS: [&str; VERSION as usize - 1] = [include_str!("sql/from_1.sql")];

/// All of them replace those of an older version.
const FUNCTIONS: [&str; 8] = [
    include_str!("sql/epoch.sql"),
    include_str!("sql/queue.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/several.sql"),
    include_str!("sql/verbs.sql"),
    include_str!("sql/inspect.sql"),
    include_str!("sql/cells.sql"),
    include_str!("sql/pinned.sql"),
];

/// A statement, sent as it is the first time on a connection and prepared from then on.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
    /// Its place among the prepared ones.
    pub(crate) place: usize,
}

/// All of them, for one schema. Behind a pooler the `search_path` is the role's: they leave it nothing to decide, and call
/// functions that bring their own.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) version: Statement,
    /// Gives a session its number.
    pub(crate) number: Statement,
    /// Takes the advisory lock by which a client's connection for messages shows that it lives.
    pub(crate) live: Statement,
    pub(crate) take: Statement,
    pub(crate) take_several: Statement,
    pub(crate) claim: Statement,
    pub(crate) release: Statement,
    /// The same of what is held beside others.
    pub(crate) give_back: Statement,
    pub(crate) release_several: Statement,
    pub(crate) renew: Statement,
    pub(crate) downgrade: Statement,
    pub(crate) settle: Statement,
    pub(crate) announce: Statement,
    pub(crate) look: Statement,
    pub(crate) inspect: Statement,
    pub(crate) force: Statement,
    pub(crate) resize: Statement,
    pub(crate) look_at_cell: Statement,
    pub(crate) change_cell: Statement,
    /// As a script: listens for changes of cells. A lock shows it to those who change them; clients have numbers from 1 on.
    pub(crate) hear_cells: String,
}

/// How many there are.
pub(crate) const STATEMENTS: usize = 19;

const BOOL: Type = Type::BOOL;
const BYTES: Type = Type::BYTEA;
const INT: Type = Type::INT4;
const LONG: Type = Type::INT8;
const TEXT: Type = Type::TEXT;
const EACH_BYTES: Type = Type::BYTEA_ARRAY;
const EACH_LONG: Type = Type::INT8_ARRAY;
const EACH_TEXT: Type = Type::TEXT_ARRAY;

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let mut place = 0;
        let mut statement = |text: &str, types| {
            place += 1;
            Statement { text: within(schema, text), types, place: place - 1 }
        };
        let statements = Self {
            version: statement("SELECT version, oldest FROM fencepost.state", &[]),
            number: statement("SELECT fencepost.session_number()", &[]),
            live: statement(
                "SELECT pg_catalog.pg_try_advisory_lock('fencepost.locks'::pg_catalog.regclass::integer, $1)",
                &[INT],
            ),
            take: statement(
                "SELECT fencepost.take($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[TEXT, TEXT, BYTES, LONG, TEXT, INT, TEXT, BOOL, BOOL],
            ),
            take_several: statement(
                "SELECT fencepost.take_several($1, $2, $3, $4, $5, $6, $7)",
                &[TEXT, EACH_TEXT, BYTES, LONG, TEXT, INT, BOOL],
            ),
            claim: statement(
                "SELECT pg_catalog.to_json(answer)::pg_catalog.text \
                 FROM fencepost.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS answer",
                &[TEXT, TEXT, BYTES, LONG, TEXT, INT, TEXT, BOOL, BOOL, BOOL, INT, INT],
            ),
            release: statement("SELECT fencepost.release($1, $2, $3)", &[TEXT, TEXT, BYTES]),
            give_back: statement("SELECT fencepost.give_back($1, $2, $3)", &[TEXT, TEXT, BYTES]),
            release_several: statement("SELECT fencepost.release_several($1, $2, $3)", &[TEXT, EACH_TEXT, BYTES]),
            renew: statement(
                "SELECT fencepost.renew($1, $2, $3, $4, $5, $6)",
                &[TEXT, EACH_TEXT, EACH_BYTES, EACH_LONG, INT, BOOL],
            ),
            downgrade: statement(
                "SELECT fencepost.downgrade($1, $2, $3, $4, $5, $6)",
                &[TEXT, TEXT, BYTES, LONG, INT, BOOL],
            ),
            settle: statement("SELECT fencepost.settle($1, $2)", &[TEXT, TEXT]),
            announce: statement("SELECT fencepost.announce($1, $2, $3, $4)", &[TEXT, EACH_TEXT, EACH_BYTES, INT]),
            look: statement(
                "SELECT place, became, left_ms FROM fencepost.look($1, $2, $3)",
                &[TEXT, EACH_TEXT, EACH_BYTES],
            ),
            inspect: statement(
                "SELECT name, waits, owner, claimant, fence, since_ms, left_ms, shared, permits, \"of\", slots \
                 FROM fencepost.inspect($1, $2)",
                &[TEXT, TEXT],
            ),
            force: statement(
                "SELECT outcome, holder, holder_fence, since_ms, left_ms FROM fencepost.force($1, $2, $3)",
                &[TEXT, TEXT, LONG],
            ),
            resize: statement("SELECT outcome, former FROM fencepost.resize($1, $2, $3)", &[TEXT, TEXT, INT]),
            look_at_cell: statement(
                "SELECT value, version, writer, left_ms FROM fencepost.look_at_cell($1, $2)",
                &[TEXT, TEXT],
            ),
            change_cell: statement(
                "SELECT value, version, writer, left_ms, done FROM fencepost.change_cell($1, $2, $3, $4, $5, $6, $7)",
                &[TEXT, TEXT, BYTES, LONG, BYTES, LONG, TEXT],
            ),
            hear_cells: within(
                schema,
                "SELECT pg_catalog.pg_advisory_lock_shared('fencepost.locks'::pg_catalog.regclass::integer, 0); \
                 LISTEN fencepost_cells",
            ),
        };
        debug_assert_eq!(place, STATEMENTS, "each has a place");
        statements
    }
}

/// What creates the tables and functions, as one script.
pub(crate) fn schema(schema: &str) -> String {
    within(schema, &[&[TABLES], &FUNCTIONS[..], &[TRIGGERS]].concat().join("\n"))
}

/// What makes the tables and functions of version `from` those of this one; `None` where there is no way.
pub(crate) fn upgrade(schema: &str, from: i32) -> Option<String> {
    let steps = STEPS.get(usize::try_from(from).ok()?.checked_sub(1)?..)?;
    (!steps.is_empty()).then(|| within(schema, &[steps, &FUNCTIONS].concat().join("\n")))
}

/// The rights that a role needs: to use locks, and to look at them.
pub(crate) fn rights(schema: &str) -> String {
    within(schema, include_str!("sql/rights.sql"))
}

/// The files are written for the schema `fencepost`; names that need quotes are refused when the URL is read.
fn within(schema: &str, text: &str) -> String {
    text.replace("fencepost.", &format!("{schema}."))
        .replace("SCHEMA IF NOT EXISTS fencepost;", &format!("SCHEMA IF NOT EXISTS {schema};"))
        .replace("IN SCHEMA fencepost ", &format!("IN SCHEMA {schema} "))
        .replace("ON SCHEMA fencepost ", &format!("ON SCHEMA {schema} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_put_into_the_schema() {
        assert!(schema("other").contains("'fencepost_session.client'"));
        for text in [schema("other"), upgrade("other", 1).unwrap(), rights("other")] {
            for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
                // Channels and settings are the database's, whatever the schema.
                let rest = line.replace("fencepost_", "");
                assert!(!rest.contains("fencepost"), "{line}");
            }
        }
    }
}
