//! What is written is what is read, for any values; and it takes no more bytes than docs/format.md allows. A failure prints the
//! smallest input found and the seed.

mod disk_samples;

use disk_samples::{block_crc, identity, segment_header, u32_at};
use log_format::block::{
    Block, BlockBuilder, BlockSeal, LogIdentity, RecordDamage, Run, RunKind, RunStart, record_check, run_space,
};
use log_format::checkpoint::{CheckpointPart, ExtentEntry, ExtentState, GroupEntry};
use log_format::footer::{
    DirectoryEntry, FooterBuilder, FooterExtent, FooterInput, IndexPage, Section, SequenceEntry, TimerEntry, Trailer,
    find_extent, footer_size_bound, sequence_position, timer_position,
};
use log_format::ids::{
    BlockNumber, DeliverAt, Epoch, ExtentId, ExtentKind, ExtentNumber, GroupId, Incarnation, Key, NodeId, Op, SegmentId, Seq,
    ShardIndex, Timestamp,
};
use log_format::manifest::{self, Manifest};
use log_format::segment::SegmentHeader;
use log_format::state::StateChange;
use log_format::{PAGE_SIZE, payload_checksum};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(256)
    }
}

fn id() -> impl Strategy<Value = u128> {
    1..=u128::MAX
}

fn key() -> impl Strategy<Value = Key> {
    any::<(u64, u64)>().prop_map(|(deliver_at, seq)| Key { deliver_at: DeliverAt(deliver_at), seq: Seq(seq) })
}

fn extent_kind() -> impl Strategy<Value = ExtentKind> {
    prop_oneof![Just(ExtentKind::Sequence), Just(ExtentKind::Timer)]
}

/// One record: its bytes, when it falls due, whether it ends its op.
type Item = (Vec<u8>, u64, bool);

fn run() -> impl Strategy<Value = (RunStart, Vec<Item>)> {
    let kind = prop_oneof![Just(RunKind::Sequence), Just(RunKind::Timer), Just(RunKind::State)];
    let payload = prop_oneof![8 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 3000..9000)];
    // Numbers near the greatest, too: seqs and ops must not overflow behind them.
    let number = || prop_oneof![1..1000u64, (u64::MAX - 1000)..(u64::MAX - 20)];
    let items = vec((payload, any::<u64>(), any::<bool>()), 1..20);
    (kind, 1..=u32::MAX, id(), number(), number(), any::<u64>(), items).prop_map(
        |(kind, number, extent, seq, op, time, mut items)| {
            if kind != RunKind::Timer {
                items.iter_mut().for_each(|item| item.1 = 0);
            }
            let start = RunStart {
                extent_number: ExtentNumber(number),
                extent: ExtentId(extent),
                kind,
                first_seq: Seq(if kind == RunKind::State { 0 } else { seq }),
                op: Op(op),
                append_time: Timestamp(time),
            };
            (start, items)
        },
    )
}

