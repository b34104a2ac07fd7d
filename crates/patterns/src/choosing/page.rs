//! The tree as a page of documentation.

use std::fmt::Write;

use super::{Answer, Needs, Next, Question};

/// What stands between the marks of `docs/choosing.md`.
pub fn markdown(tree: &'static Question) -> String {
    let mut page = picture(tree);
    for question in tree.with_all_below() {
        ask(&mut page, question);
    }
    page.push_str("## The answers\n\n");
    for answer in tree.answers() {
        tell(&mut page, answer);
    }
    page
}

/// The whole tree at a glance, as GitHub draws it.
fn picture(tree: &'static Question) -> String {
    let mut page = "```mermaid\nflowchart LR\n".to_owned();
    for question in tree.with_all_below() {
        put(&mut page, format_args!("    {0}{{{{\"{0}?\"}}}}\n", question.word));
        for choice in question.choices {
            let target = match choice.next {
                Next::Ask(question) => question.word.to_owned(),
                Next::Answer(answer) => format!("{}[\"{}\"]", answer.word, answer.title),
            };
            put(&mut page, format_args!("    {} -- {} --> {target}\n", question.word, choice.word));
        }
    }
    page + "```\n\n"
}

fn ask(page: &mut String, question: &Question) {
    put(page, format_args!("### `--{}`: {}\n\n{}\n\n", question.word, question.asks, question.since));
    for choice in question.choices {
        let next = match choice.next {
            Next::Ask(question) => format!("ask [`--{0}`](#--{0}-{1})", question.word, anchor(question.asks)),
            Next::Answer(answer) => format!("[{}](#{})", answer.title, anchor(answer.title)),
        };
        put(page, format_args!("- `{}`: {}. → {next}\n", choice.word, choice.says));
    }
    page.push('\n');
}

fn tell(page: &mut String, answer: &Answer) {
    put(page, format_args!("### {}\n\n{}\n\n", answer.title, answer.because));
    let store = match answer.needs {
        Needs::NoLock => "no lock, so no store of locks",
        Needs::AnyStore => "any store",
        Needs::Cells => "a store that keeps [cells](primitives.md)",
        Needs::Fence => "a store for *correctness*, whose grants carry a fence",
    };
    put(page, format_args!("*Needs* {store}.\n\n```rust,no_run\n{}\n```\n\n", answer.rust));
    for by_hand in answer.by_hand {
        put(page, format_args!("```{}\n{}\n```\n\n", by_hand.language, by_hand.text));
    }
    page.push_str("*What can still go wrong.*\n\n");
    for still in answer.still {
        put(page, format_args!("- {still}\n"));
    }
    page.push('\n');
}

/// The link of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn put(page: &mut String, what: std::fmt::Arguments<'_>) {
    page.write_fmt(what).expect("a string takes everything");
}
