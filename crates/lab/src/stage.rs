//! What a scenario is played on: a store of its own, a resource, client processes, and the record of all they do.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost::{LockName, Namespace, registry, store::Store};
use fencepost_core::clock::{self, BootClock};
use fencepost_history::{Event, Phase, Verb, What};
use fencepost_servers::{HERE, Host, Lan, Network, Shore, WallClock, Weather};

use tokio::{sync::mpsc::UnboundedSender, task::JoinHandle};

use crate::{
    agent::{Client, LABEL, Role},
    cut::CutBy,
    player::{AgentCommand, Player},
    recorder::Recorder,
    resource::Resource,
    run::{Faults, Plan},
    scenario::{Scenario, Stop},
    stand::{self, Ground, ServerFault, Side, Stand, UNGUARDED},
    subject::Subject,
};

/// The lock of every scenario.
pub const LOCK: &str = "orders/1";
/// The TTL of most scenarios. Long enough for a loaded machine, short enough to be waited for.
pub const TTL: Duration = Duration::from_millis(1500);
/// How long a holder thinks between reading and writing: long enough to be seen on a drawing.
pub(crate) const THINKS: Duration = Duration::from_millis(120);
/// From here on a lock that is wanted and that nobody has counts as blocked.
pub const IDLE_LIMIT: Duration = Duration::from_millis(600);
/// Longer than anything that a scenario waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Of a clock that goes right, in hundredths.
const RIGHT_PACE: u32 = 100;

/// A stage. All processes on it end when it is dropped.
#[derive(Debug)]
pub struct Stage {
    /// Whom it is played on.
    pub subject: Subject,
    /// What chance there is.
    pub(crate) random: fastrand::Rng,
    /// What everybody is on, where networks are cut by the kernel.
    lan: Option<Lan>,
    store: Arc<dyn Stand>,
    resource: Resource,
    recorder: Recorder,
    agent: AgentCommand,
    faults: Faults,
    /// Looks at faults, under way.
    proofs: Mutex<Vec<JoinHandle<Result<(), Stop>>>>,
    /// Hears of each fault that was none, so that nobody waits for what will not come of it.
    doubts: UnboundedSender<Stop>,
}

impl Stage {
    /// Starts the store and the resource.
    pub(crate) async fn set(
        scenario: &'static dyn Scenario,
        subject: Subject,
        seed: u64,
        plan: &Plan,
        recorder: Recorder,
        doubts: UnboundedSender<Stop>,
    ) -> Result<Self, Stop> {
        let (cut_by, agent, faults) = (&plan.cut_by, plan.agent.clone(), plan.faults);
        let lan = if scenario.cuts_the_network() { lan(subject, cut_by, &recorder)? } else { None };
        let small_disk = scenario.fills_the_disk(subject).then(|| cut_by.namespaces()).transpose()?;
        let ground = Ground { lan: lan.clone(), small_disk };
        let store = blocking(move || stand::start(subject.store, &ground)).await?;
        let at = if lan.is_some() { HERE } else { Ipv4Addr::LOCALHOST };
        let resource = Resource::start(recorder.clone(), at).await?;
        let (random, proofs) = (fastrand::Rng::with_seed(seed), Mutex::default());
        Ok(Self { subject, random, lan, store, resource, recorder, agent, faults, proofs, doubts })
    }

    /// A client process with a direct way to everything.
    pub(crate) async fn player(&self, name: &str) -> Result<Player, Stop> {
        self.start_player(name, self.url(), None, RIGHT_PACE).await
    }

    /// The same, whose URL says more.
    pub(crate) async fn player_with(&self, name: &str, options: &str) -> Result<Player, Stop> {
        self.start_player(name, format!("{}?{options}", self.url()), None, RIGHT_PACE).await
    }

    /// A client process that was led to a replica.
    pub(crate) async fn player_at_replica(&self, name: &str) -> Result<Player, Stop> {
        self.start_player(name, self.store.url_of_replica()?, None, RIGHT_PACE).await
    }

    /// A client process on a wall clock of its own, whose network can be disturbed.
    pub(crate) async fn player_on(&self, name: &str, clock: &WallClock) -> Result<Player, Stop> {
        self.start_behind_network(name, Some(clock), RIGHT_PACE).await
    }

    /// A client process whose clock runs at so many hundredths of its pace, and whose network can be disturbed.
    pub(crate) async fn player_at_pace(&self, name: &str, pace: u32) -> Result<Player, Stop> {
        let (fault, target) = (format!("clock runs at {pace} %"), name.to_owned());
        let player = self.start_behind_network(name, None, pace).await;
        self.recorder.tell("lab", What::Fault { fault, target, phase: Phase::Begin, installed: player.is_ok() });
        player
    }

