//! `golden/v1/damaged/` pins what is said of damaged bytes: one table, a row for each file, with the exact error.
//! `ROOST_REGENERATE_GOLDEN=1` writes the files anew from the rows.

#![allow(clippy::unwrap_used, reason = "the helpers of a test are test code")]

mod disk_samples;

use disk_samples::golden::{compare, golden};
use disk_samples::*;
use log_format::PAGE_SIZE;
use log_format::block::Block;
use log_format::checkpoint::CheckpointPart;
use log_format::footer::{IndexPage, Section, Trailer};
use log_format::manifest;
use log_format::segment::SegmentHeader;
use log_format::state::StateChange;

/// What reads a damaged file.
#[derive(Clone, Copy, Debug)]
enum Reader {
    ManifestFile,
    SegmentHeader,
    /// The block, and each record for its extent.
    Block,
    State,
    Checkpoint,
    /// As page 0 of the section.
    Page(Section),
    Trailer,
}

impl Reader {
    /// What is wrong with `bytes`, in the words of the error.
    fn problem(self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::ManifestFile => text(manifest::choose(&bytes[..PAGE_SIZE], &bytes[PAGE_SIZE..])),
            Self::SegmentHeader => text(SegmentHeader::decode(bytes)),
            Self::Block => match Block::decode(bytes, &identity()) {
                Err(error) => Some(error.to_string()),
                Ok(block) => block.runs().find_map(|run| run.records().find_map(|record| text(record.verify(SEQUENCE_EXTENT)))),
            },
            Self::State => text(StateChange::decode(bytes)),
            Self::Checkpoint => text(CheckpointPart::decode(bytes)),
            Self::Page(section) => text(IndexPage::decode(bytes, &identity(), section, 0)),
            Self::Trailer => text(Trailer::decode(bytes, &identity())),
        }
    }
}

fn text<T>(result: Result<T, impl std::error::Error>) -> Option<String> {
    result.err().map(|error| error.to_string())
}

