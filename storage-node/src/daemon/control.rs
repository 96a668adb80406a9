//! The control thread's life: start, serve, drain, end.
//!
//! One loop reacts to signals, to what the shards report and to a shard that ends. A signal is seen at once, even while shards are silent.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{join_all, select_all};
use storage_node::status::ShardCommand;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use super::admin::{self, Admin};
use super::config::Config;
use super::health::{self, ShardHealth};
use super::refusal::Refusal;
use super::report::{About, VERSION};
use super::shards::{self, ShardThread, Shards};
use super::systemd::ServiceManager;

/// How often the shards are asked while the node starts, so that it is ready as soon as they are.
const ASK_STARTING: Duration = Duration::from_millis(10);
/// How often they are asked afterwards.
const ASK_SERVING: Duration = Duration::from_secs(1);

/// Where the node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Shards recover, or the listener does not stand yet.
    Starting,
    /// Clients can connect.
    Serving { listen: SocketAddr },
    /// New work is refused, what is in flight is finished.
    Draining { listen: Option<SocketAddr> },
}

impl Stage {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Serving { .. } => "serving",
            Stage::Draining { .. } => "draining",
        }
    }

    /// Where clients connect, if they can.
    pub(crate) fn listen(self) -> Option<SocketAddr> {
        match self {
            Stage::Starting => None,
            Stage::Serving { listen } => Some(listen),
            Stage::Draining { listen } => listen,
        }
    }
}

/// Runs the node from start to end.
///
/// # Errors
/// Why it could not start, or had to end without having been asked to.
pub(crate) async fn serve(config: &Config) -> Result<(), Refusal> {
    let mut signals = Signals::install()?;
    let listener = bind_admin(config.node.admin).await?;
    let admin_address = listener.local_addr().map_err(|error| Refusal::new("admin endpoint", error, "start again"))?;
    let Shards { node, incarnation, medium, commands, threads, listening, directory: _held } = shards::start(config)?;
    tracing::info!(
        version = VERSION,
        node = %node,
        durability = %medium.durability,
        device = %medium.device,
        alignment = medium.alignment,
        shards = commands.len(),
        data_dir = %config.node.data_dir.display(),
        admin = %admin_address,
        "roostd starts"
    );
    let ready_tail = format!(
        "admin={admin_address} shards={} durability={} device={} alignment={}",
        commands.len(),
        one_word(&medium.durability),
        one_word(&medium.device),
        medium.alignment
    );
    let (stage, stage_seen) = watch::channel(Stage::Starting);
    let about = About {
        node,
        incarnation,
        medium,
        admin: admin_address,
        config: config.clone(),
        started: Instant::now(),
        started_at: SystemTime::now(),
    };
    tokio::spawn(admin::serve(listener, Arc::new(Admin { about, shards: commands.clone(), stage: stage_seen.clone() })));
    let health = observe(commands.clone(), stage_seen);
    let manager = ServiceManager::from_environment();
    let mut running =
        Running { manager, health, stage, commands, threads, ready_tail, told: String::new(), alive_at: Instant::now() };
    let ended_early = running.until_end(&mut signals, listening).await;
    let drained = running.drain(&mut signals, config.node.shutdown_timeout.0).await;
    match (ended_early, drained) {
        (_, Err(refusal)) => Err(refusal),
        (None, Ok(())) => {
            tracing::info!("drained");
            Ok(())
        }
        (Some(index), Ok(())) => {
            Err(Refusal::new(format!("shard {index}"), "ended without having been asked to", "see the log lines above"))
        }
    }
}

async fn bind_admin(address: SocketAddr) -> Result<TcpListener, Refusal> {
    TcpListener::bind(address).await.map_err(|error| {
        Refusal::new(format!("admin endpoint {address}"), error, "stop what uses that address, or give another one with --admin")
    })
}

/// Asks the shards again and again, in a task of its own: a silent shard must not keep the loop from seeing a signal.
fn observe(commands: Vec<mpsc::Sender<ShardCommand>>, stage: watch::Receiver<Stage>) -> watch::Receiver<Vec<ShardHealth>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        while sender.send(health::ask(&commands).await).is_ok() {
            let starting = *stage.borrow() == Stage::Starting;
            tokio::time::sleep(if starting { ASK_STARTING } else { ASK_SERVING }).await;
        }
    });
    receiver
}

struct Running {
    manager: ServiceManager,
    health: watch::Receiver<Vec<ShardHealth>>,
    stage: watch::Sender<Stage>,
    commands: Vec<mpsc::Sender<ShardCommand>>,
    threads: Vec<ShardThread<Result<(), Refusal>>>,
    /// The ready line but for the address for clients.
    ready_tail: String,
    /// The last status that the service manager was told.
    told: String,
    /// When it was last given a sign of life.
    alive_at: Instant,
}

