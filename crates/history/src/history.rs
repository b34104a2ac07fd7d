//! A history in memory, with names as numbers.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::event::Event;

/// A name of a [`History`]: of a client, a lock, a grant, a resource or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub(crate) u32);

impl Name {
    /// Its place in a table of all names.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An event and the line where it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What happened.
    pub event: Event<Name>,
    /// The line, counted from 1.
    pub line: u32,
}

/// Events in the order of their times.
#[derive(Clone, Debug, Default)]
pub struct History {
    names: Vec<Box<str>>,
    /// By what they are called, which stands in `names` alone.
    numbers: HashTable<Name>,
    hashing: DefaultHashBuilder,
    events: Vec<Recorded>,
    sorted: bool,
}

impl History {
    /// A history of these events; their places stand for lines.
    pub fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut history = Self::default();
        for (index, event) in events.into_iter().enumerate() {
            history.push(event, u32::try_from(index + 1).unwrap_or(u32::MAX));
        }
        history.sort();
        history
    }

    pub(crate) fn push(&mut self, event: Event<impl AsRef<str> + Into<String>>, line: u32) {
        let event = event.map(|name| self.intern(name));
        self.events.push(Recorded { event, line });
        self.sorted = false;
    }

    /// Processes write their lines when they get to it: only the times say what came first. Equal times keep the order
    /// of their lines.
    pub(crate) fn sort(&mut self) {
        if !self.sorted {
            self.events.sort_by_key(|recorded| recorded.event.at);
            self.sorted = true;
        }
    }

    /// The events, earliest first.
    pub fn events(&self) -> &[Recorded] {
        &self.events
    }

    /// The text of a name.
    pub fn text(&self, name: Name) -> &str {
        self.names.get(name.index()).map_or("", |text| text)
    }

    /// How many names there are.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// The number of a text that occurs.
    pub fn name(&self, text: &str) -> Option<Name> {
        let called = |name: &Name| *self.names[name.index()] == *text;
        self.numbers.find(self.hashing.hash_one(text), called).copied()
    }

    fn intern(&mut self, text: impl AsRef<str> + Into<String>) -> Name {
        if let Some(name) = self.name(text.as_ref()) {
            return name;
        }
        // Four thousand million different names do not fit a history that fits a memory.
        let name = Name(u32::try_from(self.names.len()).expect("fewer names than fit 32 bits"));
        let Self { names, numbers, hashing, .. } = self;
        numbers.insert_unique(hashing.hash_one(text.as_ref()), name, |other| hashing.hash_one(&*names[other.index()]));
        names.push(text.into().into_boxed_str());
        name
    }
}
