//! A client's lane: when it waits, believes, and is told; and below that, what the store surely holds for it.

use fencepost_history::{Hold, Name, Recorded, Timeline, What};
use maud::{Markup, html};

use super::{LANE, Scene, cross, round, text_width, who};

/// A shorter wait than this part of the whole is not seen.
const SEEN: u64 = 300;

impl Scene<'_> {
    pub(super) fn lane(&self, by: Name, y: f64, lane: usize, timeline: &Timeline) -> Markup {
        let name = self.text(by);
        let seen = (self.end - self.begin) / SEEN;
        let holds: Vec<&Hold> = timeline.holds.iter().filter(|hold| hold.by == by).collect();
        let waits = timeline.attempts.iter().filter(|attempt| attempt.by == by && attempt.ended - attempt.asked > seen);
        html! {
            g class=(who(Some(lane))) {
                line.rule x1="0" x2=(self.width) y1=(round(y + LANE)) y2=(round(y + LANE)) {}
                text x="4" y=(round(y + 22.0)) { (shortened(name)) @if name.chars().count() > LONGEST { title { (name) } } }
                text.faint x="4" y=(round(y + 36.0)) { "believes/holds" }
                @for attempt in waits.filter(|attempt| self.shows(attempt.asked, attempt.ended)) {
                    line.waits x1=(self.x(attempt.asked)) x2=(self.x(attempt.ended)) y1=(round(y + 18.0)) y2=(round(y + 18.0)) {}
                }
                @for hold in holds.iter().filter(|hold| self.shows(hold.granted, hold.believed_until.max(hold.sure_until))) {
                    (self.hold(hold, name, y))
                }
                (self.labels(&holds, y))
                (self.told(by, y, timeline))
            }
        }
    }

    fn hold(&self, hold: &Hold, name: &str, y: f64) -> Markup {
        let until = hold.believed_until.min(self.end).max(hold.granted);
        let sure = hold.sure_until.min(self.end).max(hold.granted);
        let grant = self.text(hold.grant);
        html! {
            rect.believes x=(self.x(hold.granted)) y=(round(y + 11.0)) width=(self.length(hold.granted, until)) height="14" rx="2" {
                title { (name) " believes that it holds " (self.text(hold.lock)) ", grant " (grant) }
            }
            @if let Some(since) = hold.reader_since.filter(|since| *since < until) {
                // As a reader from here on: the lower half only.
                rect.beside x=(self.x(since)) y=(round(y + 11.0)) width=(self.length(since, until)) height="7" {
                    title { (name) " is a reader from here on" }
                }
            }
            rect.holds x=(self.x(hold.granted)) y=(round(y + 29.0)) width=(self.length(hold.granted, sure)) height="6" rx="2" {
                title { "the store holds " (self.text(hold.lock)) " for " (name) ", grant " (grant) }
            }
        }
    }

    /// The fences, and which lock, where there is room for the words.
    fn labels(&self, holds: &[&Hold], y: f64) -> Markup {
        let mut room = 0.0;
        let mut placed = Vec::new();
        for hold in holds.iter().filter(|hold| self.shows(hold.granted, hold.granted)) {
            let fence = hold.fence.map(|fence| format!("fence {fence}"));
            let lock = (self.locks > 1).then(|| self.text(hold.lock).to_owned());
            let label = lock.into_iter().chain(fence).collect::<Vec<_>>().join(", ");
            let x = self.x(hold.granted);
            if !label.is_empty() && x >= room {
                room = x + text_width(&label) + 8.0;
                placed.push((x, label));
            }
        }
        html! { @for (x, label) in placed { text.faint x=(round(x)) y=(round(y + 8.0)) { (label) } } }
    }

    /// When it was told that it lost, and when it died.
    fn told(&self, by: Name, y: f64, timeline: &Timeline) -> Markup {
        let of_client = |recorded: &&Recorded| {
            let lost = |grant| timeline.holds.iter().any(|hold| hold.grant == grant && hold.by == by);
            match recorded.event.what {
                What::Lost { grant, .. } => recorded.event.by == by || lost(grant),
                What::Died => recorded.event.by == by,
                _ => false,
            }
        };
        let within = self.history.events().iter().filter(|one| self.shows(one.event.at, one.event.at));
        html! {
            @for Recorded { event, .. } in within.filter(of_client) {
                @let x = self.x(event.at);
                @match &event.what {
                    What::Lost { why, .. } => line.told x1=(x) x2=(x) y1=(round(y + 8.0)) y2=(round(y + 28.0)) {
                        title { (self.text(by)) " is told that it lost: " (self.text(*why)) }
                    },
                    _ => path.death d=(cross(x, y + 18.0)) { title { (self.text(by)) " died" } },
                }
            }
        }
    }
}

/// A name as long as the room beside the lanes.
const LONGEST: usize = 13;

fn shortened(name: &str) -> String {
    if name.chars().count() <= LONGEST {
        return name.to_owned();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}