    /// A wall clock that can be made to jump.
    pub(crate) fn wall_clock(&self) -> Result<WallClock, Stop> {
        WallClock::new().map_err(Stop::NotInstalled)
    }

    /// Sets a player's clock apart from the machine's by so many seconds.
    pub(crate) fn jump(&self, player: &Player, clock: &WallClock, seconds: i64) -> Result<(), Stop> {
        let done = match (player.reads(clock), self.faults) {
            (false, _) => Err(Stop::NotInstalled(format!("{} does not read the clock that is to jump", player.name))),
            (true, Faults::Made) => clock.stand_apart(seconds).map_err(Stop::NotInstalled),
            (true, Faults::Pretended) => Ok(()),
        };
        let done = done.and_then(|()| match clock.apart().map_err(Stop::NotInstalled)? == seconds * 1_000_000_000 {
            true => Ok(()),
            false => Err(Stop::Ineffective(format!("{} has the time that it had", player.name))),
        });
        let (fault, target) = (format!("wall clock {seconds:+} s"), player.name.clone());
        self.recorder.tell("lab", What::Fault { fault, target, phase: Phase::Begin, installed: done.is_ok() });
        done
    }

    fn url(&self) -> String {
        if self.subject.client == Client::Library { self.store.url() } else { self.store.url_of_one() }
    }

    /// A client process whose network can be disturbed.
    pub(crate) async fn player_behind_network(&self, name: &str) -> Result<Player, Stop> {
        self.start_behind_network(name, None, RIGHT_PACE).await
    }

    async fn start_behind_network(&self, name: &str, clock: Option<&WallClock>, pace: u32) -> Result<Player, Stop> {
        if self.lan.is_some() {
            // It is on a host of its own, which can be cut off.
            return self.start_player(name, self.url(), clock, pace).await;
        }
        let to_store = if self.subject.store.has_a_network() {
            let store = self.store.clone();
            Some(blocking(move || store.way()).await?)
        } else {
            None
        };
        let url = to_store.as_ref().map_or_else(|| self.url(), |way| way.url.clone());
        let mut player = self.start_player(name, url, clock, pace).await?;
        player.to_store = to_store;
        player.to_resource = Some(Network::before(self.resource.address).await?);
        Ok(player)
    }

    /// A client process on one side of a partition of the store's servers.
    pub(crate) async fn player_from(&self, name: &str, side: Side) -> Result<Player, Stop> {
        self.start_player_from(name, side, |url| url).await
    }

    /// The same for a Redlock whose servers do not count before they have been up for a TTL.
    pub(crate) async fn guarded_player_from(&self, name: &str, side: Side) -> Result<Player, Stop> {
        self.start_player_from(name, side, |url| url.replace(UNGUARDED, "")).await
    }

    async fn start_player_from(&self, name: &str, side: Side, rule: fn(String) -> String) -> Result<Player, Stop> {
        let store = self.store.clone();
        let url = blocking(move || store.url_from(side)).await.map(rule);
        let (fault, target) = ("partition".to_owned(), name.to_owned());
        self.recorder.tell("lab", What::Fault { fault, target, phase: Phase::Begin, installed: url.is_ok() });
        let player = self.start_player(name, url?, None, RIGHT_PACE).await?;
        if let (Side::Left, Some(host)) = (side, &player.host) {
            host.stand_on(Shore::Far).map_err(Stop::NotInstalled)?;
        }
        Ok(player)
    }

    async fn start_player(
        &self,
        name: &str,
        url: String,
        clock: Option<&WallClock>,
        pace: u32,
    ) -> Result<Player, Stop> {
        let host = match self.lan.clone() {
            Some(lan) => Some(blocking(move || lan.host().map(Arc::new).map_err(Stop::NotInstalled)).await?),
            None => None,
        };
        let role = Role { name: name.to_owned(), client: self.subject.client, url, pace };
        let (recorder, resource) = (self.recorder.clone(), self.resource.address);
        let mut player = Player::start(&role, &self.agent, clock, host, recorder, resource).await?;
        player.faults = self.faults;
        Ok(player)
    }

    /// Does something to the store's servers.
    pub(crate) async fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        let ends = matches!(fault, ServerFault::Thaw | ServerFault::Clear);
        let phase = if ends { Phase::End } else { Phase::Begin };
        let store = self.store.clone();
        let begin = crate::agent::now();
        let faults = self.faults;
        let done = blocking(move || {
            let before = store.shows(fault)?;
            if faults == Faults::Made {
                store.inflict(fault)?;
            }
            // A process that was stopped runs for a moment yet.
            let Some(before) = before else { return Ok(()) };
            for _ in 0..25 {
                if store.shows(fault)?.as_ref() != Some(&before) {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Stop::Ineffective(before))
        })
        .await;
        let by = if fault == ServerFault::CutOffLeader { self.cut_by() } else { "" };
        let (word, target, installed) = (format!("{}{by}", fault.word()), "store".to_owned(), done.is_ok());
        let what = What::Fault { fault: word, target, phase, installed };
        self.recorder.add(Event { at: begin, by: "lab".to_owned(), what });
        done
    }

