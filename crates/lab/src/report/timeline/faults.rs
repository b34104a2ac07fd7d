//! What was done to whom: faults, and clocks that were moved. Each has a label; those of what hits more than one client stand in
//! rows above the lanes, as many as it takes for none to cover another.

use fencepost_history::{Name, Phase, Recorded, What};
use maud::{Markup, html};

use super::{LANE, Scene, round, text_width};

/// The height of a row of labels.
const ROW: f64 = 13.0;

/// Where the labels stand.
pub(super) struct Faults {
    spans: Vec<Span>,
    rows: usize,
}

struct Span {
    from: u64,
    /// Absent for what has no end, or is a moment.
    until: Option<u64>,
    label: String,
    lane: Option<usize>,
    /// The row of its label, or none where there is no room in its lane.
    row: Option<usize>,
    class: &'static str,
}

impl Faults {
    pub(super) fn of(scene: &Scene<'_>, events: &[Recorded]) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        let mut open: Vec<(Name, Name, usize)> = Vec::new();
        for Recorded { event, .. } in events {
            match event.what {
                What::Fault { fault, target, phase: Phase::Begin, installed: true } => {
                    open.push((fault, target, spans.len()));
                    let label = format!("{} {}", scene.text(target), scene.text(fault));
                    let lane = scene.lanes.get(&target).copied();
                    spans.push(Span { from: event.at, until: None, label, lane, row: None, class: "fault" });
                }
                What::Fault { fault, target, phase: Phase::End, .. } => {
                    // The end of a fault may have another name than its beginning.
                    let same = open.iter().position(|begun| (begun.0, begun.1) == (fault, target));
                    let place = same.or_else(|| open.iter().position(|begun| begun.1 == target));
                    if let Some(place) = place {
                        spans[open.remove(place).2].until = Some(event.at);
                    }
                }
                What::Clock { of, offset_ms } => {
                    let label = format!("clock of {}: {offset_ms:+} ms", scene.text(of));
                    let lane = scene.lanes.get(&of).copied();
                    spans.push(Span { from: event.at, until: None, label, lane, row: None, class: "clock" });
                }
                _ => {}
            }
        }
        let mut faults = Self { spans, rows: 0 };
        faults.place(scene);
        faults
    }

    /// Gives each label the first row in which it covers no other.
    fn place(&mut self, scene: &Scene<'_>) {
        let mut rows: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut in_lanes: Vec<Vec<(f64, f64)>> = vec![Vec::new(); scene.lanes.len()];
        let free = |taken: &[(f64, f64)], (from, until): (f64, f64)| {
            taken.iter().all(|(begin, end)| until < *begin || *end < from)
        };
        for span in &mut self.spans {
            let extent = span.extent(scene);
            if let Some(lane) = span.lane {
                if free(&in_lanes[lane], extent) {
                    in_lanes[lane].push(extent);
                    span.row = Some(0);
                }
                continue;
            }
            let row = rows.iter().position(|row| free(row, extent)).unwrap_or(rows.len());
            if row == rows.len() {
                rows.push(Vec::new());
            }
            rows[row].push(extent);
            span.row = Some(row);
        }
        self.rows = rows.len();
    }

    /// What the rows take.
    pub(super) fn height(&self) -> f64 {
        12.0 + ROW * self.rows as f64
    }

    pub(super) fn drawn(&self, scene: &Scene<'_>, top: f64, height: f64) -> Markup {
        html! { @for span in &self.spans {
            @let x = scene.x(span.from);
            @let (y, tall) = match span.lane {
                Some(lane) => (top + LANE * lane as f64, LANE),
                None => (top, height - top - 20.0),
            };
            g class=(span.class) {
                @if let Some(until) = span.until {
                    rect.fault-span x=(x) y=(round(y)) width=(scene.length(span.from, until)) height=(round(tall)) {}
                }
                line.fault-edge x1=(x) x2=(x) y1=(round(y)) y2=(round(y + tall)) { title { (span.label) } }
                @if let Some(row) = span.row {
                    @let label_y = if span.lane.is_some() { y + LANE - 2.0 } else { 11.0 + ROW * row as f64 };
                    text x=(round(span.extent(scene).0)) y=(round(label_y)) { (span.label) }
                }
            }
        } }
    }
}

impl Span {
    /// From where to where its label goes: to the right of its beginning, as long as there is room.
    fn extent(&self, scene: &Scene<'_>) -> (f64, f64) {
        let (x, wide) = (scene.x(self.from) + 4.0, text_width(&self.label));
        let begin = if x + wide > scene.width { (scene.x(self.from) - 4.0 - wide).max(0.0) } else { x };
        (begin, begin + wide + 6.0)
    }
}
