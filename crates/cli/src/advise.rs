//! `fencepost advise`: walks the tree from the need to what serves it.

use std::{
    fmt::Write as _,
    io::{BufRead, IsTerminal, Write as _},
};

use fencepost::{
    capabilities::{Capabilities, Class, FenceSource},
    patterns::choosing::{Answer, Needs, Next, Question, TREE},
    registry::SCHEMES,
    url::StoreUrl,
};
use serde::Serialize;

use crate::{
    arguments::{Advise, Global},
    exit::Ending,
};

/// Carries the verb out.
pub(crate) fn advise(global: &Global, verb: &Advise) -> Ending {
    ask_and_tell(global, verb).unwrap_or_else(|ending| ending)
}

fn ask_and_tell(global: &Global, verb: &Advise) -> Result<Ending, Ending> {
    let store = global.stated_store().map(capabilities).transpose()?;
    let (way, answer) = walk(verb)?;
    let advice = Advice { way, answer, store: store.as_ref().map(|store| Judged::of(store, answer.needs)) };
    let text = if global.json {
        let json = serde_json::to_string(&advice);
        json.map_err(|error| Ending::internal(format!("cannot write JSON: {error}")))? + "\n"
    } else {
        advice.for_people()
    };
    Ok(crate::print(&text))
}

/// What was said to which question, and what comes of it.
#[derive(Serialize)]
struct Advice {
    way: Vec<Said>,
    answer: &'static Answer,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Judged>,
}

#[derive(Serialize)]
struct Said {
    question: &'static str,
    choice: &'static str,
}

/// Whether the store that was named can serve it.
#[derive(Serialize)]
struct Judged {
    name: &'static str,
    class: Class,
    #[serde(skip_serializing_if = "str::is_empty")]
    scope: &'static str,
    fence: FenceSource,
    serves: bool,
}

/// The answer, by what was said in flags and, on a terminal, by asking for the rest.
fn walk(verb: &Advise) -> Result<(Vec<Said>, &'static Answer), Ending> {
    let mut way: Vec<Said> = Vec::new();
    let mut at = TREE;
    let answer = loop {
        let choice = match verb.said(at) {
            Some(word) => at.choice(word).map_err(|error| Ending::usage(error.to_string()))?,
            None if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() => ask(at)?,
            None => return Err(missing(at)),
        };
        way.push(Said { question: at.word, choice: choice.word });
        match choice.next {
            Next::Ask(question) => at = question,
            Next::Answer(answer) => break answer,
        }
    };
    // Said for nothing: whoever said it thinks of another way than the one that was gone.
    match verb.questions().find(|said| way.iter().all(|asked| asked.question != *said)) {
        Some(never) => Err(Ending::usage(format!("--{never} is not asked on this way, which ends in {}", answer.word))),
        None => Ok((way, answer)),
    }
}

/// Asks on the terminal until one of the choices is given, by its name or number. The questions go to stderr, so that
/// the answer can be piped.
fn ask(question: &'static Question) -> Result<&'static fencepost::patterns::choosing::Choice, Ending> {
    let mut text = format!("{}\n  {}\n", question.asks, question.since);
    for (number, choice) in (1..).zip(question.choices) {
        put(&mut text, format_args!("  {number}  {:<8} {}\n", choice.word, choice.says));
    }
    let mut line = String::new();
    loop {
        put(&mut text, format_args!("{}? ", question.word));
        let told = std::io::stderr().write_all(text.as_bytes());
        line.clear();
        let read = told.and_then(|()| std::io::stdin().lock().read_line(&mut line));
        match read {
            Ok(0) => return Err(missing(question)),
            Ok(_) => {}
            Err(error) => return Err(Ending::internal(format!("cannot ask on the terminal: {error}"))),
        }
        let said = line.trim();
        let by_number = said.parse::<usize>().ok().and_then(|number| question.choices.get(number.checked_sub(1)?));
        match by_number.map_or_else(|| question.choice(said), Ok) {
            Ok(choice) => return Ok(choice),
            Err(error) => text = format!("  {error}, or their numbers\n"),
        }
    }
}

fn missing(question: &Question) -> Ending {
    let words: Vec<_> = question.choices.iter().map(|choice| choice.word).collect();
    Ending::usage(format!("{} Say --{} {}", question.asks, question.word, words.join("|")))
}

/// The facts about the store of this URL, which is not connected to.
fn capabilities(url: &str) -> Result<Capabilities, Ending> {
    let url = StoreUrl::parse(url)?;
    let scheme = SCHEMES.iter().find(|scheme| scheme.names.contains(&url.scheme()));
    let no_such = || Ending::usage(format!("no store answers to `{}:`", url.scheme()));
    scheme.map(|scheme| (scheme.capabilities)()).ok_or_else(no_such)
}

impl Judged {
    fn of(store: &Capabilities, needs: Needs) -> Self {
        let &Capabilities { store: name, class, scope, fence, .. } = store;
        Self { name, class, scope, fence, serves: needs.served_by(store) }
    }

    fn for_people(&self, needs: Needs) -> String {
        let class = match self.class {
            Class::Efficiency => "efficiency",
            Class::Correctness => "correctness",
        };
        let scope = if self.scope.is_empty() { String::new() } else { format!(" ({})", self.scope) };
        let verdict = match (needs, self.serves, self.fence) {
            (Needs::NoLock, ..) => "no lock is taken there".to_owned(),
            (_, true, _) => "it serves this".to_owned(),
            (Needs::Cells, false, _) => {
                "it does not serve this: it keeps no cells, in which results are kept".to_owned()
            }
            (_, false, FenceSource::None(why)) => format!("it does not serve this: it has no fence, since {why}"),
            (_, false, FenceSource::Issued(_)) => "it does not serve this".to_owned(),
        };
        format!("{} is a store for {class}{scope}: {verdict}.\n\n", self.name)
    }
}

impl Advice {
    fn for_people(&self) -> String {
        let answer = self.answer;
        let mut text = format!("{}\n\n{}\n\n", answer.title, answer.because);
        if let Some(store) = &self.store {
            text.push_str(&store.for_people(answer.needs));
        }
        put(&mut text, format_args!("In Rust:\n\n{}\n", indented(answer.rust)));
        for by_hand in answer.by_hand {
            let language = match by_hand.language {
                "sql" => "SQL",
                "redis" => "Redis",
                _ => "the shell",
            };
            put(&mut text, format_args!("In {language}:\n\n{}\n", indented(by_hand.text)));
        }
        text.push_str("What can still go wrong:\n\n");
        for still in answer.still {
            put(&mut text, format_args!("- {}\n", without_links(still)));
        }
        text
    }
}

fn indented(code: &str) -> String {
    code.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect()
}

/// `[text](#link)` as `text`: on a terminal a link leads nowhere.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, (name, after))) =
        rest.split_once('[').and_then(|(before, link)| Some((before, link.split_once("](")?)))
    {
        plain.push_str(before);
        plain.push_str(name);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain + rest
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes everything");
}