fn build(runs: &[(RunStart, Vec<Item>)], seal: &BlockSeal) -> Result<Vec<u8>, TestCaseError> {
    let space: usize =
        runs.iter().map(|(start, items)| run_space(start.kind, items.iter().map(|(payload, ..)| payload.len()))).sum();
    let mut buf = vec![0xdd; (64 + space).next_multiple_of(PAGE_SIZE)];
    let mut builder = BlockBuilder::new();
    for (start, items) in runs {
        prop_assert_eq!(builder.begin_run(&mut buf, start) as usize, builder.used() - 32);
        for (payload, deliver_at, end_of_op) in items {
            let before = builder.used();
            let offset =
                builder.push_record(&mut buf, payload, payload_checksum(payload), DeliverAt(*deliver_at), *end_of_op) as usize;
            prop_assert_eq!(offset, before);
        }
    }
    prop_assert_eq!(builder.used(), 64 + space, "run_space is exact");
    let length = builder.finish(&mut buf, seal);
    prop_assert_eq!(length, buf.len());
    Ok(buf)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn blocks(runs in vec(run(), 0..12), segment: u64, log_id: u32, committed in 0..u64::MAX) {
        let seal = BlockSeal {
            segment: SegmentId(segment),
            log_id,
            number: BlockNumber(committed + 1),
            committed: BlockNumber(committed),
            checkpoint: false,
        };
        let bytes = build(&runs, &seal)?;
        prop_assert_eq!(u32_at(&bytes, 60), block_crc(&bytes), "the crc is the one of docs/format.md");

        let identity = LogIdentity { segment: seal.segment, log_id };
        let followed = [&bytes[..], &[0xee; 100]].concat();
        let block = Block::decode(&followed, &identity).unwrap();
        let header = block.header();
        prop_assert_eq!((header.segment, header.log_id, header.checkpoint), (seal.segment, log_id, false));
        prop_assert_eq!((header.number, header.committed), (seal.number, seal.committed));
        prop_assert_eq!(header.length as usize, bytes.len());
        prop_assert_eq!(header.run_count as usize, runs.len());
        prop_assert_eq!(header.record_count as usize, runs.iter().map(|(_, items)| items.len()).sum::<usize>());
        prop_assert!(bytes[header.used as usize..].iter().all(|&byte| byte == 0), "what is behind the runs is zero");

        let mut count = 0;
        for (read, (start, items)) in block.runs().zip(&runs) {
            count += 1;
            let head = *read.header();
            prop_assert_eq!((head.extent_number, head.kind), (start.extent_number, start.kind));
            prop_assert_eq!((head.first_seq, head.op, head.append_time), (start.first_seq, start.op, start.append_time));
            prop_assert_eq!(usize::from(head.count), items.len());
            let payloads: usize = items.iter().map(|(payload, ..)| payload.len()).sum();
            let overhead = 32 + items.len() * if start.kind == RunKind::Timer { 20 } else { 12 };
            prop_assert_eq!(read.length(), overhead + payloads, "32 bytes a run, 12 or 20 a record");

            let alone = Run::decode(&followed[read.offset() as usize..]).unwrap();
            prop_assert_eq!((alone.header(), alone.length(), alone.offset()), (&head, read.length(), 0));
            prop_assert_eq!(alone.records().count(), items.len());

            let mut op = start.op.0;
            prop_assert_eq!(read.records().count(), items.len());
            for (index, (record, (payload, deliver_at, end_of_op))) in read.records().zip(items).enumerate() {
                prop_assert_eq!(record.payload, &payload[..]);
                prop_assert_eq!(record.seq.0, start.first_seq.0 + index as u64);
                prop_assert_eq!(record.op, Op(op));
                prop_assert_eq!((record.deliver_at.0, record.end_of_op), (*deliver_at, *end_of_op));
                prop_assert_eq!(record.verify(start.extent), Ok(()));
                let damage = record.verify(ExtentId(start.extent.0 ^ 1 << 77));
                prop_assert!(matches!(damage, Err(RecordDamage::Check { .. })), "a record is bound to its extent");
                let check = record_check(start.extent, record.seq, record.deliver_at, record.length_field, record.payload_checksum);
                prop_assert_eq!(record.check, check);
                prop_assert_eq!(u32_at(&bytes, record.offset as usize), record.length_field, "the offset is that of the header");
                op += u64::from(*end_of_op);
            }
        }
        prop_assert_eq!(count, runs.len());
    }

    #[test]
    fn segment_headers(segment: u64, node: u128, incarnation: u64, shard: u32, pages in 4..1u64 << 52, time: u64) {
        let header = SegmentHeader {
            segment: SegmentId(segment),
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            shard: ShardIndex(shard),
            segment_size: pages * 4096,
            prepared_at: Timestamp(time),
        };
        let mut page = vec![0xdd; PAGE_SIZE + 1];
        header.encode(&mut page);
        prop_assert_eq!(SegmentHeader::decode(&page), Ok(header));
        prop_assert!(page[68..PAGE_SIZE].iter().all(|&byte| byte == 0) && page[PAGE_SIZE] == 0xdd);
        let other = SegmentHeader { shard: ShardIndex(shard ^ 1), ..header };
        prop_assert_ne!(other.log_id(), header.log_id());
    }

    #[test]
    fn manifests(node in id(), incarnation: u64, shard_count in 1..=10_000u32, pages in 4..1u64 << 52, generation in 1..u64::MAX) {
        let manifest = Manifest {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            shard_count,
            segment_size: pages * 4096,
            feature_flags: 0,
        };
        let old = Manifest { incarnation: Incarnation(incarnation ^ 1), ..manifest };
        let mut file = [[0; PAGE_SIZE]; 2];
        file[(manifest::copy_offset(generation - 1) / 4096) as usize] = *old.encode_copy(generation - 1);
        file[(manifest::copy_offset(generation) / 4096) as usize] = *manifest.encode_copy(generation);
        let chosen = manifest::choose(&file[0], &file[1]).unwrap();
        prop_assert_eq!((chosen.generation, chosen.manifest), (generation, manifest));
        // The newer one torn: the older one stands.
        file[(generation % 2) as usize][30..].fill(0);
        let chosen = manifest::choose(&file[0], &file[1]).unwrap();
        prop_assert_eq!((chosen.generation, chosen.manifest), (generation - 1, old));
    }

    #[test]
    fn state_changes(extent in id(), group in id(), kind in extent_kind(), n: u64, mut keys in (key(), key())) {
        if keys.0 > keys.1 {
            keys = (keys.1, keys.0);
        }
        let changes = [
            StateChange::Created { extent: ExtentId(extent), group: GroupId(group), kind, epoch: Epoch(n) },
            StateChange::Fenced { epoch: Epoch(n) },
            StateChange::Sealed { last: Seq(n) },
            StateChange::Trimmed { key: keys.0 },
            StateChange::Discarded { first: keys.0, last: keys.1 },
            StateChange::Deleted,
            StateChange::ReadFloor { key: keys.1 },
        ];
        for change in changes {
            let mut bytes = vec![9];
            change.encode(&mut bytes);
            prop_assert_eq!(StateChange::decode(&bytes[1..]), Ok(change));
        }
    }

    #[test]
    fn checkpoint_parts(
        part_count in 1..=u32::MAX,
        groups in vec((id(), any::<(u64, u64)>()), 0..30),
        extents in vec((id(), id(), key(), key(), any::<[u64; 4]>(), 1..u32::MAX, extent_kind(), any::<bool>()), 0..30),
    ) {
        let entry = |(extent, group, floor, read_floor, n, number, kind, sealed): (u128, u128, _, _, [u64; 4], _, _, _)| ExtentEntry {
            extent: ExtentId(extent),
            group: GroupId(group),
            last_seq: Seq(n[0]),
            floor,
            read_floor,
            record_count: n[1],
            payload_bytes: n[2],
            last_append_time: Timestamp(n[3]),
            number: ExtentNumber(number),
            kind,
            state: if sealed { ExtentState::Sealed } else { ExtentState::Open },
        };
        let part = CheckpointPart {
            part_count,
            next_extent_number: ExtentNumber(u32::MAX),
            previous_segment: SegmentId(u64::MAX),
            groups: groups
                .into_iter()
                .map(|(group, (epoch, op))| GroupEntry { group: GroupId(group), epoch: Epoch(epoch), last_op: Op(op) })
                .collect(),
            extents: extents.into_iter().map(entry).collect(),
        };
        let bytes = part.encode();
        prop_assert!(bytes.len() <= CheckpointPart::encoded_size_bound(part.groups.len(), part.extents.len()));
        prop_assert_eq!(CheckpointPart::decode(&bytes), Ok(part));
    }

    #[test]
    fn footers(
        extents in vec((1..u32::MAX / 600, id(), extent_kind(), 1..80usize), 0..40),
        seed in vec((1..u64::MAX >> 12, 1..=65_535u32, any::<u64>(), 5000..u64::MAX >> 1, any::<u32>()), 80),
    ) {
        let (sequence, timers, extents) = footer_entries(&extents, &seed);
        let header = segment_header();
        let data_end = 8192;
        let input = FooterInput {
            segment: header.segment,
            log_id: header.log_id(),
            footer_offset: 1 << 30,
            data_end,
            first_block: BlockNumber(1),
            last_block: BlockNumber(u64::MAX),
            sequence: &sequence,
            timers: &timers,
            extents: &extents,
        };
        let footer = FooterBuilder::build(&input);
        prop_assert!(footer.len() <= footer_size_bound(sequence.len(), timers.len(), extents.len()));
        let trailer = Trailer::decode(&footer[footer.len() - PAGE_SIZE..], &identity()).unwrap();
        prop_assert_eq!(trailer.end(), input.footer_offset + footer.len() as u64);
        prop_assert_eq!((trailer.data_end, trailer.extent_count as usize), (data_end, extents.len()));

        let page = |section, number| {
            let offset = (trailer.page_offset(section, number) - trailer.footer_offset) as usize;
            IndexPage::decode(&footer[offset..], &identity(), section, number).unwrap()
        };
        let (mut read_sequence, mut read_timers, mut read_directory) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..trailer.sequence_pages {
            let IndexPage::Sequence(entries) = page(Section::Sequence, number) else { panic!("as asked for") };
            for (index, entry) in entries.iter().enumerate() {
                for seq in [entry.first_seq, entry.last_seq()] {
                    prop_assert_eq!(sequence_position(&entries, entry.extent, seq), index);
                }
                prop_assert!(sequence_position(&entries, entry.extent, entry.last_seq().next()) == index + 1);
            }
            read_sequence.extend(entries);
        }
        for number in 0..trailer.timer_pages {
            let IndexPage::Timer(entries) = page(Section::Timer, number) else { panic!("as asked for") };
            for (index, entry) in entries.iter().enumerate() {
                prop_assert_eq!(timer_position(&entries, entry.extent, entry.key()), index);
                let behind = Key { seq: entry.seq.next(), ..entry.key() };
                prop_assert_eq!(timer_position(&entries, entry.extent, behind), index + 1);
            }
            read_timers.extend(entries);
        }
        for number in 0..trailer.directory_pages {
            let IndexPage::Directory(entries) = page(Section::Directory, number) else { panic!("as asked for") };
            prop_assert_eq!(find_extent(&entries, ExtentNumber(0)), None);
            prop_assert!(entries.iter().all(|entry| find_extent(&entries, entry.number) == Some(entry)));
            read_directory.extend(entries);
        }
        prop_assert_eq!(&read_sequence, &sequence);
        prop_assert_eq!(&read_timers, &timers);
        prop_assert_eq!(read_directory.len(), extents.len());
        for (entry, extent) in read_directory.iter().zip(&extents) {
            check_directory_entry(entry, extent, &sequence, &timers, &page)?;
        }
    }
}

