//! What a file is that is no history of ours: told by its beginning, so that whoever brought it learns what to do.

use std::fmt;

use serde::Deserialize;

/// What a file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Operations of Jepsen, Knossos, Elle or Maelstrom as EDN.
    JepsenEdn,
    /// The same as JSON.
    JepsenJson,
    /// Jepsen's log, or its `history.txt`: columns with tabs between.
    JepsenText,
    /// Operations or events of Porcupine as JSON.
    Porcupine,
    /// Our events in one JSON array.
    Array,
    /// JSON that goes over several lines.
    Indented,
    /// JSON that is none of these.
    Json,
    /// A page.
    Html,
    /// Compressed with gzip or zstd.
    Compressed,
    /// Bytes that are no text.
    Binary,
    /// Text that is none of these.
    Text,
}

impl Foreign {
    /// What a file looks like whose first line, which is not empty, is this one.
    pub(crate) fn of(line: &[u8]) -> Self {
        if line.starts_with(b"\x1f\x8b") || line.starts_with(b"\x28\xb5\x2f\xfd") {
            return Foreign::Compressed;
        }
        let Ok(text) = std::str::from_utf8(line) else { return Foreign::Binary };
        let text = text.trim();
        let lower = text.to_ascii_lowercase();
        if text.contains(|character: char| character.is_control() && character != '\t') {
            Foreign::Binary
        } else if lower.starts_with("<!doctype") || lower.starts_with("<html") {
            Foreign::Html
        } else if edn(text) {
            Foreign::JepsenEdn
        } else if [":invoke", ":ok", ":fail", ":info"].iter().any(|kind| text.split('\t').any(|word| word == *kind)) {
            Foreign::JepsenText
        } else if text == "{" || text == "[" {
            Foreign::Indented
        } else if let Some(all) = text.strip_prefix('[').and_then(|_| serde_json::from_str::<Vec<Keys>>(text).ok()) {
            // Many tools write one array of what others write line by line.
            match all.first().map(Keys::foreign) {
                None | Some(Foreign::Json) => Foreign::Array,
                Some(other) => other,
            }
        } else if let Some(keys) = text.strip_prefix('{').and_then(|_| serde_json::from_str::<Keys>(text).ok()) {
            keys.foreign()
        } else if text.starts_with(['{', '[']) {
            Foreign::Json
        } else {
            Foreign::Text
        }
    }

    /// What to do with it.
    fn advice(self) -> &'static str {
        match self {
            Foreign::JepsenEdn | Foreign::JepsenJson | Foreign::JepsenText | Foreign::Porcupine => {
                "a lock's history needs leases and beliefs, which such a file does not have"
            }
            Foreign::Array => "`jq -c '.[]'` makes lines of it",
            Foreign::Indented => "`jq -c .` makes a line of each object",
            Foreign::Json | Foreign::Text => "nothing in it is an event",
            Foreign::Html => "of a report, the histories are the files beside it that end in .jsonl",
            Foreign::Compressed => "decompress it first",
            Foreign::Binary => "it is no text",
        }
    }
}

/// A map or a vector whose keys are keywords.
fn edn(text: &str) -> bool {
    let inner = text.strip_prefix("#jepsen.history.Op").unwrap_or(text);
    inner.trim_start_matches(['[', '(']).trim_start().starts_with("{:")
}

/// What tells other tools' records apart.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Keys {
    f: Option<serde::de::IgnoredAny>,
    process: Option<serde::de::IgnoredAny>,
    #[serde(rename = "ClientId", alias = "client_id", alias = "clientId")]
    client: Option<serde::de::IgnoredAny>,
    #[serde(rename = "Input", alias = "input")]
    input: Option<serde::de::IgnoredAny>,
    #[serde(rename = "Kind", alias = "kind")]
    kind: Option<serde::de::IgnoredAny>,
}

impl Keys {
    fn foreign(&self) -> Foreign {
        if self.f.is_some() && self.process.is_some() {
            Foreign::JepsenJson
        } else if self.client.is_some() && (self.input.is_some() || self.kind.is_some()) {
            Foreign::Porcupine
        } else {
            Foreign::Json
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match self {
            Foreign::JepsenEdn => "a history of Jepsen, Knossos, Elle or Maelstrom, as EDN",
            Foreign::JepsenJson => "a history of Jepsen or Elle, as JSON",
            Foreign::JepsenText => "a history of Jepsen, as text with tabs",
            Foreign::Porcupine => "a history of Porcupine, as JSON",
            Foreign::Array => "one JSON array",
            Foreign::Indented => "JSON over several lines",
            Foreign::Json => "JSON that is something else",
            Foreign::Html => "a page",
            Foreign::Compressed => "a compressed file",
            Foreign::Binary => "a binary file",
            Foreign::Text => "text that is something else",
        };
        write!(
            f,
            "it is {found}: {}. Expected are lines of JSON, an object with \"at\", \"by\" and \"event\" on each \
             (docs/history.md has the format)",
            self.advice()
        )
    }
}
