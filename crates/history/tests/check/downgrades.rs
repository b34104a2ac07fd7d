//! A writer becomes a reader without a gap: readers may be beside it from then on, and no writer.

use fencepost_history::{Answer, Event, History, Holding, Kind, Options, Verb, What, check};
use proptest::prelude::*;

const EXACT: Options = Options { tolerance: 0, most_bypassed: None, slowest_recovery: None };

/// Every moment of a writer that becomes a reader, of the reader that joins it, and of the writer after both.
#[derive(Clone, Copy, Debug)]
struct Story {
    written: u64,
    downgrade_asked: u64,
    downgrade_answered: u64,
    reader_asked: u64,
    reader_granted: u64,
    reader_reads: u64,
    reads_as_reader: u64,
    both_over: u64,
    next_asked: u64,
    next_granted: u64,
    next_fence: u64,
    reader_fence: u64,
    answer: Option<Answer>,
}

impl Story {
    /// As it is right, with so many nanoseconds between one step and the next.
    fn told(steps: [u64; 10]) -> Self {
        let mut now = 1;
        let mut next = |step: usize| {
            now += steps[step];
            now
        };
        let written = next(0);
        // It may ask before the downgrade, and comes in before its answer arrives.
        let reader_asked = next(1);
        let downgrade_asked = next(2);
        let reader_granted = next(3);
        let downgrade_answered = next(4);
        let (reader_reads, reads_as_reader) = (next(5), next(6));
        let next_asked = next(7);
        let (both_over, next_granted) = (next(8), next(9) + 1);
        let (reader_fence, next_fence, answer) = (1, 2, Some(Answer::Renewed));
        Self {
            written,
            downgrade_asked,
            downgrade_answered,
            reader_asked,
            reader_granted,
            reader_reads,
            reads_as_reader,
            both_over,
            next_asked,
            next_granted,
            next_fence,
            reader_fence,
            answer,
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        check(&self.history(), &EXACT).list.into_iter().map(|finding| finding.kind).collect()
    }

    fn history(&self) -> History {
        let mut events = Vec::new();
        let mut push = |at, by: &str, what| events.push(Event { at, by: by.to_owned(), what });
        let (ttl, until) = (Some(1_000_000), Some(900_000));
        let granted =
            |fence| What::Ok { answer: Answer::Granted, fence: Some(fence), ttl, from: None, until, slots: None };
        let asks = |verb, grant: &str| What::asks(verb, "x".to_owned(), grant.to_owned());
        push(0, "w", asks(Verb::Acquire, "w1"));
        push(1, "w", granted(1));
        push(self.downgrade_asked, "w", asks(Verb::Downgrade, "w1"));
        let outcome = self.answer.map(|answer| What::Ok { answer, fence: None, ttl, from: None, until, slots: None });
        let unknown = What::Unknown { why: "no answer".to_owned() };
        push(self.downgrade_answered, "w", outcome.unwrap_or(unknown));

        let (verb, lock, grant) = (Verb::Acquire, "x".to_owned(), "r1".to_owned());
        push(self.reader_asked, "r", What::Invoke { verb, lock, grant, holding: Holding::Shared });
        push(self.reader_granted, "r", granted(self.reader_fence));
        for (by, grant) in [("w", "w1"), ("r", "r1")] {
            push(self.both_over, by, asks(Verb::Release, grant));
            push(self.both_over, by, What::says(Answer::Released));
        }
        push(self.next_asked, "n", asks(Verb::Acquire, "n1"));
        push(self.next_granted, "n", granted(self.next_fence));

        let write = |grant: &str, fence, version| {
            let grant = grant.to_owned();
            What::Write { grant, fence: Some(fence), basis: version - 1, version, taken: true }
        };
        let read =
            |grant: &str, fence| What::Read { grant: grant.to_owned(), fence: Some(fence), version: 1, taken: true };
        push(self.written, "ledger", write("w1", 1, 1));
        push(self.reader_reads, "ledger", read("r1", self.reader_fence));
        push(self.reads_as_reader, "ledger", read("w1", 1));
        push(self.next_granted + 1, "ledger", write("n1", self.next_fence, 2));
        History::of(events)
    }
}

/// Changes the story.
type Change = fn(&mut Story);

const MUTATIONS: &[(&str, Change, Kind)] = &[
    (
        "a reader came before the writer asked to be one",
        |story| story.reader_granted = story.downgrade_asked - 1,
        Kind::DoubleGrant,
    ),
    (
        "and the writer believed that it was alone",
        |story| story.reader_granted = story.downgrade_asked - 1,
        Kind::BeliefOverlap,
    ),
    (
        "there was a gap, in which a writer came in",
        |story| (story.next_asked, story.next_granted) = (story.downgrade_asked, story.downgrade_answered),
        Kind::DoubleGrant,
    ),
    (
        "a writer came in while it was a reader",
        |story| (story.next_asked, story.next_granted) = (story.reads_as_reader, story.reads_as_reader + 1),
        Kind::BeliefOverlap,
    ),
    ("its write arrived when a reader had read", |story| story.written = story.reader_reads + 1, Kind::StaleAccepted),
    (
        "its write arrived when a reader had come in",
        |story| {
            story.written = story.reader_granted + 1;
            story.reader_reads = story.written + 1;
        },
        Kind::LateAccepted,
    ),
    (
        "it read when the next writer had been there",
        |story| story.reads_as_reader = story.next_granted + 2,
        Kind::StaleAccepted,
    ),
    (
        "the reader's fence is older than the writer's",
        |story| {
            (story.reader_fence, story.reader_asked) = (0, story.downgrade_asked);
        },
        Kind::FenceBackwards,
    ),
    ("the next writer has its fence", |story| story.next_fence = 1, Kind::FenceTwice),
];

proptest! {
    #[test]
    fn a_downgrade_is_clean_and_each_mutation_of_it_is_flagged(steps in prop::array::uniform10(2..50u64)) {
        let good = Story::told(steps);
        prop_assert_eq!(good.kinds(), [], "{:?}", good);
        for (what, change, kind) in MUTATIONS {
            let mut changed = good;
            change(&mut changed);
            let found = changed.kinds();
            prop_assert!(found.contains(kind), "{what}: {found:?}\n{changed:#?}");
        }
    }

    #[test]
    fn one_whose_outcome_is_unknown_lets_readers_in_and_keeps_writers_out(steps in prop::array::uniform10(2..50u64)) {
        let unclear = Story { answer: None, ..Story::told(steps) };
        prop_assert_eq!(unclear.kinds(), []);
        let mut gap = unclear;
        (gap.next_asked, gap.next_granted) = (gap.downgrade_answered, gap.downgrade_answered + 1);
        prop_assert!(gap.kinds().contains(&Kind::DoubleGrant));
    }
}