/// Sorted entries of extents with so many entries each, with values from the seed.
fn footer_entries(
    extents: &[(u32, u128, ExtentKind, usize)],
    seed: &[(u64, u32, u64, u64, u32)],
) -> (Vec<SequenceEntry>, Vec<TimerEntry>, Vec<FooterExtent>) {
    let (mut sequence, mut timers, mut footer_extents) = (Vec::new(), Vec::new(), Vec::new());
    let mut number = 0;
    for &(gap, id, kind, entries) in extents {
        number += gap;
        let mut seq = 0;
        let mut keys = Vec::new();
        for (index, &(gap, count, time, offset, length)) in seed[..entries].iter().enumerate() {
            match kind {
                ExtentKind::Sequence => {
                    sequence.push(SequenceEntry {
                        extent: ExtentNumber(number),
                        first_seq: Seq(seq + gap),
                        count,
                        append_time: Timestamp(time),
                        offset,
                        length: (32 + count * 12) + length % (1 << 20),
                    });
                    seq += gap + u64::from(count);
                }
                // Some deliver_at twice, so that the seq decides.
                ExtentKind::Timer => keys.push(TimerEntry {
                    extent: ExtentNumber(number),
                    deliver_at: DeliverAt(if index % 3 == 0 { 5 } else { time }),
                    seq: Seq(1 + index as u64),
                    offset,
                    payload_length: length % (1 << 24),
                }),
            }
        }
        keys.sort_by_key(TimerEntry::key);
        timers.extend(keys);
        footer_extents.push(FooterExtent {
            number: ExtentNumber(number),
            id: ExtentId(id),
            kind,
            record_count: u64::from(gap),
            live_bytes: u64::from(gap) << 20,
        });
    }
    (sequence, timers, footer_extents)
}

