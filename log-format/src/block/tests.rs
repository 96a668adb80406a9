//! The builder's contract, and the layout byte by byte.

use super::*;
use crate::ids::{ExtentNumber, Op, Timestamp};
use crate::payload_checksum;

const EXTENT: ExtentId = ExtentId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const SEAL: BlockSeal = BlockSeal {
    segment: SegmentId(5),
    log_id: 0xdead_beef,
    number: BlockNumber(8),
    committed: BlockNumber(6),
    checkpoint: false,
};
const IDENTITY: LogIdentity = LogIdentity { segment: SEAL.segment, log_id: SEAL.log_id };

fn start(kind: RunKind) -> RunStart {
    RunStart {
        extent_number: ExtentNumber(if kind == RunKind::Checkpoint { 0 } else { 0x0a0b }),
        extent: if kind == RunKind::Checkpoint { ExtentId(0) } else { EXTENT },
        kind,
        first_seq: Seq(if kind == RunKind::State { 0 } else { 10 }),
        op: Op(20),
        append_time: Timestamp(30),
    }
}

fn push(builder: &mut BlockBuilder, buf: &mut [u8], payload: &[u8], end_of_op: bool) -> u32 {
    builder.push_record(buf, payload, payload_checksum(payload), DeliverAt(0), end_of_op)
}

#[test]
fn a_block_is_laid_out_as_specified() {
    let mut buf = vec![0xdd; 3 * PAGE_SIZE];
    let mut builder = BlockBuilder::new();
    assert_eq!(builder.begin_run(&mut buf, &start(RunKind::Timer)), 64);
    assert_eq!(builder.push_record(&mut buf, b"abc", 0x1122_3344, DeliverAt(7), true), 96);
    assert_eq!((builder.used(), builder.length(), builder.run_count(), builder.record_count()), (119, 4096, 1, 1));
    assert_eq!(builder.finish(&mut buf, &SEAL), PAGE_SIZE);
    assert_eq!(buf[PAGE_SIZE], 0xdd, "what is behind the block is not touched");

    let length_field = 3 | 1 << 31;
    let check = record_check(EXTENT, Seq(10), DeliverAt(7), length_field, 0x1122_3344);
    let mut expected = Vec::new();
    expected.extend_from_slice(b"RBLK\x01\x00\x00\x00");
    for number in [5u64, 8, 6] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    for number in [4096u32, 119, 1, 1, 0xdead_beef, 0, 0] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    let run = [&[0x0b, 0x0a, 0, 0, 1, 0, 2, 0][..], &10u64.to_le_bytes(), &20u64.to_le_bytes(), &30u64.to_le_bytes()].concat();
    let crc = crc32c::crc32c(&[&expected[..], &run, &check.to_le_bytes()].concat());
    expected.extend_from_slice(&crc.to_le_bytes());
    expected.extend_from_slice(&run);
    for number in [length_field, 0x1122_3344, check] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    expected.extend_from_slice(&7u64.to_le_bytes());
    expected.extend_from_slice(b"abc");
    expected.resize(PAGE_SIZE, 0);
    assert_eq!(buf[..PAGE_SIZE], expected);

    let bound =
        [&(1..=16).collect::<Vec<u8>>()[..], &10u64.to_le_bytes(), &7u64.to_le_bytes(), &[3, 0, 0, 0x80, 0x44, 0x33, 0x22, 0x11]];
    assert_eq!(check, crc32c::crc32c(&bound.concat()), "the check binds what the specification says, in its order");
}

#[test]
fn a_wrong_payload_checksum_is_stored_as_given_and_found_by_the_reader() {
    let mut buf = vec![0; PAGE_SIZE];
    let mut builder = BlockBuilder::new();
    builder.begin_run(&mut buf, &start(RunKind::Sequence));
    builder.push_record(&mut buf, b"abc", 1, DeliverAt(0), true);
    builder.finish(&mut buf, &SEAL);
    let block = Block::decode(&buf, &IDENTITY).unwrap();
    let record = block.runs().next().unwrap().records().next().unwrap();
    assert_eq!(record.verify_check_only(EXTENT), Ok(()));
    assert_eq!(record.verify(EXTENT), Err(RecordDamage::Payload { stored: 1, computed: payload_checksum(b"abc") }));
}

