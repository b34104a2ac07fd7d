//! File events: one inotify descriptor and one thread for the whole process, however many stores, runtimes and
//! waiters it has.
//!
//! One, because closing an inotify descriptor takes the kernel 6 to 20 ms, and because the kernel counts them
//! (128 for each user). Made by the first wait or the first longer hold, never by a short one. Where no watch is to be had,
//! because the kernel's limit is reached or it is not Linux, a waiter looks every [`POLL`].

use std::{
    path::Path,
    sync::{Arc, PoisonError},
    time::Duration,
};

use fencepost_core::clock::{self, BootClock};
use tokio::sync::Notify;

/// How often a waiter looks that cannot be told.
const POLL: Duration = Duration::from_millis(50);

/// A waiter's subscription to one file. Subscribe first, then look, then wait (W1): events in between are kept.
#[derive(Debug)]
pub(crate) struct FileWatch {
    happened: Arc<Notify>,
    subscription: Option<kernel::Subscription>,
}

impl FileWatch {
    /// Subscribes to the file at `path` being closed by a writer, removed or moved.
    pub(crate) fn new(path: &Path) -> Self {
        let happened = Arc::new(Notify::new());
        let wake = Arc::clone(&happened);
        let subscription = kernel::subscribe(path, kernel::Target::File, Arc::new(move |_| wake.notify_one()));
        Self { happened, subscription }
    }

    /// Subscribes to a seat in the directory at `path` being given up, by whatever its owner's end was.
    pub(crate) fn of_seats(path: &Path) -> Self {
        let happened = Arc::new(Notify::new());
        let wake = Arc::clone(&happened);
        let subscription = kernel::subscribe(path, kernel::Target::Seats, Arc::new(move |_| wake.notify_one()));
        Self { happened, subscription }
    }

    /// Completes after an event. Cancel safe.
    pub(crate) async fn event(&self) {
        match self.subscription {
            Some(_) => self.happened.notified().await,
            None => clock::sleep(&BootClock, POLL).await,
        }
    }
}

/// A subscription to files being removed from a directory.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    _subscription: kernel::Subscription,
}

impl DirectoryWatch {
    /// Calls `told` on the watcher's thread with the name of what was removed, moved or replaced; without one when
    /// it may be anything. `None` when there is no watch to be had: then nobody is told.
    pub(crate) fn new(path: &Path, told: impl Fn(Option<&[u8]>) + Send + Sync + 'static) -> Option<Self> {
        let subscription = kernel::subscribe(path, kernel::Target::Directory, Arc::new(told))?;
        Some(Self { _subscription: subscription })
    }

