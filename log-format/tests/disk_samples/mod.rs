//! Samples of everything on disk, made by the crate's own encoders, and helpers that know docs/format.md but not the crate's code.

#![allow(dead_code, reason = "each test uses the samples that it needs")]
#![allow(clippy::unwrap_used, reason = "only tests use it")]

pub(crate) mod golden;

use log_format::block::{BlockBuilder, BlockSeal, LogIdentity, RunKind, RunStart};
use log_format::checkpoint::{CheckpointPart, ExtentEntry, ExtentState, GroupEntry};
use log_format::footer::{FooterBuilder, FooterExtent, FooterInput, SequenceEntry, TimerEntry};
use log_format::ids::{
    BlockNumber, DeliverAt, Epoch, ExtentId, ExtentKind, ExtentNumber, GroupId, Incarnation, Key, NodeId, Op, SegmentId, Seq,
    ShardIndex, Timestamp,
};
use log_format::manifest::Manifest;
use log_format::segment::SegmentHeader;
use log_format::state::StateChange;
use log_format::{PAGE_SIZE, payload_checksum};

pub(crate) const NODE: NodeId = NodeId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
pub(crate) const SEQUENCE_EXTENT: ExtentId = ExtentId(0x1000_0000_0000_4000_8000_0000_0000_0001);
pub(crate) const TIMER_EXTENT: ExtentId = ExtentId(0x2000_0000_0000_4000_8000_0000_0000_0002);
pub(crate) const OLD_EXTENT: ExtentId = ExtentId(0x3000_0000_0000_4000_8000_0000_0000_0003);
pub(crate) const SEQUENCE_NUMBER: ExtentNumber = ExtentNumber(7);
pub(crate) const TIMER_NUMBER: ExtentNumber = ExtentNumber(300);
const T0: u64 = 1_790_000_000_000_000_000;

pub(crate) fn manifest() -> Manifest {
    Manifest { node: NODE, incarnation: Incarnation(3), shard_count: 2, segment_size: 256 << 20, feature_flags: 0 }
}

/// The manifest's file after its write number 7: one shard first, two then.
pub(crate) fn manifest_file() -> Vec<u8> {
    let before = Manifest { incarnation: Incarnation(2), ..manifest() };
    [&before.encode_copy(6)[..], &manifest().encode_copy(7)[..]].concat()
}

pub(crate) fn segment_header() -> SegmentHeader {
    SegmentHeader {
        segment: SegmentId(42),
        node: NODE,
        incarnation: Incarnation(3),
        shard: ShardIndex(1),
        segment_size: 256 << 20,
        prepared_at: Timestamp(T0),
    }
}

pub(crate) fn identity() -> LogIdentity {
    segment_header().identity()
}

pub(crate) fn key(deliver_at: u64, seq: u64) -> Key {
    Key { deliver_at: DeliverAt(deliver_at), seq: Seq(seq) }
}

/// Every change there is.
pub(crate) fn state_changes() -> Vec<(&'static str, StateChange)> {
    let created = StateChange::Created {
        extent: TIMER_EXTENT,
        group: GroupId(0xabcd_0000_0000_4000_8000_0000_0000_0009),
        kind: ExtentKind::Timer,
        epoch: Epoch(5),
    };
    vec![
        ("created", created),
        ("fenced", StateChange::Fenced { epoch: Epoch(6) }),
        ("sealed", StateChange::Sealed { last: Seq(1 << 40) }),
        ("trimmed", StateChange::Trimmed { key: key(0, 12) }),
        ("discarded", StateChange::Discarded { first: key(T0, 3), last: key(T0 + 5, 1) }),
        ("deleted", StateChange::Deleted),
        ("read_floor", StateChange::ReadFloor { key: key(T0 + 9, u64::MAX) }),
    ]
}

