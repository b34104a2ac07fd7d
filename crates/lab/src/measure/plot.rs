//! A plot of spans: one row each, from a low value to a high one, on a logarithmic scale.

use maud::{Render, html};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 26.0;
const TOP: f64 = 40.0;

/// Light and dark, as the reader's system has it.
const STYLE: &str = "text{font:13px sans-serif;fill:#1f2328}.axis{stroke:#d0d7de}.span{stroke:#0969da;stroke-width:4}\
                     circle{fill:#0969da}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{stroke:#3d444d}\
                     .span{stroke:#4493f8}circle{fill:#4493f8}}";

#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// The smallest value that is drawn, in milliseconds; what is below lies on it.
    pub(crate) least: f64,
    pub(crate) spans: Vec<Span>,
}

/// Milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) label: String,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Plot {
    /// As an SVG file.
    pub(crate) fn drawn(&self) -> String {
        let height = TOP + ROW * self.spans.len() as f64 + 16.0;
        html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={"0 0 " (WIDTH) " " (height)} role="img" aria-label=(self.title) {
                style { (STYLE) }
                text x="0" y="16" { (self.title) }
                @for decade in self.decades() {
                    @let x = self.x(decade);
                    line class="axis" x1=(x) x2=(x) y1=(TOP - 8.0) y2=(height - 16.0) {}
                    text x=(x) y=(height - 2.0) text-anchor="middle" { (super::millis(decade)) }
                }
                @for (row, span) in self.spans.iter().enumerate() {
                    @let y = TOP + ROW * row as f64 + 8.0;
                    text x="0" y=(y + 4.0) { (span.label) }
                    line class="span" x1=(self.x(span.low)) x2=(self.x(span.high)) y1=(y) y2=(y) {}
                    circle cx=(self.x(span.low)) cy=(y) r="4" {}
                    circle cx=(self.x(span.high)) cy=(y) r="4" {}
                    text x=(self.x(span.high) + 8.0) y=(y + 4.0) { (super::millis(span.high)) }
                }
            }
        }
        .render()
        .into_string()
    }

    fn decades(&self) -> Vec<f64> {
        let powers = -3..=6;
        powers.map(|power| 10f64.powi(power)).filter(|decade| (self.least..=self.most()).contains(decade)).collect()
    }

    fn most(&self) -> f64 {
        let most = self.spans.iter().map(|span| span.high).fold(self.least * 10.0, f64::max);
        10f64.powf(most.log10().ceil())
    }

    fn x(&self, value: f64) -> f64 {
        let (least, most) = (self.least.log10(), self.most().log10());
        let part = (value.max(self.least).log10() - least) / (most - least);
        ((LEFT + part * (WIDTH - LEFT - RIGHT)) * 10.0).round() / 10.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lie_in_their_order_between_the_edges() {
        let span = |low, high| Span { label: "a & b".to_owned(), low, high };
        let plot = Plot { title: "t", least: 0.1, spans: vec![span(0.0, 0.5), span(1.0, 2000.0)] };
        let xs = [0.0, 0.1, 0.5, 1.0, 2000.0].map(|value| plot.x(value));
        assert!(xs[0] == LEFT && xs.is_sorted() && xs[4] <= WIDTH - RIGHT, "{xs:?}");
        assert_eq!(plot.decades(), [0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0]);
        assert!(plot.drawn().contains("a &amp; b"), "what is written is escaped");
    }
}
