//! A history as a drawing: who believes, who holds, what was done to whom, what the resource accepted and refused.

use std::collections::BTreeMap;

use fencepost_history::{Event, History, Phase, Timeline, What};
use maud::{Markup, PreEscaped, html};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 16.0;
const LANE: f64 = 46.0;
const TOP: f64 = 26.0;
/// So many grants can be labelled without a crowd.
const FEW: usize = 8;
/// Room behind the last event, as a part of the whole. Leases that nobody gave back are not drawn to their end.
const AFTER: u64 = 15;

/// An inline SVG with a text for those who cannot see it.
pub(super) fn drawing(events: &[Event]) -> Markup {
    let history = History::of(events.iter().cloned());
    let timeline = Timeline::of(&history);
    let scene = Scene::of(events);
    let height = TOP + LANE * (scene.lanes.len() as f64 + 1.0) + 34.0;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={"0 0 " (WIDTH) " " (height)} role="img" aria-label=(scene.described(&history, &timeline)) {
            (scene.scale(height))
            (scene.faults(events, height))
            @for (name, lane) in &scene.lanes { (scene.lane(name, *lane, &history, &timeline)) }
            (scene.resource(events, &history, &timeline))
        }
    }
}

/// Where things are on the drawing.
struct Scene {
    begin: u64,
    end: u64,
    /// The clients, by the order in which they come.
    lanes: BTreeMap<String, usize>,
}

impl Scene {
    fn of(events: &[Event]) -> Self {
        let mut order: Vec<&str> = Vec::new();
        for event in events {
            if matches!(event.what, What::Invoke { .. }) && !event.by.contains('\'') && !order.contains(&&*event.by) {
                order.push(&event.by);
            }
        }
        let begin = events.first().map_or(0, |first| first.at);
        let last = events.last().map_or(1, |last| last.at);
        let end = last + (last - begin) / AFTER + 1;
        Self { begin, end, lanes: order.into_iter().map(str::to_owned).zip(0..).collect() }
    }

    fn x(&self, at: u64) -> f64 {
        let at = at.clamp(self.begin, self.end);
        let part = (at - self.begin) as f64 / (self.end - self.begin).max(1) as f64;
        round(LEFT + part * (WIDTH - LEFT - RIGHT))
    }

    fn width(&self, from: u64, until: u64) -> f64 {
        round((self.x(until) - self.x(from)).max(1.5))
    }

    fn y(lane: usize) -> f64 {
        TOP + LANE * lane as f64
    }

    /// Lines at round times.
    fn scale(&self, height: f64) -> Markup {
        let span = (self.end - self.begin) / 1_000_000;
        let step = [20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000].into_iter().find(|step| span / step <= 10);
        let step = step.unwrap_or(60_000);
        html! {
            @for mark in (0..=span).step_by(usize::try_from(step).unwrap_or(1000)) {
                @let x = self.x(self.begin + mark * 1_000_000);
                line.rule x1=(x) x2=(x) y1=(TOP) y2=(round(height - 20.0)) {}
                text.faint x=(x) y=(round(height - 6.0)) text-anchor="middle" {
                    @if step < 1000 { (mark) " ms" } @else { (mark / 1000) " s" }
                }
            }
        }
    }

    /// A client: what it believes above what the store holds for it.
    fn lane(&self, name: &str, lane: usize, history: &History, timeline: &Timeline) -> Markup {
        let y = Self::y(lane);
        let who = format!("who-{}", lane % 4);
        let by = history.name(name);
        html! {
            g class=(who) {
                line.rule x1="0" x2=(WIDTH) y1=(y + LANE) y2=(y + LANE) {}
                text x="4" y=(y + 22.0) { (name) }
                text.faint x="4" y=(y + 36.0) { "believes/holds" }
                @for attempt in timeline.attempts.iter().filter(|attempt| Some(attempt.by) == by) {
                    @if attempt.ended - attempt.asked > 5_000_000 {
                        line.waits x1=(self.x(attempt.asked)) x2=(self.x(attempt.ended)) y1=(y + 18.0) y2=(y + 18.0) {}
                    }
                }
                @for hold in timeline.holds.iter().filter(|hold| Some(hold.by) == by) {
                    @let until = hold.believed_until.min(self.end);
                    rect.believes x=(self.x(hold.granted)) y=(y + 11.0) width=(self.width(hold.granted, until)) height="14" rx="2" {
                        title { (name) " believes, grant " (history.text(hold.grant)) }
                    }
                    @let until = hold.sure_until.min(self.end).max(hold.granted);
                    rect.holds x=(self.x(hold.granted)) y=(y + 29.0) width=(self.width(hold.granted, until)) height="6" rx="2" {
                        title { "the store holds for " (name) }
                    }
                    @if let Some(fence) = hold.fence.filter(|_| timeline.holds.len() <= FEW) {
                        text.faint x=(round(self.x(hold.granted) + 4.0)) y=(y + 8.0) { "fence " (fence) }
                    }
                }
            }
        }
    }