pub(crate) fn checkpoint_parts() -> [CheckpointPart; 2] {
    let groups = vec![
        GroupEntry { group: SEQUENCE_EXTENT.into(), epoch: Epoch(1), last_op: Op(80) },
        GroupEntry { group: OLD_EXTENT.into(), epoch: Epoch(9), last_op: Op(3) },
    ];
    let open = ExtentEntry {
        extent: SEQUENCE_EXTENT,
        group: SEQUENCE_EXTENT.into(),
        last_seq: Seq(100),
        floor: key(0, 90),
        read_floor: Key::default(),
        record_count: 10,
        payload_bytes: 12_345,
        last_append_time: Timestamp(T0 - 1),
        number: SEQUENCE_NUMBER,
        kind: ExtentKind::Sequence,
        state: ExtentState::Open,
    };
    let sealed = ExtentEntry {
        extent: OLD_EXTENT,
        group: OLD_EXTENT.into(),
        floor: key(T0 - 50, 4),
        read_floor: key(T0 - 40, 0),
        number: ExtentNumber(2),
        kind: ExtentKind::Timer,
        state: ExtentState::Sealed,
        ..open
    };
    let part = |groups: Vec<_>, extents: Vec<_>| CheckpointPart {
        part_count: 2,
        next_extent_number: TIMER_NUMBER,
        previous_segment: SegmentId(41),
        groups,
        extents,
    };
    [part(groups, vec![]), part(vec![], vec![sealed, open])]
}

/// One record: its bytes, when it falls due, whether it ends its op.
pub(crate) type Item = (Vec<u8>, u64, bool);

pub(crate) fn start(
    number: ExtentNumber,
    extent: ExtentId,
    kind: RunKind,
    first_seq: u64,
    op: u64,
    append_time: u64,
) -> RunStart {
    RunStart { extent_number: number, extent, kind, first_seq: Seq(first_seq), op: Op(op), append_time: Timestamp(append_time) }
}

pub(crate) fn checkpoint_start(part: u64) -> RunStart {
    start(ExtentNumber(0), ExtentId(0), RunKind::Checkpoint, part, 0, T0)
}

/// A block of the samples' segment. The buffer is dirty before, as a reused one is.
pub(crate) fn block(number: u64, committed: u64, runs: &[(RunStart, Vec<Item>)]) -> Vec<u8> {
    let space: usize =
        runs.iter().map(|(_, items)| 32 + items.iter().map(|(payload, ..)| 20 + payload.len()).sum::<usize>()).sum();
    let mut buf = vec![0xdd; (64 + space).next_multiple_of(PAGE_SIZE)];
    let mut builder = BlockBuilder::new();
    for (start, items) in runs {
        builder.begin_run(&mut buf, start);
        for (payload, deliver_at, end_of_op) in items {
            builder.push_record(&mut buf, payload, payload_checksum(payload), DeliverAt(*deliver_at), *end_of_op);
        }
    }
    let seal = BlockSeal {
        segment: identity().segment,
        log_id: identity().log_id,
        number: BlockNumber(number),
        committed: BlockNumber(committed),
        checkpoint: runs.first().is_some_and(|(start, _)| start.kind == RunKind::Checkpoint),
    };
    let length = builder.finish(&mut buf, &seal);
    buf.truncate(length);
    buf
}