impl Running {
    /// Starts and serves until a signal asks for the end, or a shard ends on its own: then gives its index.
    async fn until_end(&mut self, signals: &mut Signals, listening: oneshot::Receiver<SocketAddr>) -> Option<usize> {
        let mut listening = Some(listening);
        let mut listen = None;
        loop {
            let ended = select_all(self.commands.iter().map(|shard| Box::pin(shard.closed())));
            tokio::select! {
                biased;
                name = signals.next() => {
                    tracing::info!(signal = name, "draining");
                    return None;
                }
                ((), index, _) = ended => return Some(index),
                // Without an address the shard that should listen has ended, which the branch above sees.
                address = received(&mut listening) => {
                    listening = None;
                    listen = address;
                }
                changed = self.health.changed() => changed.expect("the observing task lives as long as the runtime"),
            }
            let health = self.health.borrow().clone();
            if health.is_empty() {
                continue;
            }
            let starting = *self.stage.borrow() == Stage::Starting;
            if let (true, Some(listen), true) = (starting, listen, health::all_recovered(&health)) {
                self.announce(listen);
            }
            self.tell(&health);
        }
    }

    /// From here on the node serves: the one line on stdout that scripts wait for, and READY to the service manager.
    fn announce(&self, listen: SocketAddr) {
        self.stage.send_replace(Stage::Serving { listen });
        let mut stdout = std::io::stdout();
        // That nobody reads it is no reason not to serve.
        let _ = writeln!(stdout, "roostd ready listen={listen} {}", self.ready_tail).and_then(|()| stdout.flush());
        tracing::info!(%listen, "serving");
        self.manager.ready(&format!("serving on {listen}"));
    }

    /// Keeps the log and the service manager up to date; the watchdog gets its sign of life only while all shards answer.
    fn tell(&mut self, health: &[ShardHealth]) {
        let reasons = health::not_ready(health);
        let status = if reasons.is_empty() { format!("serving, {} shards", health.len()) } else { reasons.join("; ") };
        if status != self.told {
            if *self.stage.borrow() != Stage::Starting && !reasons.is_empty() {
                tracing::warn!("not ready: {status}");
            }
            self.manager.status(&status);
            self.told = status;
        }
        let due = self.manager.watchdog().is_some_and(|period| self.alive_at.elapsed() >= period / 3);
        if due && health::not_live(health).is_empty() {
            self.manager.alive();
            self.alive_at = Instant::now();
        }
    }

    /// Ends the shards and their threads within `bound`; a second signal ends the process at once.
    async fn drain(&mut self, signals: &mut Signals, bound: Duration) -> Result<(), Refusal> {
        self.stage.send_modify(|stage| *stage = Stage::Draining { listen: stage.listen() });
        self.manager.stopping();
        let threads = std::mem::take(&mut self.threads);
        let finish = async {
            join_all(self.commands.iter().map(drain_one)).await;
            join_threads(threads).await
        };
        tokio::select! {
            biased;
            name = signals.next() => {
                Err(Refusal::new("shutdown", format!("cut short by a second signal, {name}"), "what was acked is safe: the next start recovers it"))
            }
            outcome = tokio::time::timeout(bound, finish) => outcome.unwrap_or_else(|_| {
                Err(Refusal::new(
                    "shutdown",
                    format!("the shards did not finish within {} s", bound.as_secs_f64()),
                    "what was acked is safe: the next start recovers it; raise node.shutdown_timeout if the device is slow",
                ))
            }),
        }
    }
}

async fn received(listening: &mut Option<oneshot::Receiver<SocketAddr>>) -> Option<SocketAddr> {
    match listening {
        Some(receiver) => receiver.await.ok(),
        None => std::future::pending().await,
    }
}

/// Asks a shard to end and waits until it has. One that is gone already needs no asking.
async fn drain_one(shard: &mpsc::Sender<ShardCommand>) {
    let (answer, done) = oneshot::channel();
    if shard.send(ShardCommand::Drain(answer)).await.is_ok() {
        // An error means that the shard ended without an answer; its thread says why.
        let _ = done.await;
    }
}

/// Waits for threads to end; gives the first failure.
async fn join_threads(threads: Vec<ShardThread<Result<(), Refusal>>>) -> Result<(), Refusal> {
    let mut outcome = Ok(());
    for thread in threads {
        // A thread can't be awaited, and joining it would block the signals.
        while !thread.is_finished() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        outcome = outcome.and(thread.join());
    }
    outcome
}

/// A value as one word of the ready line.
fn one_word(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(",")
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> Result<Self, Refusal> {
        let install = |kind| signal(kind).map_err(|error| Refusal::new("signal handlers", error, "start again"));
        Ok(Self { terminate: install(SignalKind::terminate())?, interrupt: install(SignalKind::interrupt())? })
    }

    /// The next one's name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests;
