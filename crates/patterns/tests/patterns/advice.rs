//! What `fencepost advise` prints to be done by hand is done here, on real servers. Its Rust is compiled with the documentation, and
//! its shell is run with the tests of the command.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use fencepost_patterns::choosing::TREE;
use fencepost_servers::RedisServer;

use crate::database::{Database, client};

/// What an answer's SQL works on, and what comes of it.
struct Sql {
    answer: &'static str,
    tables: &'static str,
    /// Which of its statements, with what in place of `$1`, `$2` and so on, and how many rows it changes or answers.
    steps: &'static [(usize, &'static [&'static str], u64)],
}

const SQL: &[Sql] = &[
    Sql {
        answer: "conditional-update",
        tables: "CREATE TABLE stock (item bigint PRIMARY KEY, pieces bigint NOT NULL);
                 INSERT INTO stock VALUES (4711, 1);
                 CREATE TABLE documents (id bigint PRIMARY KEY, body text NOT NULL, version bigint NOT NULL);
                 INSERT INTO documents VALUES (7, 'old', 3);
                 CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL);
                 INSERT INTO accounts VALUES ('alice', 100), ('bob', 0)",
        steps: &[
            (0, &[], 1),
            (0, &[], 0),
            (1, &["'new'", "7", "3"], 1),
            (1, &["'late'", "7", "3"], 0),
            (2, &["'alice'", "'bob'", "70"], 1),
            (2, &["'alice'", "'bob'", "70"], 0),
            (2, &["'bob'", "'alice'", "70"], 1),
            (2, &["'bob'", "'nobody'", "0"], 0),
        ],
    },
    Sql {
        answer: "once",
        tables: "CREATE TABLE seen (key text PRIMARY KEY, result text NOT NULL)",
        steps: &[(0, &["'invoice'", "'sent'"], 1), (0, &["'invoice'", "'sent again'"], 0)],
    },
    Sql {
        answer: "claim",
        tables: "CREATE TABLE pieces (id bigint PRIMARY KEY, worker text, until timestamptz, done timestamptz);
                 INSERT INTO pieces VALUES (1)",
        steps: &[
            (0, &["'me'"], 1),
            (0, &["'another'"], 0),
            (1, &["'another'", "1"], 0),
            (1, &["'me'", "1"], 1),
            (1, &["'me'", "1"], 0),
        ],
    },
    Sql {
        answer: "fenced-lock",
        tables: "CREATE TABLE orders (id bigint PRIMARY KEY, state text, fence bigint NOT NULL DEFAULT 0);
                 INSERT INTO orders VALUES (1001, 'new')",
        steps: &[
            (0, &["7", "1001"], 1),
            (1, &["7", "1001"], 1),
            (0, &["8", "1001"], 1),
            (1, &["7", "1001"], 0),
            (0, &["7", "1001"], 0),
        ],
    },
];

/// The texts in a language, with the answers that they belong to.
fn by_hand(language: &'static str) -> Vec<(&'static str, &'static str)> {
    let answers = TREE.answers();
    let texts = answers.iter().flat_map(|answer| answer.by_hand.iter().map(|text| (answer.word, text)));
    texts.filter(|(_, text)| text.language == language).map(|(answer, text)| (answer, text.text)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_of_every_answer_does_what_it_says() {
    for (answer, text) in by_hand("sql") {
        let case = SQL.iter().find(|case| case.answer == answer);
        let case = case.unwrap_or_else(|| panic!("nobody has tried the SQL of {answer}"));
        let without_comments: Vec<_> = text.lines().filter(|line| !line.starts_with("--")).collect();
        let text = without_comments.join("\n");
        let statements: Vec<_> = text.split(';').map(str::trim).filter(|statement| !statement.is_empty()).collect();
        let database = Database::new();
        database.sql(case.tables);
        let client = client(&database.url()).await;
        for (place, values, rows) in case.steps {
            let mut statement = statements[*place].to_owned();
            for (number, value) in values.iter().enumerate() {
                statement = statement.replace(&format!("${}", number + 1), value);
            }
            let changed = client.execute(&statement, &[]).await;
            assert_eq!(changed.unwrap_or_else(|error| panic!("{statement}: {error}")), *rows, "{statement}");
        }
        let tried = |place| case.steps.iter().any(|(tried, _, _)| *tried == place);
        assert!((0..statements.len()).all(tried), "a statement of {answer} is not tried");
    }
}

/// What an answer's commands are preceded by, and what `redis-cli` prints for each of them, the first and the second time.
const REDIS: &[(&str, &[&str], [&str; 2])] = &[
    ("conditional-update", &["SET", "stock:4711", "1"], ["1\n", "0\n"]),
    ("rate", &[], ["OK\n", "\n"]),
    ("efficiency-lock", &[], ["OK\n1\n", "OK\n1\n"]),
];

#[test]
fn the_redis_commands_of_every_answer_do_what_they_say() {
    let server = RedisServer::start();
    for (answer, text) in by_hand("redis") {
        let case = REDIS.iter().find(|(word, ..)| *word == answer);
        let (_, before, printed) = case.unwrap_or_else(|| panic!("nobody has tried the commands of {answer}"));
        if !before.is_empty() {
            server.command(before);
        }
        for expected in printed {
            assert_eq!(redis_cli(&server, &text.replace("$random", "8d2f")), *expected, "{text}");
        }
    }
}

/// What it prints when this is typed in, but for lines that are comments.
fn redis_cli(server: &RedisServer, text: &str) -> String {
    let address = server.address();
    let mut client = Command::new("redis-cli"); // comes with Debian's redis-server, from redis-tools
    client.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut typed = client.stdin.take().unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        writeln!(typed, "{line}").unwrap();
    }
    drop(typed);
    String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap()
}
