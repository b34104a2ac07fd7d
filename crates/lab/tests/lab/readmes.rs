//! The README is there twice, and says the same in both languages as far as a machine can tell.

use std::{collections::BTreeSet, fs, path::Path};

/// What does not depend on the language.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outline {
    /// The depths of the headings.
    headings: Vec<usize>,
    /// The lines of all code blocks, without comments.
    code: Vec<String>,
    /// The columns of each line of each table.
    tables: Vec<usize>,
    /// How many points all lists have.
    points: usize,
    /// Where links and pictures lead, as often as they do.
    links: Vec<String>,
    /// What stands as code in the text.
    words: BTreeSet<String>,
}

#[test]
fn the_korean_readme_has_the_content_of_the_english_one() {
    let (english, korean) = (read("README.md"), read("README.ko.md"));
    let (one, two) = (outline(&english, "README.ko.md"), outline(&korean, "README.md"));
    assert_eq!(one.headings, two.headings);
    assert_eq!(one.code, two.code);
    assert_eq!(one.tables, two.tables);
    assert_eq!(one.points, two.points);
    assert_eq!(one.links, two.links);
    let only: Vec<_> = one.words.symmetric_difference(&two.words).collect();
    assert!(only.is_empty(), "only in one of the two: {only:?}");
    assert!(one.headings.len() > 8 && one.code.len() > 20 && one.links.len() > 20 && one.words.len() > 50, "{one:?}");
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).expect("a page that is there")
}

fn outline(text: &str, other: &str) -> Outline {
    let mut outline = Outline::default();
    let (mut in_code, mut prose) = (false, String::new());
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
            outline.code.push(line.to_owned());
        } else if in_code {
            outline.code.push(without_comment(line));
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    for line in prose.lines() {
        if let Some((marks, _)) = line.split_once("# ").filter(|(marks, _)| marks.chars().all(|mark| mark == '#')) {
            outline.headings.push(marks.len() + 1);
        }
        if line.starts_with('|') {
            outline.tables.push(line.matches('|').count());
        }
        outline.points += usize::from(line.starts_with("- "));
    }
    // Sentences have another order in Korean.
    let links = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    outline.links = links.filter(|link| *link != other).map(str::to_owned).collect();
    outline.links.sort();
    outline.words =
        prose.split('`').skip(1).step_by(2).map(|word| word.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    outline
}

/// A line of shell or Rust as a machine reads it.
fn without_comment(line: &str) -> String {
    let mut read = format!(" {line}");
    if let Some((begin, end)) = read.find("/*").zip(read.find("*/")) {
        read.replace_range(begin..end + 2, "");
    }
    let ends = [" # ", " // ", " /// "].into_iter().filter_map(|mark| read.find(mark));
    read.truncate(ends.min().unwrap_or(read.len()));
    read.trim().to_owned()
}
