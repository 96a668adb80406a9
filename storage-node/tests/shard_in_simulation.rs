//! The engine of one shard over the simulated disk: what goes in comes out, before and after crashes.

mod support;

use std::time::Duration;

use log_format::ids::{Epoch, ExtentId, ExtentKind, Seq};
use log_format::wire::Refusal;
use node_io::sim::Sim;
use storage_node::{Operation, ReadRequest};
use support::{append, create, open, payload, read, read_all, records};

#[test]
fn records_come_back_in_order_over_many_segments_and_a_restart() {
    let sim = Sim::new(1);
    let expected: Vec<Vec<u8>> = (0..3000).map(payload).collect();
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime).await;
        create(&shard, 7).await;
        for chunk in expected.chunks(10) {
            append(&shard, 7, chunk).await.expect("appended");
        }
        assert!(shard.status().segments > 3, "{} segments", shard.status().segments);
        assert_eq!(read_all(&shard, 7).await, expected);
        shard.drain().await;
    });
    sim.kill(0);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime).await;
        assert_eq!(read_all(&shard, 7).await, expected);
        assert_eq!(append(&shard, 7, &[payload(1)]).await, Ok(Seq(3001)));
    });
}

#[test]
fn a_commit_needs_its_group_and_is_checked_as_a_whole() {
    let sim = Sim::new(2);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime).await;
        create(&shard, 1).await;
        let two = shard.create(ExtentId(2), ExtentId(1).into(), ExtentKind::Sequence, Epoch(0)).await.expect("joins group 1");
        shard.durable(two.gate).await.expect("durable");
        create(&shard, 3).await;
        let payloads = [payload(5)];
        let append_to =
            |extent, expected| Operation::Append { extent: ExtentId(extent), expected, records: records(&payloads).into_iter() };
        let group = ExtentId(1).into();
        let wrong_group = shard.commit(group, Epoch(0), &[append_to(1, None), append_to(3, None)]).await;
        assert!(matches!(wrong_group, Err(Refusal::BadRequest { .. })), "{wrong_group:?}");
        let mismatch = shard.commit(group, Epoch(0), &[append_to(1, None), append_to(1, Some(Seq(1)))]).await;
        assert_eq!(mismatch.map(|_| ()), Err(Refusal::SeqMismatch { next: Seq(2) }), "the first append of the commit counts");
        assert!(read_all(&shard, 1).await.is_empty(), "a refused commit leaves nothing");
        let done =
            shard.commit(group, Epoch(0), &[append_to(1, Some(Seq(1))), append_to(2, None), append_to(1, Some(Seq(2)))]).await;
        let done = done.expect("committed");
        shard.durable(done.gate).await.expect("durable");
        assert_eq!(done.value.iter().map(|done| done.first_seq.0).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!(read_all(&shard, 1).await.len(), 2);
        assert_eq!(read_all(&shard, 2).await.len(), 1);
    });
}

#[test]
fn seal_trim_and_delete_hold_after_a_crash() {
    let sim = Sim::new(3);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime).await;
        for extent in [1, 2, 3] {
            create(&shard, extent).await;
            append(&shard, extent, &[payload(1), payload(2), payload(3)]).await.expect("appended");
        }
        let sealed = shard.seal(ExtentId(1), Epoch(0)).await.expect("sealed");
        assert_eq!(sealed.value.1, Seq(3));
        let trimmed = shard.trim(ExtentId(2), Epoch(0), Seq(2)).await.expect("trimmed");
        let deleted = shard.delete(ExtentId(3), Epoch(0)).await.expect("deleted");
        for gate in [sealed.gate, trimmed.gate, deleted.gate] {
            shard.durable(gate).await.expect("durable");
        }
    });
    sim.crash(0);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime).await;
        assert_eq!(append(&shard, 1, &[payload(4)]).await, Err(Refusal::Sealed { last: Seq(3) }));
        assert_eq!(read(&shard, 2, 1).await, Err(Refusal::Trimmed { floor: Seq(3) }));
        assert_eq!(read(&shard, 2, 0).await.expect("from the floor on").entries[0].seq, Seq(3));
        assert_eq!(read(&shard, 3, 1).await, Err(Refusal::NotFound));
        assert_eq!(append(&shard, 2, &[payload(4)]).await, Ok(Seq(4)));
    });
}

#[test]
fn deleted_extents_give_their_segments_back() {
    let sim = Sim::new(4);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime).await;
        for round in 1..20 {
            create(&shard, round).await;
            for index in 0..12 {
                append(&shard, round, &[vec![index; 100_000]]).await.expect("appended");
            }
            let deleted = shard.delete(ExtentId(round), Epoch(0)).await.expect("deleted");
            shard.durable(deleted.gate).await.expect("durable");
        }
        let status = shard.status();
        assert!(status.segments <= 4, "{} segments are left of 19 MB of deleted records", status.segments);
        assert!(status.counters.segments_recycled > 10, "{} recycled", status.counters.segments_recycled);
    });
}

#[test]
fn a_reader_at_the_tail_wakes_at_the_append() {
    let sim = Sim::new(5);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = open(runtime.clone()).await;
        create(&shard, 1).await;
        let reader = {
            let shard = shard.clone();
            node_io::Runtime::spawn(&runtime, async move {
                let request = ReadRequest { extent: ExtentId(1), from: Seq(1), max_bytes: 1000, max_records: 10 };
                shard.read(&request, Duration::from_secs(3600)).await
            })
        };
        node_io::Runtime::sleep(&runtime, Duration::from_secs(1)).await;
        append(&shard, 1, &[payload(3)]).await.expect("appended");
        assert_eq!(reader.await.expect("woken").payload, payload(3));
    });
    assert!(sim.elapsed() < Duration::from_secs(60), "the reader did not wait for its time-out: {:?}", sim.elapsed());
}
