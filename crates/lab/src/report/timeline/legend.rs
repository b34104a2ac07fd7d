//! What the marks of a drawing mean, beside it.

use maud::{Markup, html};

/// A mark's class and what it says.
const MARKS: &[(&str, &str)] = &[
    ("believes", "a client believes that it holds"),
    ("beside", "as a reader, from where it was a writer"),
    ("holds", "the store surely holds for it"),
    ("waits", "it waits"),
    ("told", "it is told that it lost"),
    ("death", "it dies"),
    ("fault", "a fault"),
    ("clock", "a clock is moved"),
    ("dot", "a write, accepted"),
    ("ring", "a read"),
    ("cross", "refused"),
];

/// A line below a drawing.
pub(in crate::report) fn legend() -> Markup {
    html! {
        ul.legend aria-label="What the marks mean" {
            @for (class, said) in MARKS { li { span class={"key " (class)} {} (said) } }
        }
    }
}