#[test]
fn a_run_goes_on_only_where_seq_op_time_and_extent_follow() {
    let mut buf = vec![0; PAGE_SIZE];
    let mut builder = BlockBuilder::new();
    let first = start(RunKind::Sequence);
    assert!(!builder.continues(&first), "there is no run");
    builder.begin_run(&mut buf, &first);
    push(&mut builder, &mut buf, b"a", false);
    let next = RunStart { first_seq: Seq(11), op: Op(21), ..first };
    assert!(!builder.continues(&RunStart { op: Op(20), ..next }) && !builder.continues(&next), "the op has not ended");
    push(&mut builder, &mut buf, b"b", true);
    let next = RunStart { first_seq: Seq(12), ..next };
    assert!(builder.continues(&next));
    for other in [
        RunStart { first_seq: Seq(13), ..next },
        RunStart { first_seq: Seq(11), ..next },
        RunStart { op: Op(22), ..next },
        RunStart { op: Op(20), ..next },
        RunStart { append_time: Timestamp(31), ..next },
        RunStart { extent_number: ExtentNumber(1), ..next },
        RunStart { extent: ExtentId(1), ..next },
        RunStart { kind: RunKind::Timer, ..next },
    ] {
        assert!(!builder.continues(&other), "{other:?}");
    }
    push(&mut builder, &mut buf, b"c", true);
    builder.finish(&mut buf, &SEAL);
    let block = Block::decode(&buf, &IDENTITY).unwrap();
    let records: Vec<_> = block.runs().flat_map(|run| run.records()).map(|record| (record.seq.0, record.op.0)).collect();
    assert_eq!(records, [(10, 20), (11, 20), (12, 21)]);
    builder.reset();
    assert!(!builder.continues(&next) && builder.is_empty() && builder.used() == 64);
}

#[test]
fn state_runs_go_on_from_op_to_op_and_checkpoint_runs_never() {
    let mut buf = vec![0; PAGE_SIZE];
    let mut builder = BlockBuilder::new();
    let state = start(RunKind::State);
    builder.begin_run(&mut buf, &state);
    push(&mut builder, &mut buf, b"a", true);
    assert!(builder.continues(&RunStart { op: Op(21), ..state }));
    assert!(!builder.continues(&state));
    builder.reset();
    let part = start(RunKind::Checkpoint);
    builder.begin_run(&mut buf, &part);
    push(&mut builder, &mut buf, b"a", true);
    assert!(!builder.continues(&RunStart { first_seq: Seq(11), op: Op(21), ..part }));
}

#[test]
fn a_full_run_takes_no_more() {
    let space = run_space(RunKind::Sequence, std::iter::repeat_n(0, RUN_COUNT_MAX));
    assert_eq!(space, 32 + RUN_COUNT_MAX * 12);
    assert_eq!(run_space(RunKind::Sequence, std::iter::repeat_n(0, RUN_COUNT_MAX + 1)), space + 32 + 12, "a second run begins");
    let mut buf = vec![0; (64 + space + 100).next_multiple_of(PAGE_SIZE)];
    let mut builder = BlockBuilder::new();
    let first = start(RunKind::Sequence);
    builder.begin_run(&mut buf, &first);
    for _ in 0..RUN_COUNT_MAX {
        assert!(builder.room() > 0);
        push(&mut builder, &mut buf, b"", true);
    }
    let count = RUN_COUNT_MAX as u64;
    assert!(!builder.continues(&RunStart { first_seq: Seq(10 + count), op: Op(20 + count), ..first }));
    assert_eq!(builder.room(), 0);
    builder.finish(&mut buf, &SEAL);
    let block = Block::decode(&buf, &IDENTITY).unwrap();
    assert_eq!(block.runs().next().unwrap().records().last().unwrap().seq, Seq(9 + count));
    let full = std::panic::catch_unwind(move || push(&mut builder, &mut buf, b"", true));
    assert!(full.is_err(), "one record more is a bug of the caller");
}

#[test]
fn a_warm_builder_allocates_nothing() {
    let mut buf = vec![0; 16 * PAGE_SIZE];
    let mut builder = BlockBuilder::new();
    let mut capacities = Vec::new();
    for _ in 0..3 {
        builder.reset();
        for _ in 0..100 {
            builder.begin_run(&mut buf, &start(RunKind::Sequence));
            for _ in 0..10 {
                push(&mut builder, &mut buf, b"abc", true);
            }
        }
        builder.finish(&mut buf, &SEAL);
        capacities.push(builder.capacities());
    }
    assert!(capacities[0] == capacities[1] && capacities[1] == capacities[2], "{capacities:?}");
}

