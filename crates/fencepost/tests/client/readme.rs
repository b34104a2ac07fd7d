//! What the README says of the stores is what their capabilities say: two spellings of one fact are a defect.

use std::{fmt::Write as _, fs, path::Path};

use fencepost::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    registry::SCHEMES,
};

const BEGIN: &str = "<!-- stores: begin -->\n";
const END: &str = "<!-- stores: end -->";

#[test]
fn readme_shows_the_stores_as_their_capabilities_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the mark where the table begins");
    let (_, after) = rest.split_once(END).expect("the mark where the table ends");
    let fresh = format!("{before}{BEGIN}{}{END}{after}", table());
    if std::env::var_os("FENCEPOST_UPDATE").is_some() {
        fs::write(&path, fresh).unwrap();
    } else {
        assert!(text == fresh, "the README's table is not what the capabilities say; write it anew with ./fix");
    }
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
