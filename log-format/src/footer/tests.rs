//! How entries are coded, byte by byte, and where pages end.

use super::page::{ENTRIES_SIZE, write_section};
use super::*;
use crate::PAGE_SIZE;
use crate::block::LogIdentity;
use crate::ids::{BlockNumber, DeliverAt, ExtentId, ExtentKind, ExtentNumber, Key, Seq, Timestamp};

const IDENTITY: LogIdentity = LogIdentity { segment: SegmentId(9), log_id: 0x0403_0201 };

fn sequence(extent: u32, first_seq: u64, count: u32, append_time: u64) -> SequenceEntry {
    SequenceEntry {
        extent: ExtentNumber(extent),
        first_seq: Seq(first_seq),
        count,
        append_time: Timestamp(append_time),
        offset: 4160,
        length: 32 + 12 * count,
    }
}

fn timer(extent: u32, deliver_at: u64, seq: u64) -> TimerEntry {
    TimerEntry { extent: ExtentNumber(extent), deliver_at: DeliverAt(deliver_at), seq: Seq(seq), offset: 4192, payload_length: 1 }
}

#[test]
fn sequence_entries_are_coded_as_specified() {
    let mut out = Vec::new();
    let entries = [sequence(2, 5, 3, 10), sequence(2, 9, 1, 9), sequence(4, 6, 1, 9)];
    assert_eq!(write_section(&IDENTITY, &entries, &mut out, |_, _| ()), 1);
    let mut expected = b"RIDX\x01\x00\x03\x00".to_vec();
    expected.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
    // 4160 is 0xc0 0x20; append times: +10, -1, and +9 from zero again.
    expected.extend_from_slice(&[2, 5, 3, 20, 0xc0, 0x20, 68]);
    expected.extend_from_slice(&[0, 4, 1, 1, 0xc0, 0x20, 44]);
    expected.extend_from_slice(&[2, 6, 1, 18, 0xc0, 0x20, 44]);
    expected.resize(PAGE_SIZE, 0);
    let crc = crc32c::crc32c(&expected);
    expected[28..32].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(out, expected);
}

#[test]
fn timer_entries_are_coded_as_specified() {
    let mut out = Vec::new();
    let entries = [timer(1, 100, 7), timer(1, 100, 8), timer(1, 101, 2), timer(3, 1, 1)];
    write_section(&IDENTITY, &entries, &mut out, |_, _| ());
    // 4192 is 0xe0 0x20; seqs: +7, +1, -6, and +1 from zero again.
    let expected = [[1, 100, 14, 0xe0, 0x20, 1], [0, 0, 2, 0xe0, 0x20, 1], [0, 1, 11, 0xe0, 0x20, 1], [2, 1, 2, 0xe0, 0x20, 1]];
    assert_eq!(out[32..32 + 24], expected.concat());
}

#[test]
fn directory_entries_are_coded_as_specified() {
    let mut out = Vec::new();
    let entry = DirectoryEntry {
        number: ExtentNumber(6),
        id: ExtentId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        kind: ExtentKind::Timer,
        first_seq: Seq(3),
        last_seq: Seq(5),
        record_count: 2,
        live_bytes: 130,
        first_page: 1,
        entry_count: 2,
    };
    write_section(&IDENTITY, &[entry], &mut out, |_, _| ());
    let mut expected = vec![6];
    expected.extend(1..=16);
    expected.extend_from_slice(&[2, 3, 2, 2, 0x82, 1, 1, 2]);
    assert_eq!(out[32..32 + expected.len()], expected);
    assert_eq!(out[4], 3);
}

#[test]
fn a_page_is_filled_to_its_last_byte_and_the_next_starts_from_zero() {
    // 11 bytes of the first and 579 times 7 of those that follow are just the 4064 of a page.
    let first = SequenceEntry { offset: 1 << 30, ..sequence(300, 100, 1, 0) };
    let mut entries = vec![first];
    entries.extend((1..1000).map(|index| SequenceEntry { offset: 1 << 13, ..sequence(300, 100 + index, 1, 0) }));
    let mut pages = Vec::new();
    let mut out = Vec::new();
    assert_eq!(write_section(&IDENTITY, &entries, &mut out, |_, page| pages.push(page)), 2);
    assert_eq!(u32::from_le_bytes(*out[20..].first_chunk().unwrap()) as usize, ENTRIES_SIZE);
    let on_first = pages.iter().filter(|&&page| page == 0).count();
    assert_eq!(on_first, 1 + 579);
    let second = &out[PAGE_SIZE..];
    assert_eq!(
        second[32..36],
        [0xac, 2, (100 + on_first as u8) | 0x80, ((100 + on_first) >> 7) as u8],
        "number and seq, from zero"
    );
    let IndexPage::Sequence(read) = IndexPage::decode(second, &IDENTITY, Section::Sequence, 1).unwrap() else {
        panic!("a sequence page")
    };
    assert_eq!(read, entries[on_first..]);
}

