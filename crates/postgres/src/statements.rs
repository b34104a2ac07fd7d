//! The statements, and the schema that they need. What happens in one transaction of the server is written in the `.sql`
//! files; here are only the calls.

use tokio_postgres::types::Type;

/// The version of the tables and functions that this crate works with.
pub(crate) const VERSION: i32 = 1;

/// The first key of the advisory locks by which a listening client shows that it lives.
pub(crate) const LISTENS: i32 = 1_717_923_427;

const SCHEMA: [&str; 6] = [
    include_str!("sql/tables.sql"),
    include_str!("sql/epoch.sql"),
    include_str!("sql/queue.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/verbs.sql"),
    include_str!("sql/cells.sql"),
];

/// The second key of the lock that shows that somebody waits for a cell; clients have numbers from 1 on.
pub(crate) const CELLS: i32 = 0;

/// A statement, sent as it is the first time on a connection and prepared from then on.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
    /// Its place among the prepared ones.
    pub(crate) place: usize,
}

pub(crate) const STATEMENTS: usize = 14;

/// All of them, for one schema.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) version: Statement,
    pub(crate) claim: Statement,
    pub(crate) release: Statement,
    pub(crate) renew: Statement,
    pub(crate) settle: Statement,
    pub(crate) force: Statement,
    pub(crate) announce: Statement,
    pub(crate) look: Statement,
    pub(crate) inspect: Statement,
    pub(crate) look_at_cell: Statement,
    pub(crate) change_cell: Statement,
    pub(crate) share: Statement,
    pub(crate) downgrade: Statement,
    pub(crate) resize: Statement,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        const NAMES: &[Type] = &[Type::TEXT, Type::TEXT_ARRAY, Type::BYTEA_ARRAY];
        let statement = |place, text: &str, types| Statement { text: within(schema, text), types, place };
        Self {
            version: statement(0, "SELECT version, oldest FROM fencepost.state", &[]),
            claim: statement(
                1,
                "SELECT fencepost.take($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[
                    Type::TEXT,
                    Type::TEXT,
                    Type::BYTEA,
                    Type::INT8,
                    Type::TEXT,
                    Type::INT4,
                    Type::TEXT,
                    Type::BOOL,
                    Type::BOOL,
                ],
            ),
            release: statement(2, "SELECT fencepost.release($1, $2, $3)", &[Type::TEXT, Type::TEXT, Type::BYTEA]),
            renew: statement(
                3,
                "SELECT fencepost.renew($1, $2, $3, $4, $5, $6)",
                &[Type::TEXT, Type::TEXT_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::INT4, Type::BOOL],
            ),
            settle: statement(4, "SELECT fencepost.settle($1, $2)", &[Type::TEXT, Type::TEXT]),
            force: statement(
                5,
                "SELECT outcome, holder, holder_fence, since_ms, left_ms FROM fencepost.force($1, $2, $3)",
                &[Type::TEXT, Type::TEXT, Type::INT8],
            ),
            announce: statement(
                6,
                "SELECT fencepost.announce($1, $2, $3, $4)",
                &[Type::TEXT, Type::TEXT_ARRAY, Type::BYTEA_ARRAY, Type::INT4],
            ),
            look: statement(7, "SELECT place, became, left_ms FROM fencepost.look($1, $2, $3)", NAMES),
            inspect: statement(8, include_str!("sql/inspect.sql"), &[Type::TEXT, Type::TEXT]),
            look_at_cell: statement(
                9,
                "SELECT value, version, writer, fencepost.left_of(c) AS left_ms FROM fencepost.cells AS c \
                 WHERE namespace = $1 AND key = $2 AND fencepost.is_there(c)",
                &[Type::TEXT, Type::TEXT],
            ),
            change_cell: statement(
                10,
                "SELECT value, version, writer, left_ms, done FROM fencepost.change_cell($1, $2, $3, $4, $5, $6, $7)",
                &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::BYTEA, Type::INT8, Type::TEXT],
            ),
            share: statement(
                11,
                "SELECT to_json(answer)::text \
                 FROM fencepost.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS answer",
                &[
                    Type::TEXT,
                    Type::TEXT,
                    Type::BYTEA,
                    Type::INT8,
                    Type::TEXT,
                    Type::INT4,
                    Type::TEXT,
                    Type::BOOL,
                    Type::BOOL,
                    Type::BOOL,
                    Type::INT4,
                    Type::INT4,
                ],
            ),
            downgrade: statement(
                12,
                "SELECT fencepost.downgrade($1, $2, $3, $4, $5, $6)",
                &[Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT8, Type::INT4, Type::BOOL],
            ),
            resize: statement(
                13,
                "SELECT outcome, former FROM fencepost.resize($1, $2, $3)",
                &[Type::TEXT, Type::TEXT, Type::INT4],
            ),
        }
    }
}

/// What creates the tables and functions, as one script.
pub(crate) fn schema(schema: &str) -> String {
    within(schema, &SCHEMA.join("\n"))
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
        for text in [schema("other"), rights("other")] {
            for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
                // Channels and settings are the database's, whatever the schema.
                let rest = line.replace("fencepost_", "");
                assert!(!rest.contains("fencepost"), "{line}");
            }
        }
    }
}
