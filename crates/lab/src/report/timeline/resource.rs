//! What the resource saw: what it accepted and refused, in the colours of the clients.

use fencepost_history::{Name, Recorded, Timeline, What};
use maud::{Markup, html};

use super::{LANE, LEFT, Scene, cross, round, who};

/// Marks that are nearer to each other than this stand one below the other.
const APART: f64 = 11.0;
/// So many may.
const LEVELS: usize = 3;

impl Scene<'_> {
    pub(super) fn resource(&self, events: &[Recorded], timeline: &Timeline, top: f64) -> Markup {
        let y = top + LANE * self.lanes.len() as f64 + 20.0;
        let client = |grant: Name| timeline.holds.iter().find(|hold| hold.grant == grant).map(|hold| hold.by);
        let mut last = [f64::NEG_INFINITY; LEVELS];
        let mut level_at = |x: f64| {
            let level = last.iter().position(|before| x - before >= APART).unwrap_or(LEVELS - 1);
            last[level] = x;
            level
        };
        html! {
            text x="4" y=(round(y)) { "resource" }
            text.faint x="4" y=(round(y + 14.0)) { "writes, reads" }
            line.rule x1=(LEFT) x2=(self.width) y1=(round(y)) y2=(round(y)) {}
            @for Recorded { event, .. } in events {
                @let (verb, grant, taken) = match event.what {
                    What::Read { grant, taken, .. } => ("read", Some(grant), taken),
                    What::Write { grant, taken, .. } => ("write", Some(grant), taken),
                    _ => ("", None, false),
                };
                @if let Some(grant) = grant {
                    @let by = client(grant);
                    @let x = self.x(event.at);
                    @let y = y + 13.0 * level_at(x) as f64;
                    g class=(who(by.and_then(|by| self.lanes.get(&by).copied()))) {
                        @if !taken { path.cross d=(cross(x, y)) { (self.said(verb, by, grant, taken)) } }
                        @else if verb == "write" { circle.dot cx=(x) cy=(round(y)) r="5" { (self.said(verb, by, grant, taken)) } }
                        @else { circle.ring cx=(x) cy=(round(y)) r="3.5" { (self.said(verb, by, grant, taken)) } }
                    }
                }
            }
        }
    }

    fn said(&self, verb: &str, by: Option<Name>, grant: Name, taken: bool) -> Markup {
        let by = by.map_or("nobody known", |by| self.text(by));
        html! { title { (verb) " of " (by) " under " (self.text(grant)) ", " (if taken { "accepted" } else { "refused" }) } }
    }
}
