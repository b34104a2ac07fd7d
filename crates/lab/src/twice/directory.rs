//! Copies of a directory.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use super::{Difference, Differs, Job, Outcome};

/// Runs the job in copies of a directory, and never in it. The copies are removed. `None` when `stop` completed first.
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
) -> io::Result<Option<Outcome>> {
    let copies = tempfile::tempdir()?;
    let (alone, together) = (copies.path().join("once"), copies.path().join("twice"));
    let compared = async {
        copy(directory, &alone).await?;
        copy(directory, &together).await?;
        let running = job.run(|command, both| {
            command.current_dir(if both { &together } else { &alone });
        });
        let (once, twice) = running.await?;
        Ok(Outcome { once, twice, differences: compare(&alone, &together)? })
    };
    tokio::select! {
        outcome = compared => outcome.map(Some),
        () = stop => Ok(None),
    }
}

/// Can be stopped between any two files.
async fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    let mut directories = vec![(from.to_owned(), to.to_owned())];
    let mut next = 0;
    while let Some((from, to)) = directories.get(next).cloned() {
        next += 1;
        for entry in fs::read_dir(from)? {
            tokio::task::yield_now().await;
            let entry = entry?;
            let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
            if kind.is_dir() {
                fs::create_dir(&target)?;
                directories.push((entry.path(), target));
            } else if kind.is_symlink() {
                symlink(fs::read_link(entry.path())?, target)?;
            } else if kind.is_file() {
                fs::copy(entry.path(), target)?;
            }
            // Sockets and pipes belong to running processes, and have no content.
        }
    }
    // Last: some may not be written to.
    directories.iter().rev().try_for_each(|(from, to)| fs::set_permissions(to, fs::metadata(from)?.permissions()))
}

fn compare(once: &Path, twice: &Path) -> io::Result<Vec<Differs>> {
    let (mut one, mut two) = (BTreeMap::new(), BTreeMap::new());
    walk(once, Path::new(""), &mut one)?;
    walk(twice, Path::new(""), &mut two)?;
    let mut differences = Vec::new();
    for (path, kind) in &one {
        match two.get(path) {
            None => differences.push((path.clone(), Difference::OnlyOnce)),
            Some(other) if other != kind => differences.push((path.clone(), Difference::Kind)),
            Some(_) if content(&once.join(path))? != content(&twice.join(path))? => {
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
fn walk(root: &Path, below: &Path, into: &mut BTreeMap<PathBuf, u32>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let (path, meta) = (below.join(entry.file_name()), entry.metadata()?);
        into.insert(path.clone(), meta.mode());
        if meta.is_dir() && meta.permissions().mode() & 0o500 == 0o500 {
            walk(root, &path, into)?;
        }
    }
    Ok(())
}

/// The bytes of a file, or where a link leads.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_symlink() {
        Ok(fs::read_link(path)?.into_os_string().into_encoded_bytes())
    } else if kind.is_file() {
        fs::read(path)
    } else {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, future::pending, time::Duration};

    use super::*;

    async fn differences(script: &str) -> Vec<(String, Difference)> {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("count"), "0\n").expect("a file");
        let command = ["sh", "-c", script].map(OsString::from).to_vec();
        let job = Job { command, apart: Duration::ZERO };
        let outcome = in_directories(&job, directory.path(), pending()).await.expect("it runs").expect("to its end");
        assert!(outcome.once.well());
        assert_eq!(
            fs::read_to_string(directory.path().join("count")).expect("a file"),
            "0\n",
            "the original is left alone"
        );
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