    /// Cuts a player off from the store, not from the resource: nothing passes, and no connection ends.
    pub(crate) async fn cut_off(&self, player: &Player) -> Result<(), Stop> {
        let Some(host) = &player.host else { return self.weather_to_store(player, Weather::Silence) };
        let server = self.store.address();
        let server =
            server.ok_or_else(|| Stop::NotInstalled("there is no one server to be cut off from".to_owned()))?;
        let passes = reaches(host, server)?;
        let at = crate::agent::now();
        if self.faults == Faults::Made {
            host.unplug().map_err(Stop::NotInstalled)?;
        }
        let (fault, target) = (format!("cut off from the store{}", self.cut_by()), player.name.clone());
        let (host, recorder) = (host.clone(), self.recorder.clone());
        // Whoever waits for nothing to arrive takes his time, and the story goes on meanwhile.
        self.prove(async move {
            let looked = blocking(move || if reaches(&host, server)? { Err(no_cut()) } else { Ok(()) }).await;
            let done = if passes { looked } else { Err(nothing_to_cut()) };
            let what = What::Fault { fault, target, phase: Phase::Begin, installed: done.is_ok() };
            recorder.add(Event { at, by: "lab".to_owned(), what });
            done
        });
        Ok(())
    }

    /// Looks whether a fault was made, while the story goes on.
    fn prove(&self, looks: impl Future<Output = Result<(), Stop>> + Send + 'static) {
        let doubts = self.doubts.clone();
        let looks = tokio::spawn(async move {
            let looked = looks.await;
            if let Err(stop) = &looked {
                let _ = doubts.send(stop.clone()); // nobody listens when the scenario is over
            }
            looked
        });
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner).push(looks);
    }

    /// Whether each fault that was made was seen to be there. A scenario is judged after that alone.
    ///
    /// # Errors
    /// What was not there.
    pub(crate) async fn proven(&self) -> Result<(), Stop> {
        let proofs = std::mem::take(&mut *self.proofs.lock().unwrap_or_else(PoisonError::into_inner));
        for proof in proofs {
            proof.await.unwrap_or_else(|error| Err(Stop::Failed(panicked(error))))?;
        }
        Ok(())
    }

    /// What networks are cut by, as a remark to a fault.
    fn cut_by(&self) -> &'static str {
        if self.lan.is_some() { ", by network namespaces" } else { ", by relays" }
    }

    /// Changes the weather between a player and the store.
    pub(crate) fn weather_to_store(&self, player: &Player, weather: Weather) -> Result<(), Stop> {
        let network = player.to_store.as_ref().map(|way| &way.network);
        let network = network.ok_or_else(|| Stop::NotInstalled("there is no network before this store".to_owned()))?;
        self.weather(network, &format!("{} to store", player.name), weather);
        Ok(())
    }

    /// Changes the weather between a player and the resource.
    pub(crate) fn weather_to_resource(&self, player: &Player, weather: Weather) -> Result<(), Stop> {
        let network = player.to_resource.as_ref();
        let network =
            network.ok_or_else(|| Stop::NotInstalled("there is no network before the resource".to_owned()))?;
        self.weather(network, &format!("{} to resource", player.name), weather);
        Ok(())
    }

    fn weather(&self, network: &Network, target: &str, weather: Weather) {
        if self.faults == Faults::Made {
            network.set(weather);
        }
        let at = crate::agent::now();
        let (fault, target) = (format!("network: {weather:?}"), target.to_owned());
        if weather == Weather::Fair {
            return self.recorder.tell("lab", What::Fault { fault, target, phase: Phase::End, installed: true });
        }
        let (witness, recorder) = (network.witness(), self.recorder.clone());
        self.prove(async move {
            let installed = witness.sees(weather).await?;
            let missing = format!("{fault}, {target}");
            let what = What::Fault { fault, target, phase: Phase::Begin, installed };
            recorder.add(Event { at, by: "lab".to_owned(), what });
            if installed { Ok(()) } else { Err(Stop::Ineffective(missing)) }
        });
    }

    /// A client of the laboratory's own, to look into the store with.
    pub(crate) async fn observer(&self) -> Result<Observer, Stop> {
        let store = registry::open_store(&self.store.url(), Namespace::default(), BootClock::shared()).await;
        Ok(Observer(store.map_err(|error| Stop::Failed(error.to_string()))?))
    }

    /// Notes that the store is now made to forget a grant on purpose. Before that is done: the next one may have the lock
    /// before whoever did it hears of it.
    pub(crate) fn freed(&self, grant: &str, why: &str) {
        self.recorder.tell("lab", What::Freed { grant: grant.to_owned(), why: why.to_owned() });
    }

    /// A remark in the history.
    pub(crate) fn note(&self, text: &str) {
        self.recorder.tell("lab", What::Note { text: text.to_owned() });
    }

    /// What the store's servers said.
    pub(crate) fn logs(&self) -> Vec<(String, String)> {
        self.store.logs()
    }

    /// What has been recorded so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.recorder.events()
    }

    /// Waits until the history has an event that `wanted` accepts.
    pub(crate) async fn until(&self, what: &str, mut wanted: impl FnMut(&Event) -> bool) -> Result<(), Stop> {
        self.until_all(what, |events| events.iter().any(&mut wanted)).await
    }

    /// The same of all its events so far.
    pub(crate) async fn until_all(&self, what: &str, mut enough: impl FnMut(&[Event]) -> bool) -> Result<(), Stop> {
        let deadline = crate::agent::now() + u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
        while !enough(&self.recorder.events()) {
            if crate::agent::now() > deadline {
                return Err(Stop::Failed(format!("not within {PATIENCE:?}: {what}")));
            }
            pause(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Waits until a renewal of this grant was answered.
    pub(crate) async fn renewed(&self, grant: &str) -> Result<(), Stop> {
        self.renewals(grant, 1).await
    }

    /// Waits until so many renewals of this grant were answered.
    pub(crate) async fn renewals(&self, grant: &str, count: usize) -> Result<(), Stop> {
        let is_one = |event: &Event| matches!(&event.what, What::Invoke { verb: Verb::Renew, grant: renewed, .. } if renewed == grant);
        self.until_all("renewals", |events| events.iter().filter(|event| is_one(event)).count() >= count).await
    }
}

/// What the kernel cuts, where it lets us and the store's servers can be put on hosts of their own.
fn lan(subject: Subject, cut_by: &CutBy, recorder: &Recorder) -> Result<Option<Lan>, Stop> {
    let (lan, said) = match cut_by {
        CutBy::Nothing { .. } => return Err(Stop::NotInstalled(cut_by.said())),
        CutBy::Namespaces(_) if !stand::on_hosts(subject.store) => {
            let title = subject.store.title();
            (None, format!("the servers of {title} are not put on hosts of their own; cut by relays instead"))
        }
        CutBy::Namespaces(within) => (Some(Lan::new(*within).map_err(Stop::NotInstalled)?), cut_by.said()),
        CutBy::Relays { .. } => (None, cut_by.said()),
    };
    recorder.tell("lab", What::Note { text: said });
    Ok(lan)
}

/// Whether a host reaches a server.
pub(crate) fn reaches(host: &Host, server: SocketAddr) -> Result<bool, Stop> {
    host.reaches(server).map_err(|error| Stop::NotInstalled(format!("nobody can look from a host: {error}")))
}

pub(crate) fn nothing_to_cut() -> Stop {
    Stop::NotInstalled("nothing passed there before the cut".to_owned())
}

pub(crate) fn no_cut() -> Stop {
    Stop::Ineffective("connections are made across the cut".to_owned())
}

/// A look into the store from beside.
#[derive(Debug)]
pub(crate) struct Observer(Arc<dyn Store>);

impl Observer {
    /// Whether the store shows this grant as the lock's holder, at some instant before `within` is over.
    pub(crate) async fn sees(&self, grant: &str, within: Duration) -> Result<bool, Stop> {
        let begin = crate::agent::now();
        while u128::from(crate::agent::now() - begin) < within.as_nanos() {
            if self.holder().await.map_err(|error| Stop::Failed(error.to_string()))?.as_deref() == Some(grant) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn holder(&self) -> Result<Option<String>, fencepost::Error> {
        let states = self.0.inspect(Some(&LockName::new(LOCK)?)).await?;
        let labels = states.into_iter().flat_map(|state| state.holders).flat_map(|holder| holder.claimant.labels);
        Ok(labels.into_iter().find(|(key, _)| key == LABEL).map(|(_, grant)| grant))
    }
}

/// Waits on the clock that leases are read on.
pub(crate) async fn pause(span: Duration) {
    clock::sleep(&BootClock, span).await;
}

/// Runs what blocks on a thread of its own. A panic in a driver is a failure of the laboratory, told in words.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Stop> + Send + 'static,
) -> Result<T, Stop> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Stop::Failed(panicked(error))),
    }
}

/// What a task that panicked said.
pub(crate) fn panicked(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(said), _) => said.clone(),
            (None, Some(said)) => (*said).to_owned(),
            (None, None) => "a panic without words".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}
