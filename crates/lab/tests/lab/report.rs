//! The page is sound: for a parser, for readers of any sight and on any screen, and in a browser where there is one.

use std::process::{Command, Stdio};

use fencepost_history::{Answer, Event, History, Phase, Verb, What};
use fencepost_lab::{
    AgentCommand, CutBy, SUBJECTS, Verdict, Wish,
    report::{self, page},
    run::{Faults, Plan, cells, play},
    scenarios,
};

const STYLE: &str = include_str!("../../src/report/style.css");

/// Some cells that need no server, so that there are verdicts, drawings and findings in it.
async fn some_page() -> String {
    let agent = AgentCommand { program: env!("CARGO_BIN_EXE_fencepost-agent").into(), arguments: Vec::new() };
    let chosen = ["contention", "kleppmann-pause", "restart-without-data", "permits"]
        .map(|name| scenarios::named(name).expect("it is known"));
    let on: Vec<_> = SUBJECTS.iter().copied().filter(|on| on.to_string() == "file").collect();
    let plan = Plan {
        cells: cells(&chosen, &on),
        trials: 1,
        seed: 1,
        at_once: 4,
        agent,
        cut_by: CutBy::choose(Wish::Relays),
        faults: Faults::Made,
    };
    page(&play(&plan, &mut |_| {}).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parser_finds_nothing_wrong_with_it_and_each_thing_can_be_reached_by_keyboard() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    let text = some_page().await;
    let wrong = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let read = Command::new("python3").args(["-c", include_str!("structure.py")]).arg(&file).output();
        let read = read.expect("the package python3 must be installed");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        String::from_utf8(read.stdout).unwrap()
    };
    assert_eq!(wrong(&text), "");
    // It would have been found.
    for (good, bad) in
        [("</main>", ""), ("tabindex=\"0\"", ""), ("href=\"#matrix\"", "href=\"#nowhere\""), ("role=\"img\"", "")]
    {
        assert_ne!(wrong(&text.replacen(good, bad, 1)), "", "{good} is not looked at");
    }
}

/// What is read is told from its ground at 4.5 to 1, as WCAG 2 asks (success criterion 1.4.3).
#[test]
fn its_colours_can_be_told_apart_in_light_and_in_dark() {
    let (light, dark) = STYLE.split_once("prefers-color-scheme: dark").unwrap();
    for (scheme, rules) in [("light", light), ("dark", dark)] {
        let colour = |name: &str| {
            let (_, rest) = rules.split_once(&format!("--{name}: #")).unwrap_or_else(|| panic!("{scheme}: no {name}"));
            u32::from_str_radix(&rest[..6], 16).unwrap()
        };
        let pairs = [
            ("ink", "ground"),
            ("ink", "card"),
            ("faint", "ground"),
            ("faint", "card"),
            ("link", "ground"),
            ("link", "card"),
            ("ok", "ok-ground"),
            ("blocked", "blocked-ground"),
            ("fenced", "fenced-ground"),
            ("broken", "broken-ground"),
            ("ink", "nothing-ground"),
            ("broken", "card"),
            ("blocked", "card"),
            ("blocked", "ground"),
        ];
        // A mark is told apart at 3 to 1 (1.4.11).
        for client in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let ratio = contrast(colour(client), colour("card")).min(contrast(colour(client), colour("ground")));
            assert!(ratio >= 3.0, "{scheme}: {client} is {ratio:.2} to 1");
        }
        for (text, ground) in pairs {
            let ratio = contrast(colour(text), colour(ground));
            assert!(ratio >= 4.5, "{scheme}: {text} on {ground} is {ratio:.2} to 1");
        }
    }
    assert!((contrast(0x00_00_00, 0xff_ff_ff) - 21.0).abs() < 0.01, "the measure itself");
}

