//! The scripts, each a file of its own. They are sent as `EVALSHA`; a server that does not know one (after a restart,
//! a failover or `SCRIPT FLUSH`) is sent the text once more.

use redis::Cmd;

/// A script and the hash that the server knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    /// The call by hash. Never put it into a pipeline: an answer of `NOSCRIPT` could not be repaired there.
    pub(crate) fn by_hash(&self, keys: &[String], arguments: &[impl AsRef<[u8]>]) -> Cmd {
        call("EVALSHA", &self.hash, keys, arguments)
    }

    /// The call with the text, which also makes the server know the hash.
    pub(crate) fn by_text(&self, keys: &[String], arguments: &[impl AsRef<[u8]>]) -> Cmd {
        call("EVAL", self.text, keys, arguments)
    }
}

fn call(command: &str, script: &str, keys: &[String], arguments: &[impl AsRef<[u8]>]) -> Cmd {
    // Enough for one lock in one piece; more grows by itself.
    let mut call = Cmd::with_capacity(16, 512);
    call.arg(command).arg(script).arg(keys.len()).arg(keys);
    for argument in arguments {
        call.arg(argument.as_ref());
    }
    call
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) claim: Script,
    pub(crate) claim_several: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) poke: Script,
    pub(crate) force: Script,
    pub(crate) downgrade: Script,
    pub(crate) resize: Script,
    pub(crate) look_at_cell: Script,
    pub(crate) change_cell: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        macro_rules! with_queue {
            ($file:literal) => {
                Script::new(concat!(
                    include_str!("scripts/record.lua"),
                    include_str!("scripts/queue.lua"),
                    include_str!("scripts/holders.lua"),
                    include_str!($file)
                ))
            };
        }
        Self {
            claim: with_queue!("scripts/claim.lua"),
            claim_several: with_queue!("scripts/claim_several.lua"),
            release: Script::new(concat!(
                include_str!("scripts/release_unqueued.lua"),
                include_str!("scripts/record.lua"),
                include_str!("scripts/queue.lua"),
                include_str!("scripts/holders.lua"),
                include_str!("scripts/release.lua")
            )),
            renew: Script::new(concat!(include_str!("scripts/record.lua"), include_str!("scripts/renew.lua"))),
            poke: with_queue!("scripts/poke.lua"),
            force: with_queue!("scripts/force.lua"),
            downgrade: with_queue!("scripts/downgrade.lua"),
            resize: with_queue!("scripts/resize.lua"),
            look_at_cell: Script::new(concat!(
                include_str!("scripts/cell.lua"),
                include_str!("scripts/look_at_cell.lua")
            )),
            change_cell: Script::new(concat!(
                include_str!("scripts/cell.lua"),
                include_str!("scripts/change_cell.lua")
            )),
        }
    }
}
