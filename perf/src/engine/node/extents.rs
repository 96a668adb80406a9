//! Makes the extents of a job, and removes them.

use super::of_client;
use crate::failure::Failure;
use client::{Client, ClientError, Epoch, ExtentId, NewExtent, ShardIndex};
use log_format::ids::shard_of;
use tokio::task::JoinSet;

/// Requests in flight.
const AT_ONCE: usize = 256;

/// Makes this many, the same number on each shard.
pub(super) async fn create(client: &Client, count: usize) -> Result<Vec<ExtentId>, Failure> {
    let shards = client.node().shard_count;
    let news: Vec<NewExtent> = (0..count).map(|index| new_on(ShardIndex(index as u32 % shards), shards)).collect();
    for some in news.chunks(AT_ONCE) {
        let mut tasks = JoinSet::new();
        for new in some {
            let (client, new) = (client.clone(), *new);
            tasks.spawn(async move { client.create_extent(new).await.map(drop) });
        }
        join(tasks, "create an extent").await?;
    }
    Ok(news.into_iter().map(|new| new.extent).collect())
}

/// A new extent with a random id that is on this shard.
fn new_on(shard: ShardIndex, shards: u32) -> NewExtent {
    loop {
        let new = NewExtent::new();
        if shard_of(new.group, shards) == shard {
            return new;
        }
    }
}

/// Removes them.
pub(super) async fn delete(client: &Client, extents: &[ExtentId]) -> Result<(), Failure> {
    for some in extents.chunks(AT_ONCE) {
        let mut tasks = JoinSet::new();
        for extent in some {
            let (client, extent) = (client.clone(), *extent);
            tasks.spawn(async move { client.delete(extent, Epoch(0)).await.map(drop) });
        }
        join(tasks, "delete an extent").await?;
    }
    Ok(())
}

async fn join(tasks: JoinSet<Result<(), ClientError>>, what: &str) -> Result<(), Failure> {
    tasks.join_all().await.into_iter().collect::<Result<(), _>>().map_err(|error| of_client(what, &error))
}
