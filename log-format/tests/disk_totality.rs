//! Any bytes give a value or an error, never a panic: random ones, and every bit flip and truncation of valid ones. And no flipped bit of
//! what a checksum covers goes unseen.

mod disk_samples;

use disk_samples::*;
use log_format::PAGE_SIZE;
use log_format::block::{Block, BlockError, Run, decode_block_header};
use log_format::checkpoint::CheckpointPart;
use log_format::footer::{IndexPage, Section, Trailer};
use log_format::ids::ExtentId;
use log_format::manifest;
use log_format::segment::SegmentHeader;
use log_format::state::StateChange;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const SECTIONS: [Section; 3] = [Section::Sequence, Section::Timer, Section::Directory];

/// Whether two blocks say the same, down to each record.
fn same(one: &Block<'_>, other: &Block<'_>) -> bool {
    one.header() == other.header()
        && one.runs().map(|run| *run.header()).eq(other.runs().map(|run| *run.header()))
        && one.runs().flat_map(|run| run.records()).eq(other.runs().flat_map(|run| run.records()))
}

/// Whether each record of a block of the samples is whole.
fn is_whole(block: &Block<'_>) -> bool {
    block.runs().all(|run| {
        let extent = match run.header().extent_number {
            SEQUENCE_NUMBER => SEQUENCE_EXTENT,
            TIMER_NUMBER => TIMER_EXTENT,
            _ => ExtentId(0),
        };
        run.records().all(|record| record.verify(extent).is_ok())
    })
}

/// Gives the bytes to every decoder.
fn decode_as_everything(bytes: &[u8]) {
    let _ = decode_block_header(bytes);
    if let Ok(block) = Block::decode(bytes, &identity()) {
        is_whole(&block);
    }
    if let Ok(run) = Run::decode(bytes) {
        assert!(run.length() <= bytes.len());
        assert_eq!(run.records().count(), usize::from(run.header().count));
        let _ = run.records().map(|record| record.verify(SEQUENCE_EXTENT)).last();
    }
    let _ = SegmentHeader::decode(bytes);
    let _ = StateChange::decode(bytes);
    let _ = CheckpointPart::decode(bytes);
    let _ = manifest::decode_copy(bytes);
    let _ = manifest::choose(bytes, bytes);
    if let Ok(trailer) = Trailer::decode(bytes, &identity()) {
        assert!(trailer.end() > trailer.footer_offset);
    }
    for section in SECTIONS {
        let _ = IndexPage::decode(bytes, &identity(), section, 0);
    }
}

