use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
};

use fencepost_core::{capabilities::Capabilities, name::LockName, store::BoxFuture};
use tempfile::TempDir;

use crate::site::{DoesNotApply, Site, Tampering, Verdict};

/// A directory of its own.
#[derive(Debug)]
pub struct FileSite(TempDir);

/// A fresh directory.
pub async fn file() -> FileSite {
    FileSite(tempfile::tempdir().expect("a temporary directory"))
}

impl FileSite {
    fn locks(&self) -> PathBuf {
        self.0.path().join(self.namespace().as_str())
    }

    /// Where a lock's file is; the rules that ask use names that need no encoding.
    fn lock(&self, name: &LockName) -> PathBuf {
        self.locks().join(format!("{name}.lock"))
    }
}

impl Site for FileSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("file")
    }

    fn url(&self) -> String {
        format!("file:{}", self.0.path().display())
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match how {
                Tampering::Delete(name) => fs::remove_file(self.lock(name)).expect("a lock's file"),
                Tampering::PlantForeign(name) => {
                    fs::create_dir_all(self.locks()).expect("the directory");
                    fs::write(self.lock(name), "a file that is no lock\n").expect("the directory");
                }
                Tampering::CorruptFence(name) => {
                    let file = fs::File::options().write(true).open(self.lock(name)).expect("a lock's file");
                    file.write_all_at(&[0xa5; 64], 1024).expect("a lock's file");
                }
                Tampering::PlantWrongType(_) => return Err(DoesNotApply("files have one type of content")),
                Tampering::MakePermanent(_) => return Err(DoesNotApply("grants do not expire on this store")),
                Tampering::FlushScripts => return Err(DoesNotApply("the store knows no scripts")),
                Tampering::CutMessages => return Err(DoesNotApply("wake-ups come from the kernel")),
            }
            Ok(())
        })
    }

    /// A directory of the kernel's, in which not even root can make another.
    fn forbidden_url(&self) -> Verdict<String> {
        Ok("file:/sys/fencepost".to_owned())
    }

    /// Locks held by the kernel's own account, the tickets of waiters, and the seats of those who hold beside each other.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let kernel = fs::read_to_string("/proc/locks").expect("the kernel's list of locks");
            let held = |inode: u64| kernel.lines().any(|line| line.contains(&format!(":{inode} ")));
            let mut left = Vec::new();
            for entry in fs::read_dir(self.locks()).into_iter().flatten().flatten() {
                let shown = entry.file_name().to_string_lossy().into_owned();
                if shown.ends_with(".lock") && entry.metadata().is_ok_and(|found| held(found.ino())) {
                    left.push(format!("{shown} is locked"));
                }
                if shown.ends_with(".queue") || shown.ends_with(".seats") {
                    let tickets = fs::read_dir(entry.path()).into_iter().flatten().flatten();
                    left.extend(tickets.map(|ticket| format!("{shown}/{}", ticket.file_name().to_string_lossy())));
                }
            }
            left
        })
    }
}
