//! The first steps with a node: make an extent, append, read back, follow the tail, commit to two extents at once.
//!
//! `cargo run --example first_steps -- 127.0.0.1:7440`

use roost_client::{Client, ClientOptions, Commit, Epoch, GroupId, NewExtent, ReaderOptions, Seq};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), roost_client::ClientError> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7440".to_owned());
    let client = Client::connect(&address, ClientOptions::default()).await?;
    println!("connected to {} with {} shards", client.node().software, client.node().shard_count);

    let extent = client.create_extent(NewExtent::new()).await?.extent;
    println!("extent {extent}");

    // Many records in flight; each ack says that its record is on the device.
    let mut appender = client.appender(extent).await?;
    let mut acks = Vec::new();
    for number in 1..=1_000 {
        acks.push(appender.send(format!("record {number}")).await?);
    }
    for ack in acks {
        ack.await?;
    }

    // A reader at the tail sees each record once, right after its ack. It ends when the extent is sealed.
    let mut reader = client.reader(extent, Seq(1), ReaderOptions::default());
    let follower = tokio::spawn(async move {
        let mut count = 0;
        while let Some(record) = reader.next().await? {
            count += 1;
            assert_eq!(record.data, format!("record {}", record.seq));
        }
        Ok::<_, roost_client::ClientError>(count)
    });
    for number in 1_001..=1_010 {
        client.append(extent, format!("record {number}")).await?;
    }
    client.seal(extent, Epoch(0)).await?;
    println!("the follower has seen {} records", follower.await.expect("it does not panic")?);

    // Two extents of one group, changed together.
    let messages = NewExtent::new();
    let group = GroupId::from(messages.extent);
    let leases = NewExtent::new().in_group(group);
    for new in [messages, leases] {
        client.create_extent(new).await?;
    }
    let commit =
        Commit::new(group).append(messages.extent, Some(Seq(1)), ["a message"]).append(leases.extent, None, ["its lease"]);
    println!("committed as op {}", client.commit(&commit).await?.op);
    for id in [extent, messages.extent, leases.extent] {
        client.delete(id, Epoch(0)).await?;
    }
    Ok(())
}