fn contrast(one: u32, other: u32) -> f64 {
    let luminance = |colour: u32| {
        let part = |shift: u32| {
            let part = f64::from((colour >> shift) & 0xff) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Looked at on screens of four widths, in light and in dark, by keyboard alone and on paper, where a browser is installed.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_browser_it_can_be_read_and_reached_on_every_screen_and_on_paper() {
    let Some(browser) = browser() else { return };
    let page = some_page().await;
    assert_eq!(seen_in(browser, &page), "");
    // It would have been found.
    let defects = "<style>:focus-visible { outline: none !important } .wide { width: 2000px } .dim { font-size: 8px }
        body { background: #123456 } details { pointer-events: none } @media print { .scroll { overflow: hidden; width: 3rem } }</style>
        <p class='wide dim'>wide</p><svg><g class='fault'><text y='20'>one</text><text y='20'>two</text></g></svg></body>";
    let wrong = seen_in(browser, &page.replace("</body>", defects));
    for found in
        ["over the edge", "wide", "too small", "its ground is", "cannot be seen", "cover each other", "on paper"]
    {
        assert!(wrong.contains(found), "{found}: {wrong}");
    }
    let order = page.replacen("<a class=\"skip\"", "<a tabindex=\"-1\" class=\"skip\"", 1);
    assert_ne!(order, page);
    assert!(seen_in(browser, &order).contains("not the next thing"));
}

#[test]
fn in_a_browser_eight_clients_and_two_hundred_events_can_be_told_apart() {
    let Some(browser) = browser() else { return };
    let history = crowd();
    let findings = fencepost_history::check(&history, &fencepost_history::Options::default());
    let page = report::history("A crowd", &history, &findings, Verdict::of_all(&findings, u64::MAX));
    assert_eq!(page.matches("believes/holds").count(), 8);
    assert_eq!(page.matches("class=\"dot\"").count() + page.matches("class=\"ring\"").count(), 80);
    assert_eq!(seen_in(browser, &page), "");
}

/// Eight clients take turns; many things are done to the store at nearly the same time.
fn crowd() -> History {
    let mut events = Vec::new();
    let mut push = |at: u64, by: &str, what| events.push(Event { at: at * 1_000_000, by: by.to_owned(), what });
    for turn in 0..40 {
        let (by, grant, at) = (format!("client-{}", turn % 8), format!("g{turn}"), turn * 20);
        let (fence, ttl, until) = (Some(turn + 1), Some(300_000_000), Some((at + 250) * 1_000_000));
        push(at, &by, What::asks(Verb::Acquire, "x".into(), grant.clone()));
        push(at + 4, &by, What::Ok { answer: Answer::Granted, fence, ttl, from: None, until, slots: None });
        push(at + 6, "ledger", What::Read { grant: grant.clone(), fence, version: turn, taken: true });
        push(
            at + 9,
            "ledger",
            What::Write { grant: grant.clone(), fence, basis: turn, version: turn + 1, taken: true },
        );
        push(at + 12, &by, What::asks(Verb::Release, "x".into(), grant));
        push(at + 14, &by, What::says(Answer::Released));
        let (phase, installed) = (Phase::Begin, true);
        if turn % 9 == 0 {
            push(
                at,
                "lab",
                What::Fault {
                    fault: "cut off from its followers".into(),
                    target: format!("server {turn}"),
                    phase,
                    installed,
                },
            );
            push(at + 1, "lab", What::Clock { of: by, offset_ms: 3_600_000 });
        }
    }
    History::of(events)
}

/// It is heavy, and `./test` installs it; where there is none, this says so.
fn browser() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| installed(name));
    if found.is_none() {
        eprintln!("SKIPPED: not looked at in a browser; install the package chromium for that");
    }
    found
}

fn installed(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|it| it.success())
}

/// What is wrong with a page there, a line each.
fn seen_in(browser: &str, page: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("report.html");
    std::fs::write(&file, page).expect("a file");
    let looked = Command::new("python3").args(["-c", include_str!("browser.py"), browser]).arg(&file).output();
    let looked = looked.expect("the package python3 must be installed");
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stderr));
    String::from_utf8(looked.stdout).expect("text")
}
