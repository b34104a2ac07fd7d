//! A copy of the source tree to plant bugs in.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::bugs::Bug;

pub(crate) struct Tree(PathBuf);

/// A bug in its place.
pub(crate) struct Planted {
    file: PathBuf,
    original: String,
}

impl Tree {
    /// Copies what git knows, or would know, of the tree. Files that did not change keep their times, so that what was
    /// built from them stays good.
    pub(crate) fn copied() -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let copy = source.join("target/planted-bugs/tree");
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&source)
            .output()
            .map_err(|error| format!("git cannot be run: {error}"))?;
        let listed = String::from_utf8(listed.stdout).map_err(|error| error.to_string())?;
        let files: Vec<&str> = listed.split('\0').filter(|file| source.join(file).is_file()).collect();
        if files.is_empty() {
            return Err("git lists no files of this tree".to_owned());
        }
        remove_others(&copy, &copy, &files)?;
        for file in files {
            let (from, to) = (source.join(file), copy.join(file));
            let content = fs::read(&from).map_err(|error| failed(&from, &error))?;
            if fs::read(&to).ok().as_ref() != Some(&content) {
                let parent = to.parent().unwrap_or(&copy);
                fs::create_dir_all(parent).map_err(|error| failed(parent, &error))?;
                fs::write(&to, content).map_err(|error| failed(&to, &error))?;
            }
        }
        Ok(Self(copy))
    }

    /// The tree that this was built from, to look at only.
    #[cfg(test)]
    pub(crate) fn source() -> Self {
        Self(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether the bug's place is found exactly once.
    pub(crate) fn check(&self, bug: &Bug) -> Result<(), String> {
        let file = self.0.join(bug.file);
        let text = fs::read_to_string(&file).map_err(|error| failed(&file, &error))?;
        match text.matches(bug.find).count() {
            1 => Ok(()),
            times => Err(format!("the place of {:?} is found {times} times in {}", bug.name, bug.file)),
        }
    }

    pub(crate) fn plant(&self, bug: &Bug) -> Result<Planted, String> {
        let file = self.0.join(bug.file);
        let original = fs::read_to_string(&file).map_err(|error| failed(&file, &error))?;
        fs::write(&file, original.replacen(bug.find, bug.replace, 1)).map_err(|error| failed(&file, &error))?;
        Ok(Planted { file, original })
    }
}

impl Planted {
    pub(crate) fn restore(self) -> Result<(), String> {
        fs::write(&self.file, self.original).map_err(|error| failed(&self.file, &error))
    }
}

/// A file of an earlier copy that is gone from the tree could still be built.
fn remove_others(copy: &Path, directory: &Path, files: &[&str]) -> Result<(), String> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_others(copy, &path, files)?;
        } else if !path.strip_prefix(copy).is_ok_and(|file| files.iter().any(|known| Path::new(known) == file)) {
            fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
        }
    }
    Ok(())
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
