//! Namespaces of our own: a network and a table of mounts that nobody else sees, and that end with us however we end.
//!
//! A process has them thread by thread, and whatever a thread starts has those of its thread. So a laboratory enters them
//! with one thread, before it starts anything.

use std::{
    fs::{self, File},
    io,
    net::Ipv4Addr,
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{getegid, geteuid},
    thread::{CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities},
};

use crate::lan::Lan;

/// Where whoever entered the namespaces is reached from hosts within them.
pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// Says that this thread, and what it starts, are in namespaces of their own.
#[derive(Clone, Copy, Debug)]
pub struct Namespaces(());

impl Namespaces {
    /// Moves this thread, and all that it starts from now on, into a network and a table of mounts of its own. Who is not root
    /// becomes able to do that in a user namespace of its own, which the kernel gives to a process of one thread alone.
    ///
    /// # Errors
    /// In words, when that is not possible. The thread may have moved all the same, into a network whose loopback interface is up.
    pub fn enter() -> Result<Self, String> {
        ip_is_here()?;
        let shares = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
        let refused = |error: nix::Error| match geteuid().is_root() {
            true => format!("the kernel refuses a network of our own: {error}"),
            false => format!("the kernel refuses a user namespace of our own: {error}"),
        };
        if geteuid().is_root() {
            unshare(shares).map_err(refused)?;
        } else {
            if threads() > 1 {
                return Err(
                    "without root, a user namespace is needed, and a process of several threads gets none".into()
                );
            }
            let (user, group) = (geteuid().as_raw(), getegid().as_raw());
            unshare(shares | CloneFlags::CLONE_NEWUSER).map_err(refused)?;
            // Everybody keeps his number: a server that refuses to run as root finds that it does not.
            let map = |file: &str, text: String| {
                fs::write(format!("/proc/self/{file}"), text).map_err(|error| format!("/proc/self/{file}: {error}"))
            };
            map("setgroups", "deny".into())?;
            map("uid_map", format!("{user} {user} 1"))?;
            map("gid_map", format!("{group} {group} 1"))?;
        }
        // What is mounted from now on is seen by nobody else.
        let privately = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", privately).map_err(|error| format!("mounts of our own: {error}"))?;
        let entered = Self(());
        ip(&["link", "set", "lo", "up"], None)?;
        ip(&["address", "add", &format!("{HERE}/32"), "dev", "lo"], None)?;
        // Whether the kernel has what a network is made of.
        Lan::new(entered)?.host()?;
        Ok(entered)
    }

    /// A disk of so many bytes, in memory, at a directory that is there. It ends with the namespaces.
    ///
    /// # Errors
    /// In words, when it cannot be mounted.
    pub fn mount_small_disk(self, at: &std::path::Path, bytes: u64) -> Result<(), String> {
        let options = std::ffi::CString::new(format!("size={bytes},mode=0755")).map_err(|error| error.to_string())?;
        mount("fencepost", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, &*options)
            .map_err(|error| format!("a small disk cannot be mounted at {}: {error}", at.display()))
    }
}

/// A network of its own, which stays for as long as somebody has it open or is in it.
#[derive(Debug)]
pub(crate) struct OtherNetwork(File);

impl OtherNetwork {
    pub(crate) fn new() -> Result<Self, String> {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let made = made.join().map_err(|_| "the thread that makes a network panicked".to_owned())?;
        made.map(Self).map_err(|error| format!("the kernel refuses another network: {error}"))
    }

    /// Does something there: sockets that are made and processes that are started by it are in that network.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.0, CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// As a file for a command's input: `ip` then finds the network at `/proc/self/fd/0`.
    fn as_input(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// Waits until interfaces there send what they are given.
    pub(crate) fn sends(&self, interfaces: &[&str]) -> Result<(), String> {
        self.inside(|| interfaces.iter().try_for_each(|interface| sends(interface)))
            .map_err(|error| format!("the other network cannot be entered: {error}"))?
    }

    /// Several commands of `ip` there.
    pub(crate) fn configure(&self, commands: &[String]) -> Result<(), String> {
        self.inside(|| commands.iter().try_for_each(|line| ip(&line.split(' ').collect::<Vec<_>>(), None)))
            .map_err(|error| format!("the other network cannot be entered: {error}"))?
    }
}

/// Waits until an interface sends what it is given: the kernel looks at a cable a moment after it was plugged in, and throws
/// away what comes before.
pub(crate) fn sends(interface: &str) -> Result<(), String> {
    comes_to(interface, " state UP ")
}

/// Waits until a switch passes on what comes by this port of it.
pub(crate) fn forwards(port: &str) -> Result<(), String> {
    comes_to(port, " state forwarding ")
}

fn comes_to(interface: &str, state: &str) -> Result<(), String> {
    for _ in 0..1000 {
        if said_by_ip(&["-d", "-o", "link", "show", "dev", interface], None)?.contains(state) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(format!("the interface {interface} does not come to its{state}"))
}

/// Runs `ip` in this thread's network; `other` is what it knows as `/proc/self/fd/0`.
pub(crate) fn ip(arguments: &[&str], other: Option<&OtherNetwork>) -> Result<(), String> {
    said_by_ip(arguments, other).map(drop)
}

fn said_by_ip(arguments: &[&str], other: Option<&OtherNetwork>) -> Result<String, String> {
    let mut command = Command::new(ip_is_here()?);
    let input = other.map_or(Ok(Stdio::null()), OtherNetwork::as_input).map_err(|error| error.to_string())?;
    command.args(arguments).stdin(input);
    let output = as_able_as_we_are(|| command.output()).map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Who is not root has rights in a user namespace, and hands none of them to what he starts unless he says so. Only `ip` gets
/// them so, and no server and no client.
fn as_able_as_we_are<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    if geteuid().is_root() {
        return work();
    }
    thread::scope(|scope| {
        let able = scope.spawn(|| {
            let mut ours = capabilities(None)?;
            ours.inheritable |= CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
            set_capabilities(None, ours)?;
            configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)?;
            configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
            work()
        });
        able.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Where `ip` is, which is outside of the path of most users.
fn ip_is_here() -> Result<&'static PathBuf, String> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let look = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        folders.map(|folder| folder.join("ip")).find(|file| file.is_file())
    };
    FOUND.get_or_init(look).as_ref().ok_or_else(|| "ip is not installed: install the package iproute2".to_owned())
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
