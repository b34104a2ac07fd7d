//! What goes wrong, and when: drawn from a seed, so that it can be repeated, and a list, so that it can be shortened.

use std::fmt;

use fastrand::Rng;

/// Milliseconds of virtual time.
pub type Millis = u64;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing passes between a client and a server.
    Cut {
        /// The client.
        client: usize,
        /// The server.
        server: usize,
        /// Since when.
        at: Millis,
        /// For how long.
        lasts: Millis,
    },
    /// What a client sends to a server, or is answered, takes so much longer.
    Slow {
        /// The client.
        client: usize,
        /// The server.
        server: usize,
        /// Since when.
        at: Millis,
        /// For how long.
        lasts: Millis,
        /// How much longer.
        by: Millis,
    },
    /// A server stands still, and does what it was sent when it goes on.
    Stop {
        /// The server.
        server: usize,
        /// Since when.
        at: Millis,
        /// For how long.
        lasts: Millis,
    },
    /// A server is killed and comes back with what it had.
    Restart {
        /// The server.
        server: usize,
        /// When it is killed.
        at: Millis,
        /// For how long it is away.
        lasts: Millis,
    },
    /// A server is killed and comes back empty.
    Forget {
        /// The server.
        server: usize,
        /// When it is killed.
        at: Millis,
        /// For how long it is away.
        lasts: Millis,
    },
    /// A server's clock jumps ahead.
    Jump {
        /// The server.
        server: usize,
        /// When.
        at: Millis,
        /// By how much.
        by: Millis,
    },
    /// A client stands still, wherever it is.
    Pause {
        /// The client.
        client: usize,
        /// Since when.
        at: Millis,
        /// For how long.
        lasts: Millis,
    },
}

/// What may happen. Everything that the algorithm bears is always in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assumptions {
    /// Servers' clocks may jump.
    pub clocks_jump: bool,
    /// Servers may forget what they promised, and are counted all the same when they come back.
    pub servers_forget: bool,
    /// The same, with the guard: a server is not counted before it has been up for one TTL.
    pub guarded: bool,
    /// Clocks may run at rates that differ by more than the drift allows.
    pub clocks_drift: bool,
    /// Clients may be paused between looking at their lease and writing.
    pub writers_pause: bool,
}

/// A seed's world: how clocks run and what goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// What the rest of the world is drawn from: delays, losses, when who wants the lock.
    pub noise: u64,
    /// Clients that want the lock.
    pub clients: usize,
    /// Servers that vote.
    pub servers: usize,
    /// The TTL of every claim.
    pub ttl: Millis,
    /// How fast each server's clock runs, in millionths of the true rate.
    pub server_rates: Vec<u64>,
    /// How fast each client's clock runs.
    pub client_rates: Vec<u64>,
    /// The guard against servers that restarted.
    pub guarded: bool,
    /// Clients may be paused between looking and writing.
    pub writers_pause: bool,
    /// What goes wrong.
    pub troubles: Vec<Trouble>,
}

/// How long a world runs, in TTLs.
const TTLS: u64 = 12;

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64, assumptions: Assumptions) -> Self {
        let mut random = Rng::with_seed(seed);
        let (clients, servers) = (random.usize(2..=4), [3, 5, 5, 4][random.usize(0..4)]);
        let ttl = [300, 1_000, 10_000][random.usize(0..3)];
        // Half of the drift each way: two clocks differ by less than all of it.
        let spread = if assumptions.clocks_drift { 300_000 } else { 4_500 };
        let mut rate = || 1_000_000 - spread + random.u64(0..=2 * spread);
        let server_rates = (0..servers).map(|_| rate()).collect();
        let client_rates = (0..clients).map(|_| rate()).collect();
        let count = random.usize(0..24);
        let mut plan = Self {
            seed,
            noise: seed,
            clients,
            servers,
            ttl,
            server_rates,
            client_rates,
            guarded: assumptions.guarded,
            writers_pause: assumptions.writers_pause,
            troubles: Vec::new(),
        };
        plan.troubles = (0..count).map(|_| plan.trouble(&mut random, assumptions)).collect();
        plan
    }

    /// How long the world runs.
    pub fn ends(&self) -> Millis {
        self.ttl * TTLS
    }

    fn trouble(&self, random: &mut Rng, assumptions: Assumptions) -> Trouble {
        let (client, server) = (random.usize(0..self.clients), random.usize(0..self.servers));
        let (at, lasts) = (random.u64(0..self.ends()), random.u64(1..=2 * self.ttl));
        loop {
            return match random.u32(0..7) {
                0 | 1 => Trouble::Cut { client, server, at, lasts },
                2 => Trouble::Slow { client, server, at, lasts, by: random.u64(1..=self.ttl) },
                3 => Trouble::Stop { server, at, lasts },
                4 => Trouble::Pause { client, at, lasts },
                5 if assumptions.servers_forget || assumptions.guarded => {
                    Trouble::Forget { server, at, lasts: lasts / 8 }
                }
                5 => Trouble::Restart { server, at, lasts: lasts / 8 },
                6 if assumptions.clocks_jump => Trouble::Jump { server, at, by: random.u64(1..=2 * self.ttl) },
                _ => continue,
            };
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, noise, clients, servers, ttl, .. } = self;
        writeln!(f, "seed {seed}, noise {noise}: {clients} clients, {servers} servers, TTL {ttl} ms")?;
        for trouble in &self.troubles {
            writeln!(f, "  {trouble}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { client, server, at, lasts } => {
                write!(f, "{at} ms: client {client} and server {server} are cut off from each other for {lasts} ms")
            }
            Self::Slow { client, server, at, lasts, by } => {
                write!(f, "{at} ms: between client {client} and server {server} all takes {by} ms more, for {lasts} ms")
            }
            Self::Stop { server, at, lasts } => write!(f, "{at} ms: server {server} stands still for {lasts} ms"),
            Self::Restart { server, at, lasts } => {
                write!(f, "{at} ms: server {server} is killed; it is back with its data after {lasts} ms")
            }
            Self::Forget { server, at, lasts } => {
                write!(f, "{at} ms: server {server} is killed; it is back without its data after {lasts} ms")
            }
            Self::Jump { server, at, by } => write!(f, "{at} ms: the clock of server {server} jumps ahead by {by} ms"),
            Self::Pause { client, at, lasts } => write!(f, "{at} ms: client {client} stands still for {lasts} ms"),
        }
    }
}
