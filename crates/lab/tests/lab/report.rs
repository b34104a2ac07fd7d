//! The page is sound: for a parser, for readers of any sight and on any screen, and in a browser where there is one.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use fencepost_lab::{
    AgentCommand, CutBy, SUBJECTS, Wish,
    report::page,
    run::{Plan, cells, play},
    scenarios,
};

const STYLE: &str = include_str!("../../src/report/style.css");

/// Some cells that need no server, so that there are verdicts, drawings and findings in it.
async fn some_page() -> String {
    let agent = AgentCommand { program: env!("CARGO_BIN_EXE_fencepost-agent").into(), arguments: Vec::new() };
    let chosen = ["contention", "kleppmann-pause", "restart-without-data", "permits"]
        .map(|name| scenarios::named(name).expect("it is known"));
    let on: Vec<_> = SUBJECTS.iter().copied().filter(|on| on.to_string() == "file").collect();
    let plan =
        Plan { cells: cells(&chosen, &on), trials: 1, seed: 1, at_once: 4, agent, cut_by: CutBy::choose(Wish::Relays) };
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
        ];
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

/// Where a browser is installed. It is too heavy a package to be asked for, so that where there is none this says so.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_browser_it_fits_a_phone_and_a_desk_in_light_and_in_dark() {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| installed(name))
    else {
        eprintln!("not looked at in a browser: install the package chromium for that");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    // The page has no script. This one is the test's, and writes down what the browser made of it.
    let measuring = "<script>
        const seen = (x) => x.getBoundingClientRect();
        const wide = [...document.querySelectorAll('body *')].filter(x => !x.closest('.scroll') && seen(x).right > innerWidth + 1);
        const stops = [...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')].filter(x => x.tabIndex === 0);
        document.title = JSON.stringify({ inner: innerWidth, page: document.documentElement.scrollWidth, wide: wide.length,
            stops: stops.length, ground: getComputedStyle(document.body).backgroundColor });
    </script></body>";
    std::fs::write(&file, some_page().await.replace("</body>", measuring)).unwrap();
    for (width, dark) in [(500, false), (500, true), (1280, false), (1280, true)] {
        let seen = looked_at(browser, &file, width, dark);
        assert!(seen["page"].as_u64() <= seen["inner"].as_u64(), "it is wider than the screen: {seen}");
        assert_eq!(seen["wide"], 0, "something outside of what scrolls is wider than the screen: {seen}");
        assert!(
            seen["stops"].as_u64() > Some(10),
            "the keyboard reaches the links, the table and the drawings: {seen}"
        );
        let ground = if dark { "rgb(22, 25, 29)" } else { "rgb(253, 252, 249)" };
        assert_eq!(seen["ground"], ground, "{seen}");
    }
}

fn installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
}

fn looked_at(browser: &str, file: &Path, width: u32, dark: bool) -> serde_json::Value {
    let profile = tempfile::tempdir().expect("a directory");
    let scheme = if dark { "0" } else { "1" };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .expect("it was found");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let title = dom.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    let title = title.unwrap_or_else(|| panic!("{browser} showed nothing: {dom:.300}")).0.replace("&quot;", "\"");
    serde_json::from_str(&title).unwrap_or_else(|error| panic!("{title}: {error}"))
}
