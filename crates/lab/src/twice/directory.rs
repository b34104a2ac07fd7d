//! Copies of a directory.

use std::{
    collections::BTreeMap,
    fs::{self, File, FileTimes},
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use super::{Difference, Differs, Failure, Job, Outcome};

/// So much is copied, or compared, before anything else may happen.
const PIECE: u64 = 16 << 20;

/// Runs the job in copies of a directory, and never in it. Both copies have the same path while the job runs in them, so that what it
/// notes of that does not differ. They are removed. `None` when `stop` completed first.
///
/// # Errors
/// When the directory cannot be copied or the command cannot be started.
///
/// # Cancel safety
/// Dropped, it kills the job and removes the copies.
pub async fn in_directories(
    job: &Job,
    directory: &Path,
    stop: impl Future<Output = ()>,
) -> Result<Option<Outcome>, Failure> {
    let temporary = std::env::temp_dir();
    let copies = tempfile::tempdir().map_err(at(&temporary))?;
    let original = directory.canonicalize().map_err(at(directory))?;
    if copies.path().canonicalize().map_err(at(&temporary))?.starts_with(&original) {
        let (of, into) = (directory.display(), temporary.display());
        return Err(Failure::Failed(format!(
            "the copies of {of} would lie in it, at {into}: set TMPDIR to a directory outside of it"
        )));
    }
    let [here, once, other] = ["job", "once", "other"].map(|name| copies.path().join(name));
    let compared = async {
        let originals = [original.clone(), std::path::absolute(directory).map_err(at(directory))?];
        let outside = copy(&originals, &here, &here).await?;
        copy(&originals, &other, &here).await?;
        let job = &placed(job, &here);
        let onto = |command: &mut tokio::process::Command| {
            command.current_dir(&here);
        };
        let alone = job.once(onto).await?;
        fs::rename(&here, &once).and_then(|()| fs::rename(&other, &here)).map_err(at(&here))?;
        let together = job.twice(onto).await?;
        Ok(Outcome { once: alone, twice: together, differences: compare(&once, &here).await?, outside })
    };
    tokio::select! {
        outcome = compared => outcome.map(Some),
        () = stop => Ok(None),
    }
}

/// The job with a program that is found where it runs: a path is looked up in the copy, and else where the user stands.
fn placed(job: &Job, here: &Path) -> Job {
    let mut job = job.clone();
    if let Some(program) = job.command.first_mut() {
        let path = Path::new(program);
        if path.components().count() > 1 && path.is_relative() && !here.join(path).exists() && path.exists() {
            *program = std::path::absolute(path).map_or_else(|_| program.clone(), PathBuf::into_os_string);
        }
    }
    job
}

/// An error with the path that it is about, and what helps.
fn at(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |error| {
        let full = error.kind() == io::ErrorKind::StorageFull;
        let help = if full { "; TMPDIR says where the copies are made" } else { "" };
        Failure::Failed(format!("{}: {error}{help}", path.display()))
    }
}

/// Copies the first of `originals`, which are names of one directory. A link with a whole path into it is made to lead to `seen_as`.
/// Answers the links that lead out of it. Can be stopped between any two pieces.
async fn copy(originals: &[PathBuf; 2], to: &Path, seen_as: &Path) -> Result<Vec<String>, Failure> {
    let root = &originals[0];
    fs::create_dir(to).map_err(at(to))?;
    let (mut directories, mut outside) = (vec![PathBuf::new()], Vec::new());
    let mut next = 0;
    while let Some(below) = directories.get(next).cloned() {
        next += 1;
        let from = root.join(&below);
        for entry in fs::read_dir(&from).map_err(at(&from))? {
            tokio::task::yield_now().await;
            let entry = entry.map_err(at(&from))?;
            let (below, source) = (below.join(entry.file_name()), entry.path());
            let (kind, target) = (entry.file_type().map_err(at(&source))?, to.join(&below));
            if kind.is_dir() {
                fs::create_dir(&target).map_err(at(&target))?;
                directories.push(below);
            } else if kind.is_symlink() {
                let leads = fs::read_link(&source).map_err(at(&source))?;
                let inside = originals.iter().find_map(|root| leads.strip_prefix(root).ok());
                if inside.is_none() && leads_out(&below, &leads) {
                    outside.push(below.display().to_string());
                }
                symlink(inside.map_or_else(|| leads.clone(), |rest| seen_as.join(rest)), &target)
                    .map_err(at(&target))?;
            } else if kind.is_file() {
                copy_file(&source, &target).await?;
            }
            // Sockets and pipes belong to running processes, and have no content.
        }
    }
    // Last: some may not be written to.
    for below in directories.iter().rev() {
        let (from, to) = (root.join(below), to.join(below));
        fs::metadata(&from).and_then(|meta| fs::set_permissions(&to, meta.permissions())).map_err(at(&from))?;
    }
    Ok(outside)
}

/// With its permissions and its time: what builds looks at that.
async fn copy_file(source: &Path, target: &Path) -> Result<(), Failure> {
    let mut from = File::open(source).map_err(at(source))?;
    let mut to = File::create(target).map_err(at(target))?;
    while io::copy(&mut (&mut from).take(PIECE), &mut to).map_err(at(target))? > 0 {
        tokio::task::yield_now().await;
    }
    let meta = from.metadata().map_err(at(source))?;
    let times = meta.modified().map(|time| FileTimes::new().set_modified(time)).map_err(at(source))?;
    to.set_times(times).and_then(|()| to.set_permissions(meta.permissions())).map_err(at(target))
}

/// Whether a link at this place below the directory leads out of it, as far as its text says.
fn leads_out(place: &Path, leads: &Path) -> bool {
    let mut depth = place.components().count() as i64 - 1;
    leads.is_absolute()
        || leads.components().any(|component| {
            match component {
                Component::ParentDir => depth -= 1,
                Component::Normal(_) => depth += 1,
                _ => {}
            }
            depth < 0
        })
}

async fn compare(once: &Path, twice: &Path) -> Result<Vec<Differs>, Failure> {
    let (one, two) = (walk(once).await?, walk(twice).await?);
    let mut differences = Vec::new();
    for (path, kind) in &one {
        match two.get(path) {
            None => differences.push((path.clone(), Difference::OnlyOnce)),
            Some(other) if other != kind => differences.push((path.clone(), Difference::Kind)),
            Some(_) if !same_content(&once.join(path), &twice.join(path)).await? => {
                differences.push((path.clone(), Difference::Content));
            }
            Some(_) => {}
        }
    }
    let only_twice = two.into_keys().filter(|path| !one.contains_key(path));
    differences.extend(only_twice.map(|path| (path, Difference::OnlyTwice)));
    differences.sort_by(|a, b| a.0.cmp(&b.0));
    let told = |(path, how): (PathBuf, Difference)| Differs { what: path.display().to_string(), how };
    Ok(differences.into_iter().map(told).collect())
}

/// The kind and the permissions of everything below.
async fn walk(root: &Path) -> Result<BTreeMap<PathBuf, u32>, Failure> {
    let (mut found, mut directories) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(below) = directories.pop() {
        let directory = root.join(&below);
        for entry in fs::read_dir(&directory).map_err(at(&directory))? {
            tokio::task::yield_now().await;
            let entry = entry.map_err(at(&directory))?;
            let (path, meta) = (below.join(entry.file_name()), entry.metadata().map_err(at(&directory))?);
            found.insert(path.clone(), meta.mode());
            if meta.is_dir() && meta.permissions().mode() & 0o500 == 0o500 {
                directories.push(path);
            }
        }
    }
    Ok(found)
}

/// Whether two things of one kind are the same: the bytes of files, or where links lead.
async fn same_content(one: &Path, two: &Path) -> Result<bool, Failure> {
    let meta = fs::symlink_metadata(one).map_err(at(one))?;
    if meta.is_symlink() {
        return Ok(fs::read_link(one).map_err(at(one))? == fs::read_link(two).map_err(at(two))?);
    }
    if !meta.is_file() {
        return Ok(true);
    }
    if meta.len() != fs::metadata(two).map_err(at(two))?.len() {
        return Ok(false);
    }
    let (mut first, mut second) = (File::open(one).map_err(at(one))?, File::open(two).map_err(at(two))?);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    loop {
        here.clear();
        there.clear();
        (&mut first).take(PIECE).read_to_end(&mut here).map_err(at(one))?;
        (&mut second).take(PIECE).read_to_end(&mut there).map_err(at(two))?;
        if here != there || here.is_empty() {
            return Ok(here == there);
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, future::pending, time::Duration};

    use super::*;

    /// What comes of a script in a directory with these links.
    async fn played(script: &str, links: &[(&str, &str)]) -> Outcome {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("count"), "0\n").expect("a file");
        for (place, leads) in links {
            let leads = leads.replace("HERE", &directory.path().display().to_string());
            symlink(leads, directory.path().join(place)).expect("a link");
        }
        let job = Job { command: ["sh", "-c", script].map(OsString::from).to_vec(), apart: Duration::ZERO };
        let outcome = in_directories(&job, directory.path(), pending()).await.expect("it runs").expect("to its end");
        let count = fs::read_to_string(directory.path().join("count")).expect("a file");
        assert_eq!(count, "0\n", "the original is left alone");
        outcome
    }

    #[tokio::test]
    async fn a_link_into_the_directory_leads_into_the_copy_and_one_out_of_it_is_told() {
        let links = [("into", "HERE/count"), ("beside", "count"), ("out", "/dev/null"), ("up", "../..")];
        let outcome = played("echo 1 > into; echo 2 > beside; ln -sf \"$PWD/count\" new", &links).await;
        assert_eq!(outcome.differences, [], "both copies have one path");
        assert_eq!(
            outcome.outside.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
            ["out", "up"].into()
        );
    }

    #[tokio::test]
    async fn what_a_job_leaves_running_may_end_and_is_killed_before_anything_is_compared() {
        let ends = played("(sleep 0.3; echo late > late) &", &[]).await;
        assert_eq!((ends.differences, ends.once.outlived), (vec![], false));
        let stays = played("sleep 67 & trap '' TERM", &[]).await;
        assert!(stays.once.outlived && stays.twice.iter().all(|one| one.outlived), "{stays:?}");
        assert!(stays.once.well());
    }

    #[tokio::test]
    async fn what_cannot_be_run_or_copied_is_told() {
        let job = |program: &OsString| Job { command: vec![program.clone()], apart: Duration::ZERO };
        let directory = tempfile::tempdir().expect("a directory");
        let refused = async |program: &str, of: &Path| {
            in_directories(&job(&program.into()), of, pending()).await.expect_err("it cannot be").to_string()
        };
        assert!(refused("no-such-command", directory.path()).await.contains("no-such-command was not found"));
        let text = directory.path().join("text");
        fs::write(&text, "no program").expect("a file");
        assert!(refused(text.to_str().expect("text"), directory.path()).await.contains("cannot be executed"));
        assert!(refused("true", &text).await.contains("text"));
        assert!(refused("true", &directory.path().join("nothing")).await.contains("nothing"));
        let above = std::env::temp_dir();
        assert!(refused("true", &above).await.contains("TMPDIR"), "a copy in what is copied has no end");
    }

    #[tokio::test]
    async fn a_copy_has_the_permissions_and_the_times_of_its_original_and_no_sockets() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).expect("a socket");
        let old = directory.path().join("old");
        fs::write(&old, "x").expect("a file");
        let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(&old).and_then(|file| file.set_times(FileTimes::new().set_modified(long_ago))).expect("its time");
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).expect("its mode");
        let script = r#"[ ! -e socket ] && [ "$(stat -c '%Y %a' old)" = "1000000000 640" ]"#;
        let job = Job { command: ["sh", "-c", script].map(OsString::from).to_vec(), apart: Duration::ZERO };
        let outcome = in_directories(&job, directory.path(), pending()).await.expect("it runs").expect("to its end");
        assert!(outcome.once.well() && outcome.differences.is_empty(), "{outcome:?}");
        drop(socket);
    }

    async fn differences(script: &str) -> Vec<(String, Difference)> {
        let outcome = played(script, &[]).await;
        assert!(outcome.once.well());
        outcome.differences.into_iter().map(|one| (one.what, one.how)).collect()
    }

    #[tokio::test]
    async fn work_that_sets_a_state_is_idempotent() {
        assert_eq!(differences("echo 5 > count; mkdir -p done").await, []);
    }

    #[tokio::test]
    async fn work_that_adds_to_a_state_is_not() {
        assert_eq!(differences("echo line >> log").await, [("log".to_owned(), Difference::Content)]);
    }

    #[tokio::test]
    async fn what_each_run_leaves_for_itself_is_told() {
        let found = differences("echo x > out.$FENCEPOST_TWICE").await;
        let only = |name: &str, difference| (name.to_owned(), difference);
        assert_eq!(
            found,
            [
                only("out.first", Difference::OnlyTwice),
                only("out.once", Difference::OnlyOnce),
                only("out.second", Difference::OnlyTwice),
            ]
        );
    }
}