/// Calls `check` with each bit of `bytes` flipped in turn.
fn for_each_flip(bytes: &[u8], mut check: impl FnMut(usize, &[u8])) {
    let mut flipped = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        flipped[bit / 8] ^= 1 << (bit % 8);
        check(bit, &flipped);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_flipped_bit_of_a_block_is_seen_in_the_block_or_in_the_record() {
    for (name, bytes) in blocks() {
        let good = Block::decode(&bytes, &identity()).unwrap();
        assert!(is_whole(&good), "{name}");
        let used = good.header().used as usize;
        for_each_flip(&bytes, |bit, flipped| match Block::decode(flipped, &identity()) {
            Ok(read) if bit / 8 >= used => assert!(same(&read, &good), "{name}: bit {bit} is padding"),
            Ok(read) => assert!(!is_whole(&read), "{name}: bit {bit} flipped unseen"),
            Err(_) => assert!(bit / 8 < used, "{name}: bit {bit} is padding"),
        });
    }
}

#[test]
fn a_flipped_payload_bit_costs_no_other_record() {
    let (_, bytes) = blocks().into_iter().find(|(name, _)| *name == "block_sequence").unwrap();
    let block = Block::decode(&bytes, &identity()).unwrap();
    let records: Vec<_> = block.runs().flat_map(|run| run.records()).collect();
    assert_eq!(records.len(), 4);
    for (index, record) in records.iter().enumerate() {
        let start = record.offset as usize + 12;
        for place in start..start + record.payload.len() {
            let flipped = with(&bytes, |bytes| bytes[place] ^= 1);
            let block = Block::decode(&flipped, &identity()).unwrap();
            let damaged: Vec<_> = block
                .runs()
                .flat_map(|run| run.records())
                .enumerate()
                .filter(|(_, record)| record.verify(SEQUENCE_EXTENT).is_err())
                .map(|(index, _)| index)
                .collect();
            assert_eq!(damaged, [index]);
        }
    }
}

#[test]
fn a_flipped_bit_of_a_page_is_seen_or_is_padding() {
    let file = segment_file();
    let header = &file[..PAGE_SIZE];
    for_each_flip(header, |bit, flipped| match SegmentHeader::decode(flipped) {
        Ok(read) => assert!(bit / 8 >= 68 && read == segment_header(), "bit {bit} flipped unseen"),
        Err(_) => assert!(bit / 8 < 68, "bit {bit} is padding"),
    });
    let copy = manifest().encode_copy(7);
    let end = 24 + u32_at(&copy[..], 16) as usize;
    for_each_flip(&copy[..], |bit, flipped| match manifest::decode_copy(flipped) {
        Ok(read) => assert!(bit / 8 >= end && read.manifest == manifest() && read.generation == 7, "bit {bit} flipped unseen"),
        Err(_) => assert!(bit / 8 < end, "bit {bit} is padding"),
    });
    let footer = footer(1 << 20);
    let pages: Vec<_> = footer.chunks(PAGE_SIZE).collect();
    for (section, page) in SECTIONS.into_iter().zip(&pages) {
        assert!(IndexPage::decode(page, &identity(), section, 0).is_ok());
        for_each_flip(page, |bit, flipped| {
            assert!(IndexPage::decode(flipped, &identity(), section, 0).is_err(), "{section:?}: bit {bit} flipped unseen");
        });
    }
    let trailer = Trailer::decode(pages[3], &identity()).unwrap();
    for_each_flip(pages[3], |bit, flipped| match Trailer::decode(flipped, &identity()) {
        Ok(read) => assert!(bit / 8 >= 128 && read == trailer, "bit {bit} flipped unseen"),
        Err(_) => assert!(bit / 8 < 128, "bit {bit} is padding"),
    });
}

/// Of these a record's checksum is the proof, so a flipped bit may well give another value; it must give some answer.
#[test]
fn flipped_bits_and_truncations_of_record_payloads_panic_nowhere() {
    let mut payloads: Vec<_> = checkpoint_parts().iter().map(CheckpointPart::encode).collect();
    for (_, change) in state_changes() {
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        for length in 0..bytes.len() {
            assert!(StateChange::decode(&bytes[..length]).is_err(), "{change:?} cut to {length}");
        }
        payloads.push(bytes);
    }
    for bytes in payloads {
        for_each_flip(&bytes, |_, flipped| decode_as_everything(flipped));
        for length in 0..bytes.len() {
            decode_as_everything(&bytes[..length]);
        }
    }
}

#[test]
fn truncations_are_refused() {
    for (name, bytes) in blocks() {
        for length in 0..bytes.len() {
            let cut = Block::decode(&bytes[..length], &identity()).map(|block| *block.header());
            assert!(matches!(cut, Err(BlockError::Short { .. })), "{name} cut to {length}");
        }
    }
    let (_, bytes) = blocks().into_iter().find(|(name, _)| *name == "block_commit").unwrap();
    for run in Block::decode(&bytes, &identity()).unwrap().runs() {
        let start = run.offset() as usize;
        for length in 0..run.length() {
            assert!(Run::decode(&bytes[start..start + length]).is_err(), "run at {start} cut to {length}");
        }
    }
    let file = segment_file();
    for length in 0..PAGE_SIZE {
        assert!(SegmentHeader::decode(&file[..length]).is_err());
        assert!(manifest::decode_copy(&manifest().encode_copy(7)[..length]).is_err());
        assert!(Trailer::decode(&file[file.len() - PAGE_SIZE..][..length], &identity()).is_err());
        for (section, page) in SECTIONS.into_iter().zip(footer(1 << 20).chunks(PAGE_SIZE)) {
            assert!(IndexPage::decode(&page[..length], &identity(), section, 0).is_err());
        }
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(2000)
    }
}

/// Changes of bytes: (place, value, how many bytes).
fn changes() -> impl Strategy<Value = Vec<(usize, u8, usize)>> {
    vec((any::<usize>(), any::<u8>(), 1..9usize), 0..6)
}

fn change(bytes: &mut [u8], changes: &[(usize, u8, usize)], range: std::ops::Range<usize>) {
    for &(place, value, length) in changes {
        let start = range.start + place % range.len();
        let end = (start + length).min(range.end);
        bytes[start..end].fill(value);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..5000)) {
        decode_as_everything(&bytes);
    }

    /// Behind the magic number and the checksum, where random bytes never come.
    #[test]
    fn changed_blocks(which in 0..7usize, header in changes(), runs in changes(), cut: usize) {
        let (_, mut bytes) = blocks().swap_remove(which);
        let used = (u32_at(&bytes, 36) as usize).max(65);
        change(&mut bytes, &header, 0..64);
        change(&mut bytes, &runs, 64..used);
        decode_as_everything(&bytes);
        decode_as_everything(&bytes[64..]);
        decode_as_everything(&bytes[..cut % bytes.len()]);
    }

    #[test]
    fn resealed_index_pages(which in 0..3usize, random: bool, changes in changes(), mut entries in vec(any::<u8>(), 4064), count: u8) {
        let mut page = footer(1 << 20)[which * PAGE_SIZE..][..PAGE_SIZE].to_vec();
        if random {
            // Small bytes are whole varints, so that many entries are read before one is refused.
            entries.iter_mut().for_each(|byte| *byte &= 0x8f);
            page[32..].copy_from_slice(&entries);
            page[6] = count;
            put_u32_at(&mut page, 20, 4064);
        } else {
            change(&mut page, &changes, 5..200);
        }
        reseal_index_page(&mut page);
        decode_as_everything(&page);
    }

    #[test]
    fn resealed_trailers_and_headers(changes in changes()) {
        let mut trailer = footer(1 << 20)[3 * PAGE_SIZE..].to_vec();
        change(&mut trailer, &changes, 4..124);
        reseal(&mut trailer, 124);
        decode_as_everything(&trailer);
        let mut header = segment_file()[..PAGE_SIZE].to_vec();
        change(&mut header, &changes, 4..64);
        reseal(&mut header, 64);
        decode_as_everything(&header);
    }

    #[test]
    fn resealed_manifests(changes in changes()) {
        let mut copy = manifest().encode_copy(7).to_vec();
        let end = 24 + u32_at(&copy, 16) as usize;
        change(&mut copy, &changes, 24..end);
        reseal_manifest(&mut copy);
        decode_as_everything(&copy);
    }

    #[test]
    fn changed_checkpoint_parts(which in 0..2usize, changes in changes(), cut: usize) {
        let mut bytes = checkpoint_parts()[which].encode();
        let length = bytes.len();
        change(&mut bytes, &changes, 0..length);
        decode_as_everything(&bytes);
        decode_as_everything(&bytes[..cut % length]);
    }
}