#[test]
fn positions_are_those_of_the_next_entry_at_or_behind_the_key() {
    let entries = [sequence(2, 5, 3, 0), sequence(2, 9, 1, 0), sequence(4, 6, 2, 0)];
    let position = |extent, seq| sequence_position(&entries, ExtentNumber(extent), Seq(seq));
    for (extent, seq, expected) in
        [(1, 9, 0), (2, 0, 0), (2, 5, 0), (2, 7, 0), (2, 8, 1), (2, 9, 1), (2, 10, 2), (3, 1, 2), (4, 7, 2), (4, 8, 3), (5, 1, 3)]
    {
        assert_eq!(position(extent, seq), expected, "{extent}, {seq}");
    }
    let timers = [timer(1, 100, 7), timer(1, 100, 8), timer(2, 1, 1)];
    let position = |extent, deliver_at, seq| {
        timer_position(&timers, ExtentNumber(extent), Key { deliver_at: DeliverAt(deliver_at), seq: Seq(seq) })
    };
    assert_eq!(
        [position(1, 0, 9), position(1, 100, 8), position(1, 100, 9), position(2, 1, 1), position(2, 1, 2)],
        [0, 1, 2, 2, 3]
    );
}

#[test]
fn a_footer_without_entries_is_a_trailer() {
    let input = FooterInput {
        segment: IDENTITY.segment,
        log_id: IDENTITY.log_id,
        footer_offset: 4096,
        data_end: 4096,
        first_block: BlockNumber(0),
        last_block: BlockNumber(0),
        sequence: &[],
        timers: &[],
        extents: &[],
    };
    let footer = FooterBuilder::build(&input);
    assert_eq!(footer.len(), footer_size_bound(0, 0, 0));
    let trailer = Trailer::decode(&footer, &IDENTITY).unwrap();
    assert_eq!((trailer.end(), trailer.extent_count, trailer.append_time_min), (8192, 0, Timestamp(0)));
}

#[test]
fn entries_that_are_out_of_order_or_of_no_extent_are_bugs_of_the_caller() {
    let build = |sequence: Vec<SequenceEntry>, extents: Vec<(u32, ExtentKind)>| {
        std::panic::catch_unwind(|| {
            let extents: Vec<_> = extents
                .iter()
                .map(|&(number, kind)| FooterExtent {
                    number: ExtentNumber(number),
                    id: ExtentId(1),
                    kind,
                    record_count: 1,
                    live_bytes: 0,
                })
                .collect();
            FooterBuilder::build(&FooterInput {
                segment: IDENTITY.segment,
                log_id: IDENTITY.log_id,
                footer_offset: 8192,
                data_end: 8192,
                first_block: BlockNumber(1),
                last_block: BlockNumber(1),
                sequence: &sequence,
                timers: &[],
                extents: &extents,
            })
        })
        .is_ok()
    };
    let one = (1, ExtentKind::Sequence);
    assert!(build(vec![sequence(1, 1, 1, 0), sequence(1, 2, 1, 0)], vec![one]));
    assert!(!build(vec![sequence(1, 2, 1, 0), sequence(1, 1, 1, 0)], vec![one]), "out of order");
    assert!(!build(vec![sequence(1, 1, 2, 0), sequence(1, 2, 1, 0)], vec![one]), "runs overlap");
    assert!(!build(vec![sequence(1, 1, 0, 0)], vec![one]), "an empty run");
    assert!(!build(vec![sequence(1, 1, 1, 0)], vec![]), "of no extent");
    assert!(!build(vec![sequence(1, 1, 1, 0)], vec![one, (2, ExtentKind::Sequence)]), "an extent without entries");
    assert!(!build(vec![sequence(1, 1, 1, 0)], vec![(1, ExtentKind::Timer)]), "of another kind");
}
