//! Holders, spans and instants as people read them.

use std::time::Duration;

use fencepost::{
    claim::{Claimant, Holder},
    clock::{self, BootClock},
};

/// Who holds, since when, and for how long yet, as one phrase.
pub(crate) fn holder(holder: &Holder) -> String {
    let mut said = claimant(&holder.claimant);
    if let Some(since) = holder.since_unix_ms {
        said.push_str(&format!(" since {} ({} ago)", instant(since), age(since)));
    }
    match holder.expires_in {
        Some(left) => said.push_str(&format!(", for {} yet unless renewed", span(left))),
        None => said.push_str(", until it is given back"),
    }
    said
}

/// Who, without what a terminal would obey.
pub(crate) fn claimant(claimant: &Claimant) -> String {
    harmless(&claimant.to_string())
}

/// How long ago a wall-clock instant was, by this host's clock.
pub(crate) fn age(unix_ms: u64) -> String {
    let now = clock::wall_unix_ms(&BootClock);
    span(Duration::from_millis(now.saturating_sub(unix_ms)))
}

/// A span in its two largest units.
pub(crate) fn span(span: Duration) -> String {
    let (millis, seconds) = (span.as_millis(), span.as_secs());
    match seconds {
        0 => format!("{millis} ms"),
        1..=9 => format!("{:.1} s", span.as_secs_f64()),
        10..=59 => format!("{seconds} s"),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A wall-clock instant in UTC, as RFC 3339 has it.
pub(crate) fn instant(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time % 3600 / 60, time % 60)
}

/// Day `days` after 1970-01-01 in the Gregorian calendar, counted in eras of 400 years that begin in March
/// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A text from a store, which anybody may have written, without what a terminal would obey: control characters, and those
/// that end a line, are not seen, or turn the direction of what follows ("Trojan Source", CVE-2021-42574).
pub(crate) fn harmless(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if obeyed(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_spans_read_as_people_write_them() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(instant(millis), text);
        }
        for (seconds, text) in [(0.25, "250 ms"), (9.5, "9.5 s"), (61.0, "1 min 1 s"), (90_000.0, "1 d 1 h")] {
            assert_eq!(span(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn what_a_store_holds_cannot_command_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(harmless("a\u{202e}b\u{2028}c\u{200b}é한"), "a\u{fffd}b\u{fffd}c\u{fffd}é한");
    }
}
