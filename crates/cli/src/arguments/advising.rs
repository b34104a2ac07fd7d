//! The flags of `advise`: one for each question of the tree, so that the tree alone says what can be asked.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, builder::PossibleValue};
use fencepost::patterns::choosing::{Question, TREE};

/// What was said on the command line, as question and choice.
#[derive(Debug)]
pub(crate) struct Advise(Vec<(&'static str, String)>);

impl Advise {
    /// What was said to a question.
    pub(crate) fn said(&self, to: &Question) -> Option<&str> {
        self.0.iter().find(|(question, _)| *question == to.word).map(|(_, choice)| choice.as_str())
    }

    /// The questions that something was said to.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(question, _)| *question)
    }
}

impl FromArgMatches for Advise {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let said = TREE.with_all_below().into_iter().filter_map(|question| {
            let choice = matches.get_one::<String>(question.word)?;
            Some((question.word, choice.clone()))
        });
        Ok(Self(said.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Advise {
    fn augment_args(command: Command) -> Command {
        let flags = TREE.with_all_below().into_iter().map(|question| {
            let choices = question.choices.iter().map(|choice| PossibleValue::new(choice.word).help(choice.says));
            let choices: Vec<_> = choices.collect();
            Arg::new(question.word).long(question.word).value_name("ANSWER").help(question.asks).value_parser(choices)
        });
        command.args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