    /// Spans in the lane of whom a fault hit; over all lanes when that is the store or the network.
    fn faults(&self, events: &[Event], height: f64) -> Markup {
        let mut open: Vec<(&str, &str, u64)> = Vec::new();
        let mut spans: Vec<(&str, &str, u64, Option<u64>)> = Vec::new();
        for event in events {
            match &event.what {
                What::Fault { fault, target, phase: Phase::Begin, installed: true } => {
                    open.push((fault, target, event.at))
                }
                What::Fault { target, phase: Phase::End, .. } => {
                    if let Some(place) = open.iter().position(|(_, hit, _)| hit == target) {
                        let (fault, target, from) = open.remove(place);
                        spans.push((fault, target, from, Some(event.at)));
                    }
                }
                _ => {}
            }
        }
        spans.extend(open.into_iter().map(|(fault, target, from)| (fault, target, from, None)));
        html! {
            @for (index, (fault, target, from, until)) in spans.iter().enumerate() {
                @let lane = self.lanes.get(*target).copied();
                @let (top, tall) = match lane { Some(lane) => (Self::y(lane), LANE), None => (TOP, height - TOP - 20.0) };
                @if let Some(until) = until {
                    rect.fault-span x=(self.x(*from)) y=(top) width=(self.width(*from, *until)) height=(round(tall)) {}
                }
                line.fault-edge x1=(self.x(*from)) x2=(self.x(*from)) y1=(top) y2=(round(top + tall)) {}
                @let end = self.x(*from) > WIDTH * 0.6;
                @let beside = if end { -4.0 } else { 4.0 };
                @let label_y = if lane.is_some() { top + 43.0 } else { 11.0 + 11.0 * (index % 2) as f64 };
                text.fault x=(round(self.x(*from) + beside)) y=(round(label_y)) text-anchor=(if end { "end" } else { "start" }) {
                    (target) " " (fault)
                }
            }
        }
    }

    /// What the resource saw.
    fn resource(&self, events: &[Event], history: &History, timeline: &Timeline) -> Markup {
        let y = Self::y(self.lanes.len()) + 24.0;
        let lane_of = |grant: &str| {
            let grant = history.name(grant)?;
            let hold = timeline.holds.iter().find(|hold| hold.grant == grant)?;
            self.lanes.get(history.text(hold.by)).copied()
        };
        html! {
            text x="4" y=(y) { "resource" }
            text.faint x="4" y=(y + 14.0) { "writes" }
            line.rule x1=(LEFT) x2=(WIDTH) y1=(y) y2=(y) {}
            @for event in events { @match &event.what {
                What::Read { grant, taken, .. } => g class=(who(lane_of(grant))) {
                    (mark(self.x(event.at), y, false, *taken, &format!("read under {grant}")))
                },
                What::Write { grant, taken, .. } => g class=(who(lane_of(grant))) {
                    (mark(self.x(event.at), y, true, *taken, &format!("write under {grant}")))
                },
                _ => {}
            } }
            @for event in events.iter().filter(|event| event.what == What::Died) {
                @if let Some(lane) = self.lanes.get(&event.by) {
                    (PreEscaped(cross(self.x(event.at), Self::y(*lane) + 18.0, "death")))
                }
            }
        }
    }

    /// The drawing in words.
    fn described(&self, history: &History, timeline: &Timeline) -> String {
        let ms = |at: u64| at.clamp(self.begin, self.end).saturating_sub(self.begin) / 1_000_000;
        let told = timeline.holds.iter().take(12).map(|hold| {
            let (from, until) = (ms(hold.granted), ms(hold.believed_until));
            format!("{} believes from {from} to {until} ms", history.text(hold.by))
        });
        told.collect::<Vec<_>>().join("; ")
    }
}

fn who(lane: Option<usize>) -> String {
    format!("who-{}", lane.unwrap_or(3) % 4)
}

fn mark(x: f64, y: f64, write: bool, taken: bool, said: &str) -> Markup {
    let said = format!("{said}, {}", if taken { "accepted" } else { "refused" });
    html! {
        @if !taken { (PreEscaped(cross(x, y, "cross"))) }
        @else if write { circle.dot cx=(x) cy=(y) r="5" { title { (said) } } }
        @else { circle.ring cx=(x) cy=(y) r="3.5" { title { (said) } } }
    }
}

fn cross(x: f64, y: f64, class: &str) -> String {
    let (left, right, up, down) = (round(x - 5.0), round(x + 5.0), round(y - 5.0), round(y + 5.0));
    format!("<path class=\"{class}\" d=\"M{left} {up}L{right} {down}M{left} {down}L{right} {up}\"/>")
}

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
