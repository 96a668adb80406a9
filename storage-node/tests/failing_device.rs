//! What a shard does when its device fails: refuse, keep what was acked, move on when it can.

mod support;

use std::path::Path;
use std::time::Duration;

use log_format::ids::{Epoch, ExtentId, ExtentKind, Seq};
use log_format::wire::Refusal;
use node_io::Runtime;
use node_io::sim::{Faults, Sim};
use storage_node::status::Phase;
use storage_node::{ReadRequest, Shard, ShardOptions};
use support::{DIR, append, create, options, payload, read, read_all, records};

fn failing() -> Faults {
    Faults { write_error: 1.0, ..Faults::default() }
}

fn prepared_options() -> ShardOptions {
    // The stock outlasts the test's failures: writes to prepare more fail as well.
    ShardOptions { prepared_segments: 6, ..options() }
}

#[test]
fn a_failed_write_is_never_acked_and_the_shard_moves_on() {
    let sim = Sim::new(21);
    let runtime = sim.node(0);
    let before = [payload(1), payload(2), payload(3)];
    sim.block_on(0, async {
        let shard = Shard::open(runtime.clone(), Path::new(DIR), prepared_options()).await.expect("opens");
        create(&shard, 1).await;
        append(&shard, 1, &before).await.expect("acked");
        while shard.status().segments_prepared < 6 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        sim.set_faults(0, failing());
        assert_eq!(append(&shard, 1, &[payload(4)]).await, Err(Refusal::UnknownOutcome));
        assert!(matches!(append(&shard, 1, &[payload(5)]).await, Err(Refusal::ReadOnly { .. })));
        assert!(matches!(shard.status().phase, Phase::ReadOnly(_)), "{:?}", shard.status().phase);
        assert_eq!(read_all(&shard, 1).await, before, "reads go on, and show nothing that was not acked");
        sim.set_faults(0, Faults::default());
        while append(&shard, 1, &[payload(6)]).await != Ok(Seq(4)) {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(shard.status().phase, Phase::Serving);
    });
    sim.crash(0);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = Shard::open(runtime, Path::new(DIR), prepared_options()).await.expect("opens");
        assert_eq!(read_all(&shard, 1).await, [payload(1), payload(2), payload(3), payload(6)]);
        assert!(shard.damage().is_empty());
    });
}

#[test]
fn changes_of_state_that_were_lost_are_taken_back() {
    let sim = Sim::new(22);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = Shard::open(runtime.clone(), Path::new(DIR), prepared_options()).await.expect("opens");
        for extent in 1..=4 {
            create(&shard, extent).await;
            append(&shard, extent, &[payload(1), payload(2)]).await.expect("acked");
        }
        while shard.status().segments_prepared < 6 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        sim.set_faults(0, failing());
        // All in one turn, so that they share blocks: a seal, a trim, a delete, a new extent in the place of the deleted one, its records.
        let id = ExtentId;
        let sealed = shard.seal(id(1), Epoch(0)).await.expect("put");
        let trimmed = shard.trim(id(2), Epoch(0), Seq(1)).await.expect("put");
        let deleted = shard.delete(id(3), Epoch(0)).await.expect("put");
        let again = shard.create(id(3), id(3).into(), ExtentKind::Sequence, Epoch(0)).await.expect("put");
        let payloads = [payload(9)];
        let appended = shard.append(id(3), Epoch(0), None, records(&payloads).into_iter()).await.expect("put");
        let more = shard.append(id(4), Epoch(0), None, records(&payloads).into_iter()).await.expect("put");
        let gone = shard.delete(id(4), Epoch(0)).await.expect("put");
        for gate in [sealed.gate, trimmed.gate, deleted.gate, again.gate, appended.gate, more.gate, gone.gate] {
            assert_eq!(shard.durable(gate).await, Err(Refusal::UnknownOutcome));
        }
        sim.set_faults(0, Faults::default());
        while append(&shard, 1, &[payload(3)]).await != Ok(Seq(3)) {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(shard.durable(sealed.gate).await, Err(Refusal::UnknownOutcome), "it never becomes true later");
        assert_eq!(read_all(&shard, 1).await, [payload(1), payload(2), payload(3)], "it was never sealed");
        assert_eq!(read(&shard, 2, 1).await.expect("it was never trimmed").entries.len(), 2);
        assert_eq!(read_all(&shard, 3).await, [payload(1), payload(2)], "it was never deleted");
        assert_eq!(append(&shard, 4, &[payload(3)]).await, Ok(Seq(3)));
    });
    sim.crash(0);
    let runtime = sim.node(0);
    sim.block_on(0, async {
        let shard = Shard::open(runtime, Path::new(DIR), prepared_options()).await.expect("opens");
        assert_eq!(read_all(&shard, 3).await, [payload(1), payload(2)]);
        assert_eq!(read_all(&shard, 4).await, [payload(1), payload(2), payload(3)]);
        assert_eq!(append(&shard, 3, &[payload(5)]).await, Ok(Seq(3)));
    });
}

#[test]
fn a_device_that_fails_now_and_then_loses_nothing_that_was_acked() {
    for seed in 0..30 {
        let sim = Sim::new(seed);
        let mut acked: Vec<Vec<u8>> = Vec::new();
        for life in 0..3 {
            let runtime = sim.node(0);
            let shard = sim.block_on(0, Shard::open(runtime.clone(), Path::new(DIR), prepared_options())).expect("opens");
            sim.block_on(0, async {
                if life == 0 {
                    create(&shard, 1).await;
                }
                sim.set_faults(0, Faults { write_error: 0.03, ..Faults::default() });
                for index in 0..60 {
                    match append(&shard, 1, &[payload(index)]).await {
                        Ok(seq) => {
                            assert_eq!(seq.0, acked.len() as u64 + 1, "seed {seed}: seqs have no gaps");
                            acked.push(payload(index));
                        }
                        Err(Refusal::UnknownOutcome | Refusal::ReadOnly { .. }) => {
                            runtime.sleep(Duration::from_millis(2)).await;
                        }
                        Err(refusal) => panic!("seed {seed}: {refusal}"),
                    }
                }
                sim.set_faults(0, Faults::default());
                let request = ReadRequest { extent: ExtentId(1), from: Seq(1), max_bytes: 1, max_records: 1 };
                assert!(acked.is_empty() || shard.read(&request, Duration::ZERO).await.is_ok());
            });
            drop(shard);
            sim.crash(0);
            let runtime = sim.node(0);
            sim.block_on(0, async {
                let shard = Shard::open(runtime, Path::new(DIR), prepared_options()).await.expect("opens");
                let found = read_all(&shard, 1).await;
                assert!(shard.damage().is_empty(), "seed {seed}");
                assert_eq!(found[..acked.len()], acked, "seed {seed}: what was acked is there");
                // One append whose outcome was unknown may be there.
                assert!(found.len() <= acked.len() + 1, "seed {seed}: {} where {} were acked", found.len(), acked.len());
                acked = found;
            });
            sim.crash(0);
        }
    }
}