/// Every damaged file: its name, its bytes, what reads it, what is said of it.
fn damaged() -> Vec<(&'static str, Vec<u8>, Reader, &'static str)> {
    let mut rows = Vec::new();
    let mut row = |name, bytes, reader, expected| rows.push((name, bytes, reader, expected));

    let file = manifest_file();
    let second = PAGE_SIZE;
    let both = with(&file, |bytes| (bytes[8], bytes[second + 40]) = (bytes[8] ^ 1, bytes[second + 40] ^ 0x10));
    row(
        "manifest_both_copies",
        both,
        Reader::ManifestFile,
        "both copies of the manifest are unusable; at offset 0: its checksum is 0x719dba1d, its header says 0x1c158425; at offset 4096: its checksum is 0x44ec1152, its header says 0x8391b7e3",
    );
    let newer = with(&file, |bytes| {
        bytes[second + 4] = 2;
        reseal_manifest(&mut bytes[second..]);
    });
    row(
        "manifest_newer_version",
        newer,
        Reader::ManifestFile,
        "the manifest was written by a newer program: format version 2: this program knows version 1; use that one",
    );
    row(
        "manifest_swapped_copies",
        [&file[second..], &file[..second]].concat(),
        Reader::ManifestFile,
        "both copies of the manifest are unusable; at offset 0: generation 7 does not belong to this place of the file; at offset 4096: generation 6 does not belong to this place of the file",
    );
    row(
        "manifest_zeros",
        vec![0; 2 * PAGE_SIZE],
        Reader::ManifestFile,
        "both copies of the manifest are unusable; at offset 0: no manifest: its magic number is 0x00000000; at offset 4096: no manifest: its magic number is 0x00000000",
    );

    let mut header = vec![0; PAGE_SIZE];
    segment_header().encode(&mut header);
    row("segment_header_zeros", vec![0; PAGE_SIZE], Reader::SegmentHeader, "no segment header: its magic number is 0x00000000");
    row(
        "segment_header_short",
        header[..PAGE_SIZE - 1].to_vec(),
        Reader::SegmentHeader,
        "4095 bytes where a segment header has 4096",
    );
    row(
        "segment_header_bit",
        with(&header, |bytes| bytes[9] ^= 4),
        Reader::SegmentHeader,
        "segment header's checksum is 0x7df39f0a, the header says 0x18090b69",
    );
    row(
        "segment_header_version",
        with(&header, |bytes| bytes[4] = 2),
        Reader::SegmentHeader,
        "segment of format version 2: this program knows version 1",
    );
    let resealed = |place: usize, value| {
        with(&header, |bytes| {
            bytes[place] = value;
            reseal(bytes, 64);
        })
    };
    row("segment_header_reserved", resealed(6, 1), Reader::SegmentHeader, "a reserved bit of the segment header is set");
    row(
        "segment_header_log_id",
        resealed(40, 2),
        Reader::SegmentHeader,
        "log id is 0x8432c14a, but node, incarnation and shard give 0xe6104873",
    );
    row(
        "segment_header_size",
        resealed(48, 1),
        Reader::SegmentHeader,
        "a segment of 268435457 bytes: not whole pages, or fewer than 4",
    );

    let block = |name| blocks().into_iter().find(|(other, _)| *other == name).unwrap().1;
    let sequence = block("block_sequence");
    let flipped = |place: usize, mask: u8| with(&sequence, |bytes| bytes[place] ^= mask);
    row("block_zeros", vec![0; PAGE_SIZE], Reader::Block, "no block: its magic number is 0x00000000");
    row(
        "block_version",
        with(&sequence, |bytes| bytes[4] = 2),
        Reader::Block,
        "block of format version 2: this program knows version 1",
    );
    row("block_unknown_flag", flipped(6, 2), Reader::Block, "a reserved bit of the block header is set");
    row("block_reserved", flipped(52, 1), Reader::Block, "a reserved bit of the block header is set");
    row(
        "block_stale",
        with(&sequence, |bytes| bytes[8] = 41),
        Reader::Block,
        "block of segment 41 in segment 42: left from an older life of the file",
    );
    row(
        "block_foreign",
        flipped(48, 1),
        Reader::Block,
        "block of the log 0x8432c14b in the log 0x8432c14a: from another node, incarnation or shard",
    );
    row("block_bit_in_number", flipped(18, 1), Reader::Block, "block checksum is 0x02169009, its header says 0x809335c6");
    row(
        "block_committed_itself",
        with(&sequence, |bytes| bytes[24..32].copy_from_slice(&1002u64.to_le_bytes())),
        Reader::Block,
        "block with the number 1002 that calls block 1002 committed",
    );
    row(
        "block_length_zero",
        with(&sequence, |bytes| put_u32_at(bytes, 32, 0)),
        Reader::Block,
        "block claims 0 bytes, 243 of them used, 2 runs and 4 records, which no block can have",
    );
    row(
        "block_length_half_page",
        with(&sequence, |bytes| put_u32_at(bytes, 32, 2048)),
        Reader::Block,
        "block claims 2048 bytes, 243 of them used, 2 runs and 4 records, which no block can have",
    );
    row(
        "block_longer_than_any",
        with(&sequence, |bytes| put_u32_at(bytes, 32, 64 << 20)),
        Reader::Block,
        "block claims 67108864 bytes, 243 of them used, 2 runs and 4 records, which no block can have",
    );
    row("block_torn_file_end", block("block_two_pages")[..PAGE_SIZE].to_vec(), Reader::Block, "4096 bytes where 8192 are needed");
    row(
        "block_used_past_length",
        with(&sequence, |bytes| put_u32_at(bytes, 36, 4097)),
        Reader::Block,
        "block claims 4096 bytes, 4097 of them used, 2 runs and 4 records, which no block can have",
    );
    row(
        "block_used_short",
        with(&sequence, |bytes| put_u32_at(bytes, 36, 200)),
        Reader::Block,
        "run at offset 161 of the block: it is longer than the rest of the block",
    );
    row(
        "block_record_count",
        with(&sequence, |bytes| put_u32_at(bytes, 44, 5)),
        Reader::Block,
        "run at offset 243 of the block: the block's header counts other runs or records",
    );
    row(
        "block_checkpoint_flag",
        flipped(6, 1),
        Reader::Block,
        "run at offset 64 of the block: its kind does not go with the block's checkpoint flag",
    );
    row("block_run_kind", with(&sequence, |bytes| bytes[70] = 9), Reader::Block, "run at offset 64 of the block: its kind is 9");
    row("block_run_reserved", flipped(71, 1), Reader::Block, "run at offset 64 of the block: a reserved bit is set");
    row(
        "block_run_empty",
        with(&sequence, |bytes| bytes[68] = 0),
        Reader::Block,
        "run at offset 64 of the block: it has no records",
    );
    row(
        "block_run_extent_number",
        with(&sequence, |bytes| put_u32_at(bytes, 64, 0)),
        Reader::Block,
        "run at offset 64 of the block: its extent number is 0",
    );
    row(
        "block_run_first_seq",
        with(&sequence, |bytes| bytes[72..80].fill(0)),
        Reader::Block,
        "run at offset 64 of the block: its first seq or op cannot be",
    );
    row(
        "block_run_last_seq",
        with(&sequence, |bytes| bytes[72..80].fill(255)),
        Reader::Block,
        "run at offset 64 of the block: its first seq or op cannot be",
    );
    row("block_run_append_time", flipped(90, 1), Reader::Block, "block checksum is 0x8a7e836f, its header says 0x809335c6");
    row("record_length", flipped(96, 2), Reader::Block, "run at offset 64 of the block: it is longer than the rest of the block");
    row(
        "record_length_too_great",
        flipped(99, 1),
        Reader::Block,
        "run at offset 64 of the block: a record in it claims 16777221 bytes",
    );
    row("record_check", flipped(104, 1), Reader::Block, "block checksum is 0x729f3838, its header says 0x809335c6");
    row(
        "record_end_of_op",
        flipped(99, 0x80),
        Reader::Block,
        "record check is 0x60763d8d, its header says 0x0ed4e8d1: a damaged header, or a record of another address",
    );
    row(
        "record_reserved_bit",
        flipped(99, 0x40),
        Reader::Block,
        "record check is 0x3985827f, its header says 0x0ed4e8d1: a damaged header, or a record of another address",
    );
    row(
        "record_payload_checksum",
        flipped(100, 1),
        Reader::Block,
        "record check is 0xd3914269, its header says 0x0ed4e8d1: a damaged header, or a record of another address",
    );
    row("record_payload", flipped(108, 1), Reader::Block, "payload checksum is 0xb22fcefc, the record's header says 0x8a3ea150");
    row(
        "record_torn_payload",
        with(&block("block_two_pages"), |bytes| bytes[PAGE_SIZE..PAGE_SIZE + 512].fill(0)),
        Reader::Block,
        "payload checksum is 0x2e155913, the record's header says 0x0825b0c4",
    );
    let reserved_and_bound = with(&sequence, |bytes| {
        bytes[99] |= 0x40;
        let mut bound = SEQUENCE_EXTENT.to_bytes().to_vec();
        bound.extend_from_slice(&101u64.to_le_bytes());
        bound.extend_from_slice(&0u64.to_le_bytes());
        bound.extend_from_slice(&bytes[96..104]);
        put_u32_at(bytes, 104, crc32c::crc32c(&bound));
        reseal_block(bytes);
    });
    row("record_reserved_bit_bound", reserved_and_bound, Reader::Block, "a reserved bit of the record header is set");
    let other_extent = with(&block("block_commit"), |_| ());
    row(
        "record_of_other_extent",
        other_extent,
        Reader::Block,
        "record check is 0xef8d3189, its header says 0xbb7dc3c8: a damaged header, or a record of another address",
    );

    let state = |name| {
        let mut bytes = Vec::new();
        state_changes().into_iter().find(|(other, _)| *other == name).unwrap().1.encode(&mut bytes);
        bytes
    };
    row("state_none", vec![], Reader::State, "state record ends after 0 bytes, before its last field");
    row("state_tag_0", with(&state("deleted"), |bytes| bytes[0] = 0), Reader::State, "state record with the unknown tag 0");
    row("state_tag_8", with(&state("deleted"), |bytes| bytes[0] = 8), Reader::State, "state record with the unknown tag 8");
    row(
        "state_version",
        with(&state("fenced"), |bytes| bytes[1] = 2),
        Reader::State,
        "state record with tag 2 of version 2: this program knows version 1",
    );
    row(
        "state_short",
        with(&state("sealed"), |bytes| bytes.truncate(9)),
        Reader::State,
        "state record ends after 9 bytes, before its last field",
    );
    row(
        "state_surplus",
        with(&state("sealed"), |bytes| bytes.push(0)),
        Reader::State,
        "state record of 11 bytes goes on behind its last field",
    );
    row(
        "state_kind",
        with(&state("created"), |bytes| bytes[34] = 3),
        Reader::State,
        "state record creates an extent of the unknown kind 3",
    );
    row(
        "state_zero_id",
        with(&state("created"), |bytes| bytes[2..18].fill(0)),
        Reader::State,
        "state record creates an extent with an extent id or a group id of zero",
    );
    row(
        "state_range",
        with(&state("discarded"), |bytes| bytes[2..10].fill(255)),
        Reader::State,
        "state record discards a range that ends before it begins: (18446744073709551615, 3) to (1790000000000000005, 1)",
    );

    let [groups, extents] = checkpoint_parts().map(|part| part.encode());
    let entry = extents.windows(16).position(|window| window[..8] == ((OLD_EXTENT.0 >> 64) as u64).to_le_bytes()).unwrap();
    let group = groups.windows(16).position(|window| window[..8] == ((SEQUENCE_EXTENT.0 >> 64) as u64).to_le_bytes()).unwrap();
    row("checkpoint_none", vec![], Reader::Checkpoint, "checkpoint part is no valid flatbuffer");
    row("checkpoint_cut", extents[..extents.len() - 8].to_vec(), Reader::Checkpoint, "checkpoint part is no valid flatbuffer");
    row(
        "checkpoint_group_zero_id",
        with(&groups, |bytes| bytes[group..group + 16].fill(0)),
        Reader::Checkpoint,
        "checkpoint part with an id of zero",
    );
    row(
        "checkpoint_extent_zero_id",
        with(&extents, |bytes| bytes[entry..entry + 16].fill(0)),
        Reader::Checkpoint,
        "checkpoint part with an id of zero",
    );
    row(
        "checkpoint_extent_number_0",
        with(&extents, |bytes| put_u32_at(bytes, entry + 96, 0)),
        Reader::Checkpoint,
        "extent 30000000-0000-4000-8000-000000000003 has the number 0 in a checkpoint that gives 300 next",
    );
    row(
        "checkpoint_extent_number_next",
        with(&extents, |bytes| put_u32_at(bytes, entry + 96, 300)),
        Reader::Checkpoint,
        "extent 30000000-0000-4000-8000-000000000003 has the number 300 in a checkpoint that gives 300 next",
    );
    row(
        "checkpoint_extent_kind",
        with(&extents, |bytes| bytes[entry + 100] = 3),
        Reader::Checkpoint,
        "extent 30000000-0000-4000-8000-000000000003 is of the unknown kind 3",
    );
    row(
        "checkpoint_extent_state",
        with(&extents, |bytes| bytes[entry + 101] = 0),
        Reader::Checkpoint,
        "extent 30000000-0000-4000-8000-000000000003 is in the unknown state 0",
    );

    let footer = footer(64 << 10);
    let pages: Vec<_> = footer.chunks(PAGE_SIZE).collect();
    let page = |change: &dyn Fn(&mut Vec<u8>)| {
        with(pages[0], |bytes| {
            change(bytes);
            reseal_index_page(bytes);
        })
    };
    let sequence = Reader::Page(Section::Sequence);
    row("index_zeros", vec![0; PAGE_SIZE], sequence, "no such page of a footer: its magic number is 0x00000000");
    row(
        "index_bit",
        with(pages[0], |bytes| bytes[33] ^= 1),
        sequence,
        "checksum of the footer's page is 0x1744f96c, the page says 0xcd9d051f",
    );
    row(
        "index_bit_behind_entries",
        with(pages[0], |bytes| bytes[4095] ^= 1),
        sequence,
        "checksum of the footer's page is 0x3ff6861c, the page says 0xcd9d051f",
    );
    row("index_of_timers", pages[1].to_vec(), sequence, "page 0 of section 2 where page 0 of section 1 belongs");
    row("index_page_1", page(&|bytes| bytes[16] = 1), sequence, "page 1 of section 1 where page 0 of section 1 belongs");
    row(
        "index_stale",
        page(&|bytes| bytes[8] = 41),
        sequence,
        "footer page of segment 41 in segment 42: left from an older life of the file",
    );
    row(
        "index_foreign",
        page(&|bytes| bytes[24] ^= 1),
        sequence,
        "footer page of the log 0x8432c14b in the log 0x8432c14a: from another node, incarnation or shard",
    );
    row("index_reserved", page(&|bytes| bytes[5] = 1), sequence, "a reserved byte of the footer's page is not zero");
    row(
        "index_not_zero_behind_entries",
        page(&|bytes| bytes[4095] = 1),
        sequence,
        "a reserved byte of the footer's page is not zero",
    );
    row(
        "index_no_entries",
        page(&|bytes| bytes[6] = 0),
        sequence,
        "index page does not have the 0 entries in 39 bytes that it claims",
    );
    row(
        "index_too_few_entries",
        page(&|bytes| bytes[6] = 3),
        sequence,
        "index page does not have the 3 entries in 39 bytes that it claims",
    );
    row(
        "index_too_many_entries",
        page(&|bytes| bytes[6..8].fill(255)),
        sequence,
        "index page does not have the 65535 entries in 39 bytes that it claims",
    );
    row(
        "index_used_past_page",
        page(&|bytes| put_u32_at(bytes, 20, 4065)),
        sequence,
        "index page does not have the 4 entries in 4065 bytes that it claims",
    );
    row(
        "index_extent_number_0",
        page(&|bytes| bytes[32] = 0),
        sequence,
        "entry 0 of the index page is malformed or out of order",
    );
    row("index_count_0", page(&|bytes| bytes[34] = 0), sequence, "entry 0 of the index page is malformed or out of order");
    row(
        "directory_kind",
        with(pages[2], |bytes| {
            bytes[32 + 17] = 3;
            reseal_index_page(bytes);
        }),
        Reader::Page(Section::Directory),
        "entry 0 of the index page is malformed or out of order",
    );
    row(
        "directory_extent_zero",
        with(pages[2], |bytes| {
            bytes[33..49].fill(0);
            reseal_index_page(bytes);
        }),
        Reader::Page(Section::Directory),
        "entry 0 of the index page is malformed or out of order",
    );

    let trailer = |place: usize, value: u8| {
        with(pages[3], |bytes| {
            bytes[place] = value;
            reseal(bytes, 124);
        })
    };
    row("trailer_zeros", vec![0; PAGE_SIZE], Reader::Trailer, "no such page of a footer: its magic number is 0x00000000");
    row("trailer_is_index", pages[2].to_vec(), Reader::Trailer, "no such page of a footer: its magic number is 0x58444952");
    row(
        "trailer_bit",
        with(pages[3], |bytes| bytes[20] ^= 1),
        Reader::Trailer,
        "checksum of the footer's page is 0xe8ca9378, the page says 0xaf11106f",
    );
    row("trailer_version", trailer(4, 2), Reader::Trailer, "footer of format version 2: this program knows version 1");
    row(
        "trailer_stale",
        trailer(8, 41),
        Reader::Trailer,
        "footer page of segment 41 in segment 42: left from an older life of the file",
    );
    row(
        "trailer_foreign",
        trailer(16, 0),
        Reader::Trailer,
        "footer page of the log 0x8432c100 in the log 0x8432c14a: from another node, incarnation or shard",
    );
    row("trailer_reserved", trailer(123, 1), Reader::Trailer, "a reserved byte of the footer's page is not zero");
    row("trailer_footer_offset_no_page", trailer(32, 1), Reader::Trailer, "the trailer's places or counts contradict each other");
    row("trailer_data_behind_footer", trailer(42, 2), Reader::Trailer, "the trailer's places or counts contradict each other");
    row("trailer_blocks_backwards", trailer(57, 0), Reader::Trailer, "the trailer's places or counts contradict each other");
    row("trailer_no_directory", trailer(28, 0), Reader::Trailer, "the trailer's places or counts contradict each other");
    rows
}

#[test]
fn damaged_files_of_version_1_are_refused_for_what_is_wrong_with_them() {
    let rows = damaged();
    let samples: Vec<_> = rows.iter().map(|(name, bytes, ..)| ((*name).to_owned(), bytes.clone())).collect();
    compare("v1/damaged", &samples);
    let mut wrong = Vec::new();
    for (name, _, reader, expected) in &rows {
        let said = reader.problem(&golden(&format!("damaged/{name}")));
        if said.as_deref() != Some(*expected) {
            wrong.push(format!("{name}: {}", said.as_deref().unwrap_or("nothing wrong")));
        }
    }
    assert!(wrong.is_empty(), "files of which other things are said than the table expects:\n{}", wrong.join("\n"));
}