    /// The same for a directory of seats. `told` is called on more than removals.
    pub(crate) fn of_seats(path: &Path, told: impl Fn() + Send + Sync + 'static) -> Option<Self> {
        let subscription = kernel::subscribe(path, kernel::Target::Seats, Arc::new(move |_| told()))?;
        Some(Self { _subscription: subscription })
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::{
        collections::HashMap,
        fmt,
        mem::MaybeUninit,
        sync::{Mutex, MutexGuard, OnceLock},
        thread,
    };

    use rustix::{
        fd::OwnedFd,
        fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
        io::Errno,
    };

    use super::*;

    pub(super) type Told = Arc<dyn Fn(Option<&[u8]>) + Send + Sync>;

    #[derive(Clone, Copy)]
    pub(super) enum Target {
        File,
        Directory,
        /// For those who sit there and those who wait for them alike: the kernel keeps one mask for each directory.
        Seats,
    }

    impl Target {
        fn events(self) -> WatchFlags {
            match self {
                // A file that is removed while somebody has it open says so by ATTRIB only: its link count changed.
                Target::File => {
                    WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF
                }
                Target::Directory => {
                    WatchFlags::DELETE
                        | WatchFlags::MOVED_FROM
                        | WatchFlags::MOVED_TO
                        | WatchFlags::DELETE_SELF
                        | WatchFlags::MOVE_SELF
                        | WatchFlags::ONLYDIR
                }
                Target::Seats => {
                    WatchFlags::CLOSE_WRITE
                        | WatchFlags::ATTRIB
                        | WatchFlags::DELETE
                        | WatchFlags::DELETE_SELF
                        | WatchFlags::MOVE_SELF
                        | WatchFlags::ONLYDIR
                }
            }
        }
    }

    /// Ends when dropped.
    pub(super) struct Subscription {
        watch: i32,
        id: u64,
    }

    pub(super) fn subscribe(path: &Path, target: Target, told: Told) -> Option<Subscription> {
        let watcher = watcher()?;
        // The kernel answers with the same number for the same file, so numbers are given and dropped under the lock.
        let mut listeners = watcher.listeners();
        let watch = inotify::add_watch(&watcher.inotify, path, target.events()).ok()?;
        listeners.next_id += 1;
        let id = listeners.next_id;
        listeners.of_watch.entry(watch).or_default().push((id, told));
        Some(Subscription { watch, id })
    }

    impl Drop for Subscription {
        fn drop(&mut self) {
            let Some(watcher) = watcher() else { return };
            let mut listeners = watcher.listeners();
            let Some(of_watch) = listeners.of_watch.get_mut(&self.watch) else { return };
            of_watch.retain(|(id, _)| *id != self.id);
            if of_watch.is_empty() {
                listeners.of_watch.remove(&self.watch);
                // It fails when the file is gone and the watch with it.
                let _ = inotify::remove_watch(&watcher.inotify, self.watch);
            }
        }
    }

    impl fmt::Debug for Subscription {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Subscription({})", self.watch)
        }
    }

    struct Watcher {
        inotify: OwnedFd,
        listeners: Mutex<Listeners>,
    }

    #[derive(Default)]
    struct Listeners {
        of_watch: HashMap<i32, Vec<(u64, Told)>>,
        next_id: u64,
    }

    static WATCHER: OnceLock<Option<Watcher>> = OnceLock::new();

    fn watcher() -> Option<&'static Watcher> {
        let watcher = WATCHER.get_or_init(|| {
            let inotify = inotify::init(CreateFlags::CLOEXEC).ok()?;
            let started = thread::Builder::new().name("fencepost-files".into()).spawn(run).is_ok();
            started.then(|| Watcher { inotify, listeners: Mutex::default() })
        });
        watcher.as_ref()
    }

    fn run() {
        // Waits for the initialisation that started this thread.
        let Some(watcher) = watcher() else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watcher.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    // Events were lost, and nobody knows whose.
                    watcher.all().iter().for_each(|told| told(None));
                }
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes());
                    watcher.of(event.wd()).iter().for_each(|told| told(name));
                }
                Err(Errno::INTR) => {}
                // Nothing is known to cause it; it must not become a busy loop.
                Err(_) => thread::sleep(POLL),
            }
        }
    }

    impl Watcher {
        fn listeners(&self) -> MutexGuard<'_, Listeners> {
            self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
        }

        // Both give copies, so that who is told may subscribe and unsubscribe.
        fn of(&self, watch: i32) -> Vec<Told> {
            let listeners = self.listeners();
            listeners.of_watch.get(&watch).into_iter().flatten().map(|(_, told)| Arc::clone(told)).collect()
        }

        fn all(&self) -> Vec<Told> {
            self.listeners().of_watch.values().flatten().map(|(_, told)| Arc::clone(told)).collect()
        }
    }

    #[cfg(test)]
    pub(super) fn listening() -> usize {
        watcher().map_or(0, |watcher| watcher.all().len())
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use super::*;

    pub(super) enum Target {
        File,
        Directory,
        Seats,
    }

    /// There is none here.
    #[derive(Debug)]
    pub(super) enum Subscription {}

    pub(super) fn subscribe(
        _path: &Path,
        _target: Target,
        _told: Arc<dyn Fn(Option<&[u8]>) + Send + Sync>,
    ) -> Option<Subscription> {
        None
    }
}

/// How many subscriptions the process has.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn listening() -> usize {
    kernel::listening()
}
