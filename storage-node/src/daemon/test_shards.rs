//! Shards for the tests of the control thread: they answer with what they are told to, or not at all.

use log_format::ids::{BlockNumber, SegmentId, ShardIndex};
use storage_node::status::{Counters, Phase, ShardCommand, ShardStatus};
use tokio::sync::mpsc;

/// How a shard behaves.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// It reports this phase.
    Answers(Phase),
    /// It takes commands and never answers.
    Hangs,
    /// Its thread is gone.
    Gone,
}

/// A shard, as a task of the test's runtime.
pub(crate) fn shard(index: u32, behaviour: Behaviour) -> mpsc::Sender<ShardCommand> {
    let (sender, mut receiver) = mpsc::channel(4);
    match behaviour {
        Behaviour::Gone => {}
        Behaviour::Hangs => drop(tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some(command) = receiver.recv().await {
                unanswered.push(command);
            }
        })),
        Behaviour::Answers(phase) => drop(tokio::spawn(async move {
            while let Some(command) = receiver.recv().await {
                match command {
                    ShardCommand::Status(answer) => drop(answer.send(report(index, phase.clone()))),
                    ShardCommand::Drain(answer) => {
                        let _ = answer.send(());
                        return;
                    }
                }
            }
        })),
    }
    sender
}

/// A report with a different number in each place.
pub(crate) fn report(shard: u32, phase: Phase) -> ShardStatus {
    let mut counters =
        Counters { records_appended: 1001, payload_bytes_appended: 1002, device_errors: 1003, ..Counters::default() };
    counters.refusals[2] = 5;
    counters.refusals[31] = 6;
    counters.commit_ns.observe(60_000);
    counters.commit_ns.observe(1_500_000);
    counters.commit_ns.observe(20_000_000_000);
    ShardStatus {
        shard: ShardIndex(shard),
        phase,
        open_segment: SegmentId(11),
        segments: 12,
        segments_prepared: 13,
        last_block: BlockNumber(14),
        durable_block: BlockNumber(15),
        blocks_in_flight: 16,
        extents_open: 17,
        extents_sealed: 18,
        records_live: 19,
        payload_bytes_held: 20,
        connections: 21,
        receive_buffer_bytes: 22,
        tail_cache_bytes: 23,
        index_bytes: 24,
        recovery_ns: 1_250_000_000,
        recovery_blocks: 26,
        counters,
    }
}
