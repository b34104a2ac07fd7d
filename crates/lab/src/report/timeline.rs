//! A history as a drawing: who believes, who holds, what was done to whom, what the resource accepted and refused.

mod faults;
mod lanes;
mod legend;
mod resource;

use std::collections::BTreeMap;

use fencepost_history::{History, Name, Recorded, Timeline, What};
use maud::{Markup, html};

use self::faults::Faults;
pub(super) use self::legend::legend;

const LEFT: f64 = 96.0;
const RIGHT: f64 = 16.0;
const LANE: f64 = 46.0;
/// As wide as this at least, and by so much wider for each event: marks beside each other stay apart.
const NARROWEST: f64 = 900.0;
const FOR_EACH_EVENT: f64 = 9.0;
const WIDEST: f64 = 6000.0;
/// Room behind the last event, as a part of the whole. Leases that nobody gave back are not drawn to their end.
const AFTER: u64 = 15;
/// More clients than this are not told apart by anybody.
const MOST_LANES: usize = 32;
/// How many colours there are for them.
const COLOURS: usize = 8;

/// An inline SVG with a text for those who cannot see it.
pub(super) fn drawing(history: &History, events: &[Recorded]) -> Markup {
    let timeline = Timeline::of(history);
    let scene = Scene::of(history, events);
    let faults = Faults::of(&scene, events);
    let Scene { width, .. } = scene;
    let (top, height) = (faults.height(), faults.height() + LANE * (scene.lanes.len() as f64 + 1.0) + 46.0);
    let style = format!("min-width: {}px", if width > NARROWEST { width } else { 736.0 });
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={"0 0 " (width) " " (height)} style=(style) role="img" aria-label=(scene.described(&timeline)) {
            (scene.scale(top, height))
            (faults.drawn(&scene, top, height))
            @for (name, lane) in &scene.lanes { (scene.lane(*name, top + LANE * *lane as f64, *lane, &timeline)) }
            (scene.resource(events, &timeline, top))
        }
    }
}

/// Where things are on the drawing.
struct Scene<'a> {
    history: &'a History,
    begin: u64,
    end: u64,
    width: f64,
    /// The clients, by the order in which they come.
    lanes: BTreeMap<Name, usize>,
    /// Whether there is more than one lock, so that each hold must say which it is of.
    locks: usize,
}

impl<'a> Scene<'a> {
    fn of(history: &'a History, events: &[Recorded]) -> Self {
        let (mut order, mut locks) = (Vec::new(), Vec::new());
        for Recorded { event, .. } in events {
            let What::Invoke { lock, .. } = event.what else { continue };
            if !locks.contains(&lock) {
                locks.push(lock);
            }
            // What runs in a client's background has no lane of its own.
            if order.len() < MOST_LANES && !order.contains(&event.by) && !history.text(event.by).contains('\'') {
                order.push(event.by);
            }
        }
        let begin = events.first().map_or(0, |first| first.event.at);
        let last = events.last().map_or(1, |last| last.event.at);
        let end = last.saturating_add((last - begin) / AFTER + 1);
        let width = (LEFT + RIGHT + FOR_EACH_EVENT * events.len() as f64).clamp(NARROWEST, WIDEST);
        Self { history, begin, end, width, lanes: order.into_iter().zip(0..).collect(), locks: locks.len() }
    }

    fn text(&self, name: Name) -> &'a str {
        self.history.text(name)
    }

    fn x(&self, at: u64) -> f64 {
        let at = at.clamp(self.begin, self.end);
        let part = (at - self.begin) as f64 / (self.end - self.begin).max(1) as f64;
        round(LEFT + part * (self.width - LEFT - RIGHT))
    }

    fn length(&self, from: u64, until: u64) -> f64 {
        round((self.x(until) - self.x(from)).max(1.5))
    }

    /// Whether anything of a span is on the drawing.
    fn shows(&self, from: u64, until: u64) -> bool {
        from <= self.end && until >= self.begin
    }

    /// Lines at round times.
    fn scale(&self, top: f64, height: f64) -> Markup {
        let span = (self.end - self.begin) / 1000;
        let most = (self.width / 90.0) as u64;
        let round_times = (0..10).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
        let step = round_times.into_iter().find(|step| span / step <= most).unwrap_or(u64::MAX);
        html! {
            @for mark in (0..=span / step).map(|mark| mark * step) {
                @let x = self.x(self.begin + mark * 1000);
                line.rule x1=(x) x2=(x) y1=(round(top)) y2=(round(height - 20.0)) {}
                text.faint x=(x) y=(round(height - 6.0)) text-anchor="middle" { (micros(mark)) }
            }
        }
    }

    /// The drawing in words.
    fn described(&self, timeline: &Timeline) -> String {
        let ms = |at: u64| at.clamp(self.begin, self.end).saturating_sub(self.begin) / 1_000_000;
        let shown = timeline.holds.iter().filter(|hold| self.shows(hold.granted, hold.believed_until));
        let told = shown.take(12).map(|hold| {
            let (from, until) = (ms(hold.granted), ms(hold.believed_until));
            format!("{} believes from {from} to {until} ms", self.text(hold.by))
        });
        let told = told.collect::<Vec<_>>().join("; ");
        if told.is_empty() { "Nobody was granted the lock".to_owned() } else { told }
    }
}

/// A time in words: microseconds.
fn micros(time: u64) -> String {
    match time {
        0 => "0".to_owned(),
        time if time % 1_000_000 == 0 => format!("{} s", time / 1_000_000),
        time if time % 1000 == 0 => format!("{} ms", time / 1000),
        time => format!("{time} µs"),
    }
}

/// The class that gives a client its colour; one without a lane has that of the text.
fn who(lane: Option<usize>) -> String {
    lane.map_or_else(|| "who-none".to_owned(), |lane| format!("who-{}", lane % COLOURS))
}

fn cross(x: f64, y: f64) -> String {
    let (left, right, up, down) = (round(x - 5.0), round(x + 5.0), round(y - 5.0), round(y + 5.0));
    format!("M{left} {up}L{right} {down}M{left} {down}L{right} {up}")
}

/// About how wide a text is drawn.
fn text_width(text: &str) -> f64 {
    6.2 * text.chars().count() as f64
}

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
