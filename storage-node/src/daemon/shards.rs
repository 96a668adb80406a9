//! Starts the shard threads.

use std::net::SocketAddr;

use log_format::ids::{BlockNumber, Incarnation, NodeId, SegmentId, ShardIndex};
use node_io::glommio::{GlommioRuntime, ShardThreadSettings, StartRefusal, preflight, spawn_shard_thread};
use storage_node::status::{Counters, Phase, ShardCommand, ShardStatus};
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
}

/// The device below the data directory, for people.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    pub(crate) durability: String,
    pub(crate) device: String,
    pub(crate) alignment: u32,
}

/// Commands that may wait for a shard.
const COMMANDS: usize = 16;

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
    let (listening_sender, listening) = oneshot::channel();
    let _ = listening_sender.send(config.node.listen);
    let placement = config.placement();
    let count = placement.len();
    let mut commands = Vec::new();
    let mut threads = Vec::new();
    for (shard, cpu) in placement.into_iter().enumerate() {
        let (sender, receiver) = mpsc::channel(COMMANDS);
        let settings = ShardThreadSettings::for_shards(count, cpu.map(|cpu| cpu as usize));
        let thread = spawn_shard_thread(&format!("shard-{shard}"), settings, move |runtime| run(runtime, shard as u32, receiver))
            .map_err(|refusal| refused(&refusal))?;
        if let Some(failure) = &thread.pinning_failure {
            tracing::warn!(shard, "{failure}");
        }
        commands.push(sender);
        threads.push(thread);
    }
    Ok(Shards { node: NodeId::default(), incarnation: Incarnation::default(), medium, commands, threads, listening })
}

fn refused(refusal: &StartRefusal) -> Refusal {
    Refusal::new("start refused", refusal, refusal.remedy())
}

/// A shard's life, on its own thread.
async fn run(_runtime: GlommioRuntime, shard: u32, mut commands: mpsc::Receiver<ShardCommand>) -> Result<(), Refusal> {
    while let Some(command) = commands.recv().await {
        match command {
            ShardCommand::Status(answer) => {
                // Who asked may have lost patience.
                let _ = answer.send(idle(shard));
            }
            ShardCommand::Drain(answer) => {
                let _ = answer.send(());
                break;
            }
        }
    }
    Ok(())
}

/// The report of a shard without anything in it.
fn idle(shard: u32) -> ShardStatus {
    ShardStatus {
        shard: ShardIndex(shard),
        phase: Phase::Serving,
        open_segment: SegmentId(1),
        segments: 1,
        segments_prepared: 2,
        last_block: BlockNumber(0),
        durable_block: BlockNumber(0),
        blocks_in_flight: 0,
        extents_open: 0,
        extents_sealed: 0,
        records_live: 0,
        payload_bytes_live: 0,
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
