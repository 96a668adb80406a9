//! Starts the shard threads.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use log_format::ids::{BlockNumber, Incarnation, NodeId, SegmentId, ShardIndex};
use log_format::manifest::Manifest;
use node_io::glommio::{GlommioRuntime, ShardThreadSettings, StartRefusal, preflight, spawn_shard_thread};
use node_io::{Listener, Runtime};
use storage_node::server::{Handover, NodeInfo, accept};
use storage_node::status::{Counters, Phase, ShardCommand, ShardStatus};
use storage_node::{DataDir, Server, Shard, ShardOptions};
use tokio::sync::{mpsc, oneshot};

use super::config::Config;
use super::refusal::Refusal;

pub(crate) use node_io::glommio::ShardThread;

/// The running shards, as the control thread sees them.
pub(crate) struct Shards {
    /// Who this node is.
    pub(crate) node: NodeId,
    /// Raised whenever its data is known to be new or replaced.
    pub(crate) incarnation: Incarnation,
    /// What the device can do.
    pub(crate) medium: Medium,
    /// A channel to each shard; closed when its thread has ended.
    pub(crate) commands: Vec<mpsc::Sender<ShardCommand>>,
    /// The threads, in the same order. One that ends without having been drained has failed.
    pub(crate) threads: Vec<ShardThread<Result<(), Refusal>>>,
    /// Where clients can connect; comes when the listener stands.
    pub(crate) listening: oneshot::Receiver<SocketAddr>,
    /// Held until the node ends.
    pub(crate) directory: Directory,
}

/// The device below the data directory, for people.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    pub(crate) durability: String,
    pub(crate) device: String,
    pub(crate) alignment: u32,
}

/// Connections that may wait to be taken over by a shard.
const HANDOVERS: usize = 64;
/// Commands that may wait for a shard.
const COMMANDS: usize = 16;

type Directory = DataDir<GlommioRuntime>;

/// Starts the threads. Gives them back as soon as they run; the shards recover on their own.
///
/// # Errors
/// Why the node can't start, with the remedy.
pub(crate) fn start(config: &Config) -> Result<Shards, Refusal> {
    let capabilities = preflight(&config.node.data_dir).map_err(|refusal| refused(&refusal))?;
    let medium = Medium {
        durability: capabilities.durability.to_owned(),
        device: capabilities.device,
        alignment: capabilities.offset_alignment,
    };
    let directory = open_directory(config)?;
    let manifest = directory.manifest;
    let info = NodeInfo {
        node: manifest.node,
        incarnation: manifest.incarnation,
        durability: medium.durability.clone(),
        software: format!("roostd {}", super::report::VERSION),
    };
    let (listening_sender, listening) = oneshot::channel();
    let (handover_senders, handovers): (Vec<_>, Vec<_>) =
        (0..manifest.shard_count).map(|_| mpsc::channel::<Handover<GlommioRuntime>>(HANDOVERS)).unzip();
    // The first shard's thread accepts for all.
    let mut acceptor = Some(Acceptor { address: config.node.listen, shards: handover_senders, listening: listening_sender });
    let mut commands = Vec::new();
    let mut threads = Vec::new();
    let placement = config.placement(manifest.shard_count);
    for ((shard, cpu), handovers) in placement.into_iter().enumerate().zip(handovers) {
        let (sender, receiver) = mpsc::channel(COMMANDS);
        let settings = ShardThreadSettings::for_shards(manifest.shard_count as usize, cpu.map(|cpu| cpu as usize));
        let index = ShardIndex(shard as u32);
        let life = ShardLife {
            options: options(config, &manifest, index),
            path: directory.shard_path(index),
            info: info.clone(),
            commands: receiver,
            handovers,
            acceptor: acceptor.take(),
        };
        let thread = spawn_shard_thread(&format!("shard-{shard}"), settings, move |runtime| life.run(runtime))
            .map_err(|refusal| refused(&refusal))?;
        if let Some(failure) = &thread.pinning_failure {
            tracing::warn!(shard, "{failure}");
        }
        commands.push(sender);
        threads.push(thread);
    }
    let (node, incarnation) = (manifest.node, manifest.incarnation);
    Ok(Shards { node, incarnation, medium, commands, threads, listening, directory })
}

fn open_directory(config: &Config) -> Result<Directory, Refusal> {
    let (path, segment_size) = (config.node.data_dir.clone(), config.log.segment_size.0);
    let (wanted, default) = (config.node.shards, config.default_shards());
    let settings = ShardThreadSettings::for_shards(1, None);
    let thread = spawn_shard_thread("data-dir", settings, move |runtime| async move {
        let wanted = (wanted > 0).then_some(wanted);
        Directory::open(&runtime, &path, wanted, default, segment_size).await
    });
    let opened = thread.map_err(|refusal| refused(&refusal))?.join();
    opened.map_err(|error| Refusal::new(format!("data directory {}", config.node.data_dir.display()), &error, error.remedy()))
}

