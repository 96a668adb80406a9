//! Asks the shards how they are, and judges what the probes may say.
//!
//! A shard that does not answer within [`PATIENCE`] is taken for stuck: its executor runs nothing, so it serves nobody.

use std::time::Duration;

use futures_util::future::join_all;
use storage_node::status::{Phase, ShardCommand, ShardStatus};
use tokio::sync::{mpsc, oneshot};

/// How long a shard may take to report.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of a shard.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ShardHealth {
    /// It answered.
    Reported(Box<ShardStatus>),
    /// It did not answer in time.
    Silent,
    /// Its thread has ended.
    Ended,
}

/// Asks all shards at once; takes at most [`PATIENCE`].
pub(crate) async fn ask(shards: &[mpsc::Sender<ShardCommand>]) -> Vec<ShardHealth> {
    join_all(shards.iter().map(ask_one)).await
}

async fn ask_one(shard: &mpsc::Sender<ShardCommand>) -> ShardHealth {
    let (answer, report) = oneshot::channel();
    let exchange = async {
        shard.send(ShardCommand::Status(answer)).await.ok()?;
        report.await.ok()
    };
    match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(Some(status)) => ShardHealth::Reported(Box::new(status)),
        Ok(None) => ShardHealth::Ended,
        Err(_) => ShardHealth::Silent,
    }
}

/// Whether every shard has read its log back.
pub(crate) fn all_recovered(shards: &[ShardHealth]) -> bool {
    shards.iter().all(|shard| matches!(shard, ShardHealth::Reported(status) if status.phase != Phase::Recovering))
}

/// Why the process is stuck; empty if it is not.
pub(crate) fn not_live(shards: &[ShardHealth]) -> Vec<String> {
    reasons(shards, |health| match health {
        ShardHealth::Silent => Some(format!("does not answer within {} s", PATIENCE.as_secs())),
        // A shard that ended takes the process with it, or belongs to a drain: no reason to kill the process.
        ShardHealth::Ended | ShardHealth::Reported(_) => None,
    })
}

/// Why new work should go elsewhere; empty if all shards take it.
pub(crate) fn not_ready(shards: &[ShardHealth]) -> Vec<String> {
    reasons(shards, |health| match health {
        ShardHealth::Silent => Some(format!("does not answer within {} s", PATIENCE.as_secs())),
        ShardHealth::Ended => Some("has ended".to_owned()),
        ShardHealth::Reported(status) => match &status.phase {
            Phase::Serving => None,
            Phase::Recovering => Some("is recovering".to_owned()),
            Phase::Draining => Some("is draining".to_owned()),
            Phase::ReadOnly(why) => Some(format!("is read-only: {why}")),
        },
    })
}

fn reasons(shards: &[ShardHealth], why: impl Fn(&ShardHealth) -> Option<String>) -> Vec<String> {
    shards.iter().enumerate().filter_map(|(index, health)| why(health).map(|why| format!("shard {index} {why}"))).collect()
}