/// What the directory says of an extent leads to its first entry, and is true of all of them.
fn check_directory_entry(
    entry: &DirectoryEntry,
    extent: &FooterExtent,
    sequence: &[SequenceEntry],
    timers: &[TimerEntry],
    page: &impl Fn(Section, u32) -> IndexPage,
) -> Result<(), TestCaseError> {
    prop_assert_eq!((entry.number, entry.id, entry.kind), (extent.number, extent.id, extent.kind));
    prop_assert_eq!((entry.record_count, entry.live_bytes), (extent.record_count, extent.live_bytes));
    let seqs: Vec<(Seq, Seq)> = match extent.kind {
        ExtentKind::Sequence => {
            sequence.iter().filter(|run| run.extent == extent.number).map(|run| (run.first_seq, run.last_seq())).collect()
        }
        ExtentKind::Timer => {
            timers.iter().filter(|timer| timer.extent == extent.number).map(|timer| (timer.seq, timer.seq)).collect()
        }
    };
    prop_assert_eq!(entry.entry_count as usize, seqs.len());
    prop_assert_eq!(Some(entry.first_seq), seqs.iter().map(|seqs| seqs.0).min());
    prop_assert_eq!(Some(entry.last_seq), seqs.iter().map(|seqs| seqs.1).max());
    let has_extent =
        |number| match page(if extent.kind == ExtentKind::Timer { Section::Timer } else { Section::Sequence }, number) {
            IndexPage::Sequence(entries) => entries.iter().any(|run| run.extent == extent.number),
            IndexPage::Timer(entries) => entries.iter().any(|timer| timer.extent == extent.number),
            IndexPage::Directory(_) => false,
        };
    prop_assert!(has_extent(entry.first_page));
    prop_assert!(entry.first_page == 0 || !has_extent(entry.first_page - 1));
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    /// The greatest values in every field fit the size that the bound reckons with.
    #[test]
    fn footers_of_great_numbers_stay_within_the_bound(numbers in btree_set(u32::MAX - 5000..u32::MAX, 1..300)) {
        let sequence: Vec<_> = numbers
            .iter()
            .map(|&number| SequenceEntry {
                extent: ExtentNumber(number),
                first_seq: Seq(u64::MAX - 70_000),
                count: 65_535,
                append_time: Timestamp(u64::MAX / 2 + u64::from(number)),
                offset: u64::MAX - (64 << 20),
                length: 32 << 20,
            })
            .collect();
        let extents: Vec<_> = numbers
            .iter()
            .map(|&number| FooterExtent {
                number: ExtentNumber(number),
                id: ExtentId(u128::MAX),
                kind: ExtentKind::Sequence,
                record_count: u64::MAX / 1000,
                live_bytes: u64::MAX / 1000,
            })
            .collect();
        let footer = FooterBuilder::build(&FooterInput {
            segment: identity().segment,
            log_id: identity().log_id,
            footer_offset: 1 << 40,
            data_end: 1 << 39,
            first_block: BlockNumber(1),
            last_block: BlockNumber(1),
            sequence: &sequence,
            timers: &[],
            extents: &extents,
        });
        prop_assert!(footer.len() <= footer_size_bound(sequence.len(), 0, extents.len()));
        Trailer::decode(&footer[footer.len() - PAGE_SIZE..], &identity()).unwrap();
    }
}