fn encoded(change: &StateChange) -> Vec<u8> {
    let mut bytes = Vec::new();
    change.encode(&mut bytes);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// The blocks of the samples' segment.
pub(crate) fn blocks() -> Vec<(&'static str, Vec<u8>)> {
    let [part0, part1] = checkpoint_parts();
    let sequence = |seq, op, time| start(SEQUENCE_NUMBER, SEQUENCE_EXTENT, RunKind::Sequence, seq, op, time);
    let timer = |seq, op, time| start(TIMER_NUMBER, TIMER_EXTENT, RunKind::Timer, seq, op, time);
    let state = |op| start(TIMER_NUMBER, TIMER_EXTENT, RunKind::State, 0, op, T0 + 1);
    let big: Vec<u8> = (0..5000u32).map(|index| (index * 7) as u8).collect();
    vec![
        ("block_checkpoint_0", block(1000, 999, &[(checkpoint_start(0), vec![(part0.encode(), 0, true)])])),
        ("block_checkpoint_1", block(1001, 999, &[(checkpoint_start(1), vec![(part1.encode(), 0, true)])])),
        (
            "block_sequence",
            block(
                1002,
                1001,
                &[
                    // An append of two records and one of one share a run.
                    (
                        sequence(101, 81, T0 + 1),
                        vec![(text("first"), 0, false), (text(""), 0, true), (text("the third, of another op"), 0, true)],
                    ),
                    (sequence(104, 83, T0 + 2), vec![(text("appended later, so in a run of its own"), 0, true)]),
                ],
            ),
        ),
        ("block_two_pages", block(1003, 1001, &[(sequence(105, 84, T0 + 3), vec![(big, 0, true), (text("end"), 0, true)])])),
        (
            "block_state",
            block(1004, 1002, &[(state(1), state_changes().iter().map(|(_, change)| (encoded(change), 0, true)).collect())]),
        ),
        (
            // One op on two extents: it lies in one block.
            "block_commit",
            block(
                1005,
                1004,
                &[
                    (timer(1, 85, T0 + 4), vec![(text("late"), T0 + 900, false), (text("early"), T0 + 100, true)]),
                    (sequence(107, 85, T0 + 4), vec![(text("an answer"), 0, true)]),
                ],
            ),
        ),
        ("block_empty", block(1006, 1005, &[])),
    ]
}

/// The index entries of the samples' segment, worked out from its blocks by hand.
pub(crate) fn sequence_entries() -> Vec<SequenceEntry> {
    let entry = |first_seq, count, time, offset, length| SequenceEntry {
        extent: SEQUENCE_NUMBER,
        first_seq: Seq(first_seq),
        count,
        append_time: Timestamp(T0 + time),
        offset,
        length,
    };
    let page = PAGE_SIZE as u64;
    vec![
        entry(101, 3, 1, page * 3 + 64, 32 + 3 * 12 + 5 + 24),
        entry(104, 1, 2, page * 3 + 64 + 97, 32 + 12 + 38),
        entry(105, 2, 3, page * 4 + 64, 32 + 12 + 5000 + 12 + 3),
        entry(107, 1, 4, page * 7 + 64 + 32 + 20 + 4 + 20 + 5, 32 + 12 + 9),
    ]
}

pub(crate) fn timer_entries() -> Vec<TimerEntry> {
    let entry = |deliver_at, seq, offset, payload_length| TimerEntry {
        extent: TIMER_NUMBER,
        deliver_at: DeliverAt(T0 + deliver_at),
        seq: Seq(seq),
        offset: PAGE_SIZE as u64 * 7 + 64 + offset,
        payload_length,
    };
    vec![entry(100, 2, 32 + 24, 5), entry(900, 1, 32, 4)]
}

pub(crate) fn footer_extents() -> Vec<FooterExtent> {
    vec![
        FooterExtent {
            number: SEQUENCE_NUMBER,
            id: SEQUENCE_EXTENT,
            kind: ExtentKind::Sequence,
            record_count: 7,
            live_bytes: 5 + 24 + 38 + 5000 + 3 + 9,
        },
        FooterExtent { number: TIMER_NUMBER, id: TIMER_EXTENT, kind: ExtentKind::Timer, record_count: 2, live_bytes: 9 },
    ]
}

/// The footer of the samples' segment, to lie right behind its blocks.
pub(crate) fn footer(data_end: u64) -> Vec<u8> {
    FooterBuilder::build(&FooterInput {
        segment: identity().segment,
        log_id: identity().log_id,
        footer_offset: data_end,
        data_end,
        first_block: BlockNumber(1000),
        last_block: BlockNumber(1006),
        sequence: &sequence_entries(),
        timers: &timer_entries(),
        extents: &footer_extents(),
    })
}

/// A closed segment, cut behind its footer.
pub(crate) fn segment_file() -> Vec<u8> {
    let mut file = vec![0; PAGE_SIZE];
    segment_header().encode(&mut file);
    for (_, block) in blocks() {
        file.extend_from_slice(&block);
    }
    let footer = footer(file.len() as u64);
    file.extend_from_slice(&footer);
    file
}

/// Entries of many extents and runs, over several pages.
pub(crate) fn many_entries() -> (Vec<SequenceEntry>, Vec<TimerEntry>, Vec<FooterExtent>) {
    let mut sequence = Vec::new();
    let mut timers = Vec::new();
    let mut extents = Vec::new();
    for number in 1..=150u32 {
        let id = ExtentId(u128::from(number) << 64 | 1);
        let kind = if number % 3 == 0 { ExtentKind::Timer } else { ExtentKind::Sequence };
        for index in 0..u64::from(number % 11 + 1) {
            let offset = 4096 + 64 + 32 + u64::from(number) * 100_000 + index * 5_000;
            match kind {
                ExtentKind::Sequence => sequence.push(SequenceEntry {
                    extent: ExtentNumber(number),
                    first_seq: Seq(1 + index * 10),
                    count: 10,
                    // Append times may step back with the clock.
                    append_time: Timestamp(T0 - index * 1_000),
                    offset,
                    length: 1_000,
                }),
                ExtentKind::Timer => timers.push(TimerEntry {
                    extent: ExtentNumber(number),
                    deliver_at: DeliverAt(T0 + index / 2),
                    seq: Seq(1 + index),
                    offset,
                    payload_length: number,
                }),
            }
        }
        extents.push(FooterExtent { number: ExtentNumber(number), id, kind, record_count: 5, live_bytes: 77 });
    }
    (sequence, timers, extents)
}

pub(crate) fn footer_of_many() -> Vec<u8> {
    let (sequence, timers, extents) = many_entries();
    FooterBuilder::build(&FooterInput {
        segment: identity().segment,
        log_id: identity().log_id,
        footer_offset: 64 << 20,
        data_end: 32 << 20,
        first_block: BlockNumber(5),
        last_block: BlockNumber(6),
        sequence: &sequence,
        timers: &timers,
        extents: &extents,
    })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

pub(crate) fn put_u32_at(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Puts the crc over the first `at` bytes at `at`.
pub(crate) fn reseal(bytes: &mut [u8], at: usize) {
    let crc = crc32c::crc32c(&bytes[..at]);
    put_u32_at(bytes, at, crc);
}

pub(crate) fn reseal_manifest(copy: &mut [u8]) {
    let length = u32_at(copy, 16) as usize;
    let crc = crc32c::crc32c(&[&copy[..20], &copy[24..24 + length]].concat());
    put_u32_at(copy, 20, crc);
}

pub(crate) fn reseal_index_page(page: &mut [u8]) {
    put_u32_at(page, 28, 0);
    let crc = crc32c::crc32c(&page[..PAGE_SIZE]);
    put_u32_at(page, 28, crc);
}

/// A block's crc, straight from the words of docs/format.md.
pub(crate) fn block_crc(block: &[u8]) -> u32 {
    let used = u32_at(block, 36) as usize;
    let (mut covered, mut checks) = (block[..60].to_vec(), Vec::new());
    let mut place = 64;
    while place < used {
        covered.extend_from_slice(&block[place..place + 32]);
        let count = u16::from_le_bytes([block[place + 4], block[place + 5]]);
        let header = if block[place + 6] == 2 { 20 } else { 12 };
        place += 32;
        for _ in 0..count {
            checks.extend_from_slice(&block[place + 8..place + 12]);
            place += header + (u32_at(block, place) & 0x1ff_ffff) as usize;
        }
    }
    covered.extend_from_slice(&checks);
    crc32c::crc32c(&covered)
}

pub(crate) fn reseal_block(block: &mut [u8]) {
    let crc = block_crc(block);
    put_u32_at(block, 60, crc);
}

pub(crate) fn with(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    change(&mut changed);
    changed
}