fn options(config: &Config, manifest: &Manifest, shard: ShardIndex) -> ShardOptions {
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    ShardOptions {
        node: manifest.node,
        incarnation: manifest.incarnation,
        shard,
        shard_count: manifest.shard_count,
        segment_size: config.log.segment_size.0,
        prepared_segments: config.log.prepared_segments as usize,
        block_size: size(config.log.block_size.0),
        commit_depth: config.log.commit_depth as usize,
        record_size_max: size(config.log.record_size_max.0),
        tail_cache_bytes: size(config.memory.tail_cache.0),
        page_cache_bytes: size(config.memory.page_cache.0),
        receive_budget_bytes: size(config.memory.receive_budget.0),
        connection_in_flight: config.memory.connection_in_flight as usize,
    }
}

fn refused(refusal: &StartRefusal) -> Refusal {
    Refusal::new("start refused", refusal, refusal.remedy())
}

/// Accepts connections for all shards.
struct Acceptor {
    address: SocketAddr,
    shards: Vec<mpsc::Sender<Handover<GlommioRuntime>>>,
    listening: oneshot::Sender<SocketAddr>,
}

/// What a shard's thread needs for its life.
struct ShardLife {
    options: ShardOptions,
    path: PathBuf,
    info: NodeInfo,
    commands: mpsc::Receiver<ShardCommand>,
    handovers: mpsc::Receiver<Handover<GlommioRuntime>>,
    acceptor: Option<Acceptor>,
}

impl ShardLife {
    /// Opens the shard, serves until it is told to drain, drains. Reports at any time.
    async fn run(mut self, runtime: GlommioRuntime) -> Result<(), Refusal> {
        let index = self.options.shard;
        let (opened_runtime, path, options) = (runtime.clone(), self.path.clone(), self.options.clone());
        let mut opening = runtime.spawn(async move { Shard::open(opened_runtime, &path, options).await });
        let shard = loop {
            tokio::select! {
                biased;
                opened = &mut opening => break opened,
                command = self.commands.recv() => match command {
                    Some(ShardCommand::Status(answer)) => drop(answer.send(recovering(index))),
                    Some(ShardCommand::Drain(answer)) => {
                        // Nothing was promised yet: a start that is cut short is like a crash.
                        let _ = answer.send(());
                        return Ok(());
                    }
                    None => return Ok(()),
                },
            }
        };
        let shard = shard.map_err(|error| {
            Refusal::new(format!("shard {index}"), error, "see docs/operations.md, \"Disaster\"; nothing of the log was changed")
        })?;
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.start(&runtime).await?;
        }
        let server = Server::new(shard.clone(), self.info);
        runtime.spawn_detached(Box::pin(server.clone().serve(self.handovers)));
        while let Some(command) = self.commands.recv().await {
            match command {
                // Who asked may have lost patience.
                ShardCommand::Status(answer) => drop(answer.send(shard.status())),
                ShardCommand::Drain(answer) => {
                    drain(&runtime, &server, &shard, &mut self.commands).await;
                    let _ = answer.send(());
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Drains, and reports meanwhile.
async fn drain(
    runtime: &GlommioRuntime,
    server: &Rc<Server<GlommioRuntime>>,
    shard: &Shard<GlommioRuntime>,
    commands: &mut mpsc::Receiver<ShardCommand>,
) {
    let server = server.clone();
    let mut draining = runtime.spawn(async move { server.drain().await });
    loop {
        tokio::select! {
            biased;
            () = &mut draining => return,
            Some(command) = commands.recv() => match command {
                ShardCommand::Status(answer) => drop(answer.send(shard.status())),
                ShardCommand::Drain(answer) => drop(answer.send(())),
            },
        }
    }
}

impl Acceptor {
    async fn start(self, runtime: &GlommioRuntime) -> Result<(), Refusal> {
        let listener = runtime.listen(self.address).await.map_err(|error| {
            let remedy = "stop what uses that address, or give another one with --listen";
            Refusal::new(format!("client endpoint {}", self.address), error, remedy)
        })?;
        // The control thread may have ended.
        let _ = self.listening.send(listener.local_address());
        runtime.spawn_detached(Box::pin(accept(runtime.clone(), listener, self.shards)));
        Ok(())
    }
}

/// The report of a shard that reads its log back.
fn recovering(shard: ShardIndex) -> ShardStatus {
    ShardStatus {
        shard,
        phase: Phase::Recovering,
        open_segment: SegmentId(0),
        segments: 0,
        segments_prepared: 0,
        last_block: BlockNumber(0),
        durable_block: BlockNumber(0),
        blocks_in_flight: 0,
        extents_open: 0,
        extents_sealed: 0,
        records_live: 0,
        payload_bytes_held: 0,
        connections: 0,
        receive_buffer_bytes: 0,
        tail_cache_bytes: 0,
        index_bytes: 0,
        recovery_ns: 0,
        recovery_blocks: 0,
        counters: Counters::default(),
    }
}

/// A thread that ends at once.
#[cfg(test)]
pub(crate) fn thread_that_ends(result: Result<(), Refusal>) -> ShardThread<Result<(), Refusal>> {
    spawn_shard_thread("test", ShardThreadSettings::for_shards(1, None), |_runtime| std::future::ready(result))
        .expect("io_uring works where tests run")
}
