//! What the pages say of the stores is what their capabilities say, and what they advise is the tree that the command
//! walks: two spellings of one fact are a defect.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
};

use fencepost::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    patterns::choosing,
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

#[test]
fn readme_of_what_to_choose_is_the_tree_that_advise_walks() {
    check("docs/choosing.md", "tree", &choosing::markdown(choosing::TREE));
}

#[test]
fn readme_of_what_to_choose_shows_the_transfers_as_they_were_measured() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    let page = fencepost_bench::page(&fs::read_to_string(pictures.join("transfers.json")).unwrap()).unwrap();
    check("docs/choosing.md", "transfers", &page.table);
    same_or_anew(&pictures.join("transfers.svg"), &page.picture);
}

/// Compares what stands in a page between two marks, or writes it anew.
fn check(page: &str, mark: &str, table: &str) {
    // Two tests may write one page.
    static PAGES: Mutex<()> = Mutex::new(());
    let _alone = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {mark}: begin -->\n"), format!("<!-- {mark}: end -->"));
    let (before, rest) = text.split_once(&begin).expect("the mark where the table begins");
    let (_, after) = rest.split_once(&end).expect("the mark where the table ends");
    let fresh = format!("{before}{begin}{table}{end}{after}");
    same_or_anew(&path, &fresh);
}

fn same_or_anew(path: &Path, fresh: &str) {
    if std::env::var_os("FENCEPOST_UPDATE").is_some() {
        fs::write(path, fresh).unwrap();
    } else {
        let text = fs::read_to_string(path).unwrap_or_default();
        assert!(text == fresh, "{} differs from what it is made of; write it anew with ./fix", path.display());
    }
}

fn primitives() -> String {
    let mut table =
        "| store | URL | shared locks | permits | several locks | cells |\n|---|---|---|---|---|---|\n".to_owned();
    for scheme in SCHEMES {
        let store = (scheme.capabilities)();
        let has = |has: bool| if has { "yes" } else { "no" };
        let several = if store.several { "in one step" } else { "one after the other" };
        let (name, url) = (store.store, store.url);
        let [shared, permits, cells] = [store.shared, store.permits, store.cells].map(has);
        writeln!(table, "| {name} | `{url}` | {shared} | {permits} | {several} | {cells} |").unwrap();
    }
    table
}

/// One row for each store; URLs that differ in nothing else share it. Below it, why some have no fence.
fn table() -> String {
    let stores: Vec<_> = SCHEMES.iter().map(|scheme| (scheme.capabilities)()).collect();
    let mut table = "| store | URL | class | fence | freed when the holder dies | how a waiter wakes | order |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    for alike in stores.chunk_by(|a, b| a.store == b.store && facts(a) == facts(b)) {
        let urls: Vec<_> = alike.iter().map(|store| format!("`{}`", store.url)).collect();
        writeln!(table, "| {} | {} | {} |", alike[0].store, urls.join("<br>"), facts(&alike[0])).unwrap();
    }
    let mut reasons: Vec<_> = stores.iter().filter_map(|store| Some((store.store, no_fence(store)?))).collect();
    reasons.dedup();
    table.push('\n');
    reasons.iter().for_each(|(store, why)| writeln!(table, "- {store} has no fence, since {why}.").unwrap());
    table
}

fn no_fence(store: &Capabilities) -> Option<&'static str> {
    match store.fence {
        FenceSource::None(why) => Some(why),
        FenceSource::Issued(_) => None,
    }
}

fn facts(store: &Capabilities) -> String {
    let class = match store.class {
        Class::Correctness => "correctness",
        Class::Efficiency => "efficiency",
    };
    let scope = if store.scope.is_empty() { String::new() } else { format!(", {}", store.scope) };
    let fence = match store.fence {
        FenceSource::None(_) => "none",
        FenceSource::Issued(place) => place,
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
    format!("{class}{scope} | {fence} | {freed} | {} | {order}", store.wakes_by)
}
