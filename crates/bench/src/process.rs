//! What this process, or another, uses of the machine.

use std::{fs, time::Duration};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

/// Raises the limit of open files as far as it may be: on a directory each lease is an open file.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Whoever has fewer gets fewer leases measured.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// How many more files may be opened, with some in reserve for the process itself.
pub(crate) fn files_to_spare() -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    limit.unwrap_or(usize::MAX).saturating_sub(256)
}

/// The processor time of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither is ever negative.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process in KiB; `None` where the system does not tell.
pub(crate) fn resident_kib() -> Option<u64> {
    memory_of("self", "Rss:")
}

/// A figure such as `Rss:` or `Pss:` of a process, in KiB.
pub(crate) fn memory_of(process: &str, figure: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(figure))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// The process and all its descendants.
pub(crate) fn family_of(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        next += 1;
    }
    family
}
