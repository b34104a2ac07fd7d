//! What the README says of the stores is what their capabilities say: two spellings of one fact are a defect.

use std::{fmt::Write as _, fs, path::Path};

use fencepost::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    registry::SCHEMES,
};

#[test]
fn readme_shows_the_stores_as_their_capabilities_say() {
    check("README.md", "stores", &table());
}

#[test]
fn readme_of_the_primitives_shows_which_stores_have_which() {
    check("docs/primitives.md", "primitives", &primitives());
}

/// Compares what stands in a page between two marks, or writes it anew.
fn check(page: &str, mark: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {mark}: begin -->\n"), format!("<!-- {mark}: end -->"));
    let (before, rest) = text.split_once(&begin).expect("the mark where the table begins");
    let (_, after) = rest.split_once(&end).expect("the mark where the table ends");
    let fresh = format!("{before}{begin}{table}{end}{after}");
    if std::env::var_os("FENCEPOST_UPDATE").is_some() {
        fs::write(&path, fresh).unwrap();
    } else {
        assert!(text == fresh, "the table of {page} is not what the capabilities say; write it anew with ./fix");
    }
}

fn primitives() -> String {
    let mut table = "| store | URL | shared locks | permits | several locks |\n|---|---|---|---|---|\n".to_owned();
    for scheme in SCHEMES {
        let store = (scheme.capabilities)();
        let has = |has: bool| if has { "yes" } else { "no" };
        let several = if store.several { "in one step" } else { "one after the other" };
        let (name, url) = (store.store, store.url);
        writeln!(table, "| {name} | `{url}` | {} | {} | {several} |", has(store.shared), has(store.permits)).unwrap();
    }
    table
}

fn table() -> String {
    let mut table = "| store | URL | class | fence | freed when the holder dies | how a waiter wakes | order |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    for scheme in SCHEMES {
        writeln!(table, "{}", row(&(scheme.capabilities)())).unwrap();
    }
    table
}

fn row(store: &Capabilities) -> String {
    let class = match store.class {
        Class::Correctness => "correctness",
        Class::Efficiency => "efficiency",
    };
    let scope = if store.scope.is_empty() { String::new() } else { format!(", {}", store.scope) };
    let fence = match store.fence {
        FenceSource::None(why) => format!("none, since {why}"),
        FenceSource::Issued(place) => place.to_owned(),
    };
    let freed = match store.freed_on_death {
        FreedOnDeath::AtOnce => "at once",
        FreedOnDeath::AfterTtl => "after the TTL",
        FreedOnDeath::AfterSession => "after the session",
    };
    let order = match store.order {
        Order::FirstCome("") => "first come, first served".to_owned(),
        Order::FirstCome(exceptions) => format!("first come, first served ({exceptions})"),
        Order::None => "no promise".to_owned(),
    };
    let (name, url, wakes) = (store.store, store.url, store.wakes_by);
    format!("| {name} | `{url}` | {class}{scope} | {fence} | {freed} | {wakes} | {order} |")
}
