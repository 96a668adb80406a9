//! `golden/v1/` pins the on-disk format byte for byte. A change there is a change of the format: it needs a version step and an
//! ADR. `ROOST_REGENERATE_GOLDEN=1` writes the files anew.

mod disk_samples;

use disk_samples::golden::{compare, golden};
use disk_samples::*;
use log_format::PAGE_SIZE;
use log_format::block::{Block, Run, RunKind};
use log_format::checkpoint::CheckpointPart;
use log_format::footer::{IndexPage, Section, SequenceEntry, TimerEntry, Trailer};
use log_format::ids::{DeliverAt, ExtentId, ExtentNumber, Timestamp};
use log_format::manifest;
use log_format::segment::SegmentHeader;
use log_format::state::StateChange;

#[test]
fn files_are_those_of_version_1() {
    let mut samples = vec![
        ("manifest".to_owned(), manifest_file()),
        ("segment".to_owned(), segment_file()),
        ("footer_of_many".to_owned(), footer_of_many()),
    ];
    for (index, part) in checkpoint_parts().iter().enumerate() {
        samples.push((format!("checkpoint_part_{index}"), part.encode()));
    }
    for (name, change) in state_changes() {
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        samples.push((format!("state_{name}"), bytes));
    }
    compare("v1", &samples);
}

#[test]
fn small_files_of_version_1_read_back() {
    let file = golden("manifest");
    let copy = manifest::choose(&file[..PAGE_SIZE], &file[PAGE_SIZE..]).unwrap();
    assert_eq!((copy.generation, copy.manifest), (7, disk_samples::manifest()));
    for (index, part) in checkpoint_parts().iter().enumerate() {
        assert_eq!(CheckpointPart::decode(&golden(&format!("checkpoint_part_{index}"))).as_ref(), Ok(part));
    }
    for (name, change) in state_changes() {
        assert_eq!(StateChange::decode(&golden(&format!("state_{name}"))), Ok(change));
    }
}

/// Reads a whole segment as recovery would, works its indexes out from its blocks, and compares them with its footer.
#[test]
fn the_segment_of_version_1_reads_back_and_its_footer_follows_from_its_blocks() {
    let file = golden("segment");
    let header = SegmentHeader::decode(&file).unwrap();
    assert_eq!(header, segment_header());
    let identity = header.identity();
    let trailer = Trailer::decode(&file[file.len() - PAGE_SIZE..], &identity).unwrap();
    assert_eq!(trailer.end(), file.len() as u64);

    let (mut sequence, mut timers, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut states, mut parts) = (Vec::new(), Vec::new());
    let mut place = PAGE_SIZE;
    while place < trailer.data_end as usize {
        let block = Block::decode(&file[place..], &identity).unwrap();
        numbers.push(block.header().number.0);
        for run in block.runs() {
            let head = *run.header();
            let offset = place as u64 + u64::from(run.offset());
            let alone = Run::decode(&file[offset as usize..]).unwrap();
            assert_eq!((alone.header(), alone.length()), (run.header(), run.length()), "a run reads alone as in its block");
            let extent = match head.extent_number {
                SEQUENCE_NUMBER => SEQUENCE_EXTENT,
                TIMER_NUMBER => TIMER_EXTENT,
                ExtentNumber(number) => ExtentId(u128::from(number)),
            };
            for record in run.records() {
                assert_eq!(record.verify(extent), Ok(()));
                match head.kind {
                    RunKind::Sequence => {}
                    RunKind::Timer => timers.push(TimerEntry {
                        extent: head.extent_number,
                        deliver_at: record.deliver_at,
                        seq: record.seq,
                        offset: place as u64 + u64::from(record.offset),
                        payload_length: record.payload.len() as u32,
                    }),
                    RunKind::State => states.push(StateChange::decode(record.payload).unwrap()),
                    RunKind::Checkpoint => parts.push(CheckpointPart::decode(record.payload).unwrap()),
                }
            }
            if head.kind == RunKind::Sequence {
                sequence.push(SequenceEntry {
                    extent: head.extent_number,
                    first_seq: head.first_seq,
                    count: u32::from(head.count),
                    append_time: head.append_time,
                    offset,
                    length: run.length() as u32,
                });
            }
        }
        place += block.header().length as usize;
    }
    assert_eq!(place as u64, trailer.data_end);
    assert_eq!(numbers, (1000..=1006).collect::<Vec<_>>());
    assert_eq!(parts, checkpoint_parts());
    assert_eq!(states, state_changes().into_iter().map(|(_, change)| change).collect::<Vec<_>>());
    timers.sort_by_key(TimerEntry::key);
    assert_eq!(sequence, sequence_entries());
    assert_eq!(timers, timer_entries());

    let read = |section, number| {
        let offset = trailer.page_offset(section, number) as usize;
        IndexPage::decode(&file[offset..], &identity, section, number).unwrap()
    };
    assert_eq!(read(Section::Sequence, 0), IndexPage::Sequence(sequence));
    assert_eq!(read(Section::Timer, 0), IndexPage::Timer(timers));
    let IndexPage::Directory(directory) = read(Section::Directory, 0) else { panic!("the directory is a directory") };
    assert_eq!(directory.len(), 2);
    assert_eq!((directory[0].first_seq.0, directory[0].last_seq.0, directory[0].entry_count), (101, 107, 4));
    assert_eq!((directory[1].first_seq.0, directory[1].last_seq.0, directory[1].entry_count), (1, 2, 2));
    assert_eq!((trailer.record_count, trailer.extent_count), (9, 2));
    assert!(trailer.append_time_min < trailer.append_time_max && trailer.append_time_min > Timestamp(0));
    assert!(timer_entries()[0].deliver_at > DeliverAt(0));
}