#[test]
fn the_greatest_record_fits_and_one_byte_more_is_a_bug_of_the_caller() {
    let mut buf = vec![0; RECORD_SIZE_MAX + PAGE_SIZE];
    let payload = vec![7; RECORD_SIZE_MAX + 1];
    let mut builder = BlockBuilder::new();
    builder.begin_run(&mut buf, &start(RunKind::Sequence));
    push(&mut builder, &mut buf, &payload[1..], true);
    builder.finish(&mut buf, &SEAL);
    let block = Block::decode(&buf, &IDENTITY).unwrap();
    let record = block.runs().next().unwrap().records().next().unwrap();
    assert_eq!((record.payload.len(), record.verify(EXTENT)), (RECORD_SIZE_MAX, Ok(())));
    builder.reset();
    builder.begin_run(&mut buf, &start(RunKind::Sequence));
    assert!(std::panic::catch_unwind(move || push(&mut builder, &mut buf, &payload, true)).is_err());
}

/// Runs what must panic, with a fresh builder and one page.
fn panics(misuse: impl FnOnce(&mut BlockBuilder, &mut [u8]) + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(|| misuse(&mut BlockBuilder::new(), &mut vec![0; PAGE_SIZE])).is_err()
}

#[test]
fn misuse_of_the_builder_panics() {
    assert!(panics(|builder, buf| {
        push(builder, buf, b"no run", true);
    }));
    assert!(panics(|builder, buf| {
        builder.begin_run(&mut buf[..95], &start(RunKind::Sequence));
    }));
    assert!(panics(|builder, buf| {
        builder.begin_run(buf, &start(RunKind::Sequence));
        push(builder, buf, &[0; PAGE_SIZE - 107], true);
    }));
    assert!(panics(|builder, buf| {
        builder.begin_run(buf, &start(RunKind::Sequence));
        builder.begin_run(buf, &start(RunKind::Sequence));
    }));
    assert!(panics(|builder, buf| {
        builder.begin_run(buf, &start(RunKind::Sequence));
        builder.finish(buf, &SEAL);
    }));
    assert!(panics(|builder, buf| {
        builder.begin_run(buf, &start(RunKind::Sequence));
        builder.push_record(buf, b"", 0, DeliverAt(1), true);
    }));
    for wrong in [
        RunStart { first_seq: Seq(0), ..start(RunKind::Sequence) },
        RunStart { first_seq: Seq(1), ..start(RunKind::State) },
        RunStart { extent_number: ExtentNumber(0), ..start(RunKind::Timer) },
        RunStart { extent_number: ExtentNumber(1), ..start(RunKind::Checkpoint) },
        RunStart { extent: EXTENT, ..start(RunKind::Checkpoint) },
    ] {
        assert!(panics(move |builder, buf| {
            builder.begin_run(buf, &wrong);
        }));
    }
    for (kind, checkpoint) in [(RunKind::Checkpoint, false), (RunKind::Sequence, true)] {
        assert!(panics(move |builder, buf| {
            builder.begin_run(buf, &start(kind));
            push(builder, buf, b"", true);
            builder.finish(buf, &BlockSeal { checkpoint, ..SEAL });
        }));
    }
    assert!(panics(|builder, buf| {
        builder.finish(buf, &BlockSeal { committed: SEAL.number, ..SEAL });
    }));
    assert!(
        !panics(|builder, buf| {
            builder.begin_run(buf, &start(RunKind::Sequence));
            push(builder, buf, &[0; PAGE_SIZE - 108], true);
            assert_eq!(builder.finish(buf, &SEAL), PAGE_SIZE);
        }),
        "a page that is full to its last byte"
    );
}

#[test]
fn space_saturates() {
    assert_eq!(run_space(RunKind::Timer, [usize::MAX, 1].into_iter()), usize::MAX);
    assert_eq!(run_space(RunKind::Timer, [3, 0].into_iter()), 32 + 20 + 3 + 20);
    assert_eq!(run_space(RunKind::State, std::iter::empty()), 32);
}
