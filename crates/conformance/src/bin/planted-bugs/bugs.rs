//! The bugs: each is one that a lock library has had, or that the rules were written against.

mod beside;
mod command;
mod etcd;
mod foundations;
mod history;
mod mended;
mod patterns;
mod postgres;
mod primitives;
mod redlock;
mod topologies;
mod zookeeper;

/// Every bug there is, a list for each part of the project.
pub(crate) const BUGS: &[&[Bug]] = &[
    beside::BUGS,
    command::BUGS,
    etcd::BUGS,
    foundations::BUGS,
    history::BUGS,
    primitives::BUGS,
    mended::BUGS,
    patterns::BUGS,
    postgres::BUGS,
    redlock::BUGS,
    topologies::BUGS,
    zookeeper::BUGS,
];

/// A bug, and the test that must find it.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) file: &'static str,
    /// Stands exactly once in the file.
    pub(crate) find: &'static str,
    pub(crate) replace: &'static str,
    pub(crate) test: Test,
}

/// One test, as `cargo test` finds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: &'static str,
    pub(crate) target: &'static [&'static str],
    pub(crate) name: &'static str,
}

const fn suite(name: &'static str) -> Test {
    Test { package: "fencepost-conformance", target: &["--test", "suite"], name }
}

const fn core(name: &'static str) -> Test {
    Test { package: "fencepost-core", target: &["--lib"], name }
}
