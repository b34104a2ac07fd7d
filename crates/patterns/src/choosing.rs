//! From what you need to what serves it: one tree, read by `fencepost advise` and by `docs/choosing.md`.
//!
//! ```
//! use fencepost_patterns::choosing::{Next, TREE};
//!
//! let Next::Answer(answer) = TREE.follow(|question| match question.word {
//!     "shared" => Some("yes"),
//!     "need" => Some("request"),
//!     _ => None, // not asked on this way
//! }).unwrap() else { panic!("every question was answered") };
//! assert_eq!(answer.word, "once");
//! ```

mod answers;
mod page;

use std::fmt;

use fencepost_core::capabilities::{Capabilities, Class};
use serde::Serialize;

pub use self::{answers::*, page::markdown};

/// Something to ask.
#[derive(Debug)]
pub struct Question {
    /// Its name: the flag of `fencepost advise`.
    pub word: &'static str,
    /// The question.
    pub asks: &'static str,
    /// Why it matters.
    pub since: &'static str,
    /// What can be said to it, at least two things.
    pub choices: &'static [Choice],
}

/// Something that can be said to a [`Question`].
#[derive(Debug)]
pub struct Choice {
    /// Its name: a value of the flag.
    pub word: &'static str,
    /// What it means.
    pub says: &'static str,
    /// Where it leads.
    pub next: Next,
}

/// Where a choice leads.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// On to another question.
    Ask(&'static Question),
    /// To an answer.
    Answer(&'static Answer),
}

/// What serves the need.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Its name.
    pub word: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Why it serves.
    pub because: &'static str,
    /// The call in Rust; the tests compile it.
    pub rust: &'static str,
    /// The same by hand: the SQL, the Redis commands, the shell.
    pub by_hand: &'static [ByHand],
    /// What can still go wrong.
    pub still: &'static [&'static str],
    /// What it asks of a store.
    pub needs: Needs,
}

/// The same in another language.
#[derive(Debug, Serialize)]
pub struct ByHand {
    /// Which: `sql`, `redis` or `sh`.
    pub language: &'static str,
    /// The text.
    pub text: &'static str,
}

/// What an answer asks of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Needs {
    /// Nothing: there is no lock in it.
    NoLock,
    /// Any store that locks.
    AnyStore,
    /// A store that keeps cells.
    Cells,
    /// A store for correctness: its grants carry a fence.
    Fence,
}

/// A choice that its question does not have.
#[derive(Debug, PartialEq, Eq)]
pub struct NoSuchChoice {
    question: &'static str,
    said: String,
}

impl Question {
    /// The choice of this name.
    ///
    /// # Errors
    /// [`NoSuchChoice`], which names those that there are.
    pub fn choice(&self, word: &str) -> Result<&'static Choice, NoSuchChoice> {
        let no_such = || NoSuchChoice { question: self.word, said: word.to_owned() };
        self.choices.iter().find(|choice| choice.word == word).ok_or_else(no_such)
    }

    /// Follows what is said to each question, up to an answer or the first question that nothing is said to.
    ///
    /// # Errors
    /// [`NoSuchChoice`] for what a question on the way does not have.
    pub fn follow<'a>(
        &'static self,
        mut said: impl FnMut(&'static Question) -> Option<&'a str>,
    ) -> Result<Next, NoSuchChoice> {
        let mut at = self;
        loop {
            let Some(word) = said(at) else { return Ok(Next::Ask(at)) };
            match at.choice(word)?.next {
                Next::Ask(question) => at = question,
                answer @ Next::Answer(_) => return Ok(answer),
            }
        }
    }

    /// This question and all that can be asked after it, each once, those nearer to the beginning first.
    pub fn with_all_below(&'static self) -> Vec<&'static Question> {
        let mut found = vec![self];
        let mut next = 0;
        while let Some(question) = found.get(next).copied() {
            for choice in question.choices {
                if let Next::Ask(below) = choice.next
                    && found.iter().all(|seen| seen.word != below.word)
                {
                    found.push(below);
                }
            }
            next += 1;
        }
        found
    }

    /// Every answer that can come of it, each once.
    pub fn answers(&'static self) -> Vec<&'static Answer> {
        let mut found: Vec<&'static Answer> = Vec::new();
        for choice in self.with_all_below().iter().flat_map(|question| question.choices) {
            if let Next::Answer(answer) = choice.next
                && found.iter().all(|seen| seen.word != answer.word)
            {
                found.push(answer);
            }
        }
        found
    }
}

impl Needs {
    /// Whether a store of these capabilities has it.
    pub fn served_by(self, store: &Capabilities) -> bool {
        match self {
            Needs::NoLock | Needs::AnyStore => true,
            Needs::Cells => store.cells,
            Needs::Fence => store.class == Class::Correctness,
        }
    }
}

impl fmt::Display for NoSuchChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = TREE.with_all_below();
        let choices = all.iter().find(|question| question.word == self.question).map_or(&[][..], |found| found.choices);
        let words: Vec<_> = choices.iter().map(|choice| choice.word).collect();
        write!(f, "{:?} is no answer to {:?}; there are {}", self.said, self.question, words.join(", "))
    }
}

impl std::error::Error for NoSuchChoice {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_through_the_tree_ends_in_an_answer() {
        let questions = TREE.with_all_below();
        let mut words: Vec<_> = questions.iter().map(|question| question.word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), questions.len(), "two questions of one name");
        for question in &questions {
            assert!(question.choices.len() > 1, "{} leaves no choice", question.word);
        }
        assert!(longest(TREE, 0) <= questions.len(), "a way that comes back to where it was");
    }

    fn longest(from: &Question, so_far: usize) -> usize {
        assert!(so_far < 20, "a way without an end");
        let below = from.choices.iter().map(|choice| match choice.next {
            Next::Ask(question) => longest(question, so_far + 1),
            Next::Answer(_) => so_far + 1,
        });
        below.max().expect("a question has choices")
    }

    #[test]
    fn each_answer_says_what_can_still_go_wrong_and_how_it_is_called() {
        let answers = TREE.answers();
        for answer in &answers {
            assert!(!answer.still.is_empty() && !answer.rust.is_empty(), "{}", answer.word);
        }
        let words: Vec<_> = answers.iter().map(|answer| answer.word).collect();
        for wanted in ["no-lock", "conditional-update", "once", "claim", "partition", "efficiency-lock", "fenced-lock"]
        {
            assert!(words.contains(&wanted), "{wanted} is not among {words:?}");
        }
    }

    #[test]
    fn a_way_stops_at_the_first_question_without_an_answer() {
        let Ok(Next::Ask(question)) = TREE.follow(|question| (question.word == "shared").then_some("yes")) else {
            panic!("only one question was answered")
        };
        assert_eq!(question.word, "need");
        let refused = TREE.follow(|_| Some("perhaps")).unwrap_err().to_string();
        assert_eq!(refused, r#""perhaps" is no answer to "shared"; there are no, yes"#);
    }
}
