//! The decision table of docs/format.md, section 8: a test a row, over the simulated disk.

mod support;

use std::path::{Path, PathBuf};

use log_format::PAGE_SIZE;
use log_format::block::{Block, BlockBuilder, BlockHeader, BlockSeal, RunKind, RunStart};
use log_format::footer::Trailer;
use log_format::ids::{BlockNumber, DeliverAt, ExtentId, ExtentNumber, Op, Seq, Timestamp};
use log_format::segment::SegmentHeader;
use log_format::wire::Refusal;
use node_io::sim::{Sim, SimRuntime};
use node_io::{File, IoBuf, OpenOptions, Runtime};
use storage_node::{RecoveryError, Shard};
use support::{DIR, append, create, open, options, payload, read, read_all};

const EXTENTS: u128 = 3;

/// A shard with records over several segments, killed: its last segment is not closed.
struct Log {
    sim: Sim,
    /// The payloads of each extent.
    expected: Vec<Vec<Vec<u8>>>,
}

fn build(seed: u64, rounds: u64) -> Log {
    let sim = Sim::new(seed);
    let runtime = sim.node(0);
    let mut expected = vec![Vec::new(); EXTENTS as usize];
    sim.block_on(0, async {
        let shard = open(runtime).await;
        for extent in 1..=EXTENTS {
            create(&shard, extent).await;
        }
        for index in 0..rounds {
            let extent = u128::from(index) % EXTENTS;
            append(&shard, extent + 1, &[payload(index)]).await.expect("appended");
            expected[extent as usize].push(payload(index));
        }
        // Footers of the segments before are on the device.
        while shard.status().counters.segments_closed + 1 < shard.status().segments {
            shard_pause(&sim).await;
        }
    });
    sim.kill(0);
    Log { sim, expected }
}

async fn shard_pause(sim: &Sim) {
    // The node is up: this is a handle to the same life.
    let runtime = sim.node(0);
    runtime.sleep(std::time::Duration::from_millis(1)).await;
}

impl Log {
    /// Runs `test` on a new life of the machine.
    fn on<T>(&self, test: impl AsyncFnOnce(SimRuntime) -> T) -> T {
        let runtime = self.sim.node(0);
        let result = self.sim.block_on(0, test(runtime));
        self.sim.kill(0);
        result
    }

    fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let names = self.sim.list_dir(0, Path::new(DIR));
        let names = names.into_iter().filter(|name| name.to_string_lossy().contains(prefix));
        names.map(|name| Path::new(DIR).join(name.file_name().unwrap_or(name.as_os_str()))).collect()
    }

    fn content(&self, path: &Path) -> Vec<u8> {
        self.sim.read_file(0, path).expect("the file is there")
    }

    /// The current blocks of a segment, with their offsets.
    fn blocks(&self, path: &Path) -> Vec<(u64, BlockHeader)> {
        let content = self.content(path);
        let Ok(header) = SegmentHeader::decode(&content) else { return Vec::new() };
        let mut blocks = Vec::new();
        let mut offset = PAGE_SIZE;
        while let Ok(block) = Block::decode(content.get(offset..).unwrap_or_default(), &header.identity()) {
            blocks.push((offset as u64, *block.header()));
            offset += block.header().length as usize;
        }
        blocks
    }

    /// Segments with blocks, oldest first.
    fn used(&self) -> Vec<PathBuf> {
        self.files("segment-").into_iter().filter(|path| !self.blocks(path).is_empty()).collect()
    }

    fn last_segment(&self) -> PathBuf {
        self.used().pop().expect("there are blocks")
    }

    fn zero(&self, path: &Path, offset: u64, length: usize) {
        assert!(self.sim.overwrite(0, path, offset, &vec![0; length]));
    }

    fn flip(&self, path: &Path, offset: u64) {
        assert!(self.sim.corrupt(0, path, offset, 3));
    }

    fn check_all(&self) {
        self.on(async |runtime| {
            let shard = open(runtime).await;
            for (index, expected) in self.expected.iter().enumerate() {
                assert_eq!(&read_all(&shard, index as u128 + 1).await, expected);
            }
            assert!(shard.damage().is_empty(), "{:?}", shard.damage());
            append(&shard, 1, &[payload(7)]).await.expect("it takes appends");
        });
    }

    /// The extent and seq of the first record of the block at `offset`.
    fn first_record(&self, path: &Path, offset: u64) -> (u128, Seq) {
        let content = self.content(path);
        let identity = SegmentHeader::decode(&content).expect("whole").identity();
        let block = Block::decode(&content[offset as usize..], &identity).expect("current");
        let run = block.runs().find(|run| run.header().kind == RunKind::Sequence).expect("a run of records");
        (u128::from(run.header().extent_number.0), run.header().first_seq)
    }
}

/// A log of several segments; the last one has blocks enough to damage one in the middle.
fn several_segments() -> Log {
    let log = build(11, 1200);
    assert!(log.used().len() >= 2, "{:?}", log.used());
    assert!(log.blocks(&log.last_segment()).len() >= 8);
    log
}

#[test]
fn an_unclosed_segment_is_replayed() {
    let log = several_segments();
    let content = log.content(&log.last_segment());
    let identity = SegmentHeader::decode(&content).expect("whole").identity();
    assert!(Trailer::decode(&content[content.len() - PAGE_SIZE..], &identity).is_err(), "it is not closed");
    log.check_all();
}

#[test]
fn an_end_that_nothing_proves_is_cut() {
    // A torn end: the last block's last page did not get there; and a last block whose header holds, but not a record.
    for torn in [true, false] {
        let log = several_segments();
        let path = log.last_segment();
        let blocks = log.blocks(&path);
        let (offset, header) = *blocks.last().expect("blocks");
        let (extent, seq) = log.first_record(&path, offset);
        if torn {
            log.zero(&path, offset + u64::from(header.length) - 4096, 4096);
        } else {
            log.flip(&path, offset + 64 + 32 + 12);
        }
        log.on(async |runtime| {
            let shard = open(runtime).await;
            assert!(shard.damage().is_empty());
            let left = read_all(&shard, extent).await;
            assert_eq!(left.len() as u64, seq.0 - 1, "all before the torn block is there");
            assert_eq!(left[..], log.expected[extent as usize - 1][..left.len()]);
            assert_eq!(append(&shard, extent, &[payload(1)]).await, Ok(seq), "its seq is given again: it was never acked");
        });
    }
}

#[test]
fn a_hole_among_parallel_writes_is_cut_with_what_lies_behind() {
    let log = several_segments();
    let path = log.last_segment();
    let (offset, last) = *log.blocks(&path).last().expect("blocks");
    let identity = SegmentHeader::decode(&log.content(&path)).expect("whole").identity();
    // Block last + 1 is lost on its way, block last + 2 arrived: it was built when `last` was the last one known to be there.
    let mut block = vec![0; 4096];
    let mut builder = BlockBuilder::new();
    let start = RunStart {
        extent_number: ExtentNumber(1),
        extent: ExtentId(1),
        kind: RunKind::Sequence,
        first_seq: Seq(log.expected[0].len() as u64 + 1),
        op: Op(10_000),
        append_time: Timestamp(1),
    };
    builder.begin_run(&mut block, &start);
    builder.push_record(&mut block, b"never acked", log_format::payload_checksum(b"never acked"), DeliverAt(0), true);
    let number = BlockNumber(last.number.0 + 2);
    builder.finish(
        &mut block,
        &BlockSeal { segment: identity.segment, log_id: identity.log_id, number, committed: last.number, checkpoint: false },
    );
    assert!(log.sim.overwrite(0, &path, offset + u64::from(last.length) + 4096, &block));
    log.check_all();
}

#[test]
fn a_block_that_is_gone_but_proven_is_damage() {
    // Its header is gone; its length lies: both are seen by the checksum, and later blocks prove that it was acked.
    for (field, what) in [(0, "magic"), (32, "length")] {
        let log = several_segments();
        let path = log.last_segment();
        let blocks = log.blocks(&path);
        let (offset, header) = blocks[blocks.len() / 2];
        let (extent, seq) = log.first_record(&path, offset);
        log.flip(&path, offset + field + 1);
        let before: Vec<_> = log.used().iter().map(|path| log.content(path)).collect();
        log.on(async |runtime| {
            let shard = open(runtime).await;
            let damage = shard.damage();
            assert_eq!(damage.len(), 1, "{what}: {damage:?}");
            assert_eq!((damage[0].first, damage[0].last, damage[0].offset), (header.number, header.number, offset));
            assert_eq!(read(&shard, extent, seq.0).await, Err(Refusal::Corrupt { seq }));
            let behind = seq.0 + 1;
            let next = read(&shard, extent, behind).await.expect("what lies behind is served");
            assert_eq!(next.payload[..next.entries[0].length as usize], log.expected[extent as usize - 1][behind as usize - 1]);
            assert!(matches!(append(&shard, extent, &[payload(1)]).await, Err(Refusal::ReadOnly { .. })), "it does not pretend");
        });
        let after: Vec<_> = log.used().iter().map(|path| log.content(path)).collect();
        assert!(before == after, "nothing of the log was changed");
    }
}

#[test]
fn a_damaged_record_below_the_committed_point_costs_that_record_only() {
    let log = several_segments();
    let path = log.last_segment();
    let blocks = log.blocks(&path);
    let (offset, seq, extent) = blocks[2..]
        .iter()
        .map(|(offset, _)| (*offset, log.first_record(&path, *offset)))
        .find_map(|(offset, (extent, seq))| {
            let long = log.expected[extent as usize - 1][seq.0 as usize - 1].len() > 100;
            long.then_some((offset, seq, extent))
        })
        .expect("a record with bytes");
    log.flip(&path, offset + 64 + 32 + 12 + 50);
    log.on(async |runtime| {
        let shard = open(runtime).await;
        assert_eq!(read(&shard, extent, seq.0).await, Err(Refusal::Corrupt { seq }));
        assert!(read(&shard, extent, seq.0 + 1).await.is_ok());
        let before = read(&shard, extent, seq.0 - 1).await.expect("what stands before it");
        assert_eq!(before.entries.len(), 1, "a batch ends at the damage");
        append(&shard, extent, &[payload(1)]).await.expect("it takes appends");
    });
}

#[test]
fn a_damaged_header_page_is_made_good_by_name_and_manifest() {
    let log = several_segments();
    for path in log.used() {
        log.flip(&path, 16);
    }
    // The test's own reader needs the header; the shard does not.
    log.on(async |runtime| {
        let shard = open(runtime).await;
        for (index, expected) in log.expected.iter().enumerate() {
            assert_eq!(&read_all(&shard, index as u128 + 1).await, expected);
        }
    });
}

fn closed_segment(log: &Log) -> (PathBuf, Trailer) {
    let path = log.used().remove(0);
    let content = log.content(&path);
    let identity = SegmentHeader::decode(&content).expect("whole").identity();
    (path, Trailer::decode(&content[content.len() - PAGE_SIZE..], &identity).expect("closed"))
}

#[test]
fn a_damaged_trailer_or_directory_is_made_good_from_the_blocks() {
    for directory in [false, true] {
        let log = several_segments();
        let (path, trailer) = closed_segment(&log);
        let size = log.content(&path).len() as u64;
        let pages = u64::from(trailer.sequence_pages + trailer.timer_pages);
        log.flip(&path, if directory { trailer.footer_offset + pages * 4096 + 40 } else { size - 4096 + 40 });
        log.check_all();
    }
}

#[test]
fn a_damaged_index_page_is_made_good_from_the_blocks_when_it_is_read() {
    let log = several_segments();
    let (path, trailer) = closed_segment(&log);
    for page in 0..u64::from(trailer.sequence_pages) {
        log.flip(&path, trailer.footer_offset + page * 4096 + 50);
    }
    log.check_all();
}

#[test]
fn a_damaged_newest_checkpoint_gives_way_to_the_one_before() {
    let log = several_segments();
    // Not its header, which names the block: a bit of the checkpoint itself.
    log.flip(&log.last_segment(), 4096 + 64 + 32 + 12 + 20);
    log.check_all();
}

#[test]
fn without_any_checkpoint_the_start_is_refused_and_nothing_changes() {
    let log = several_segments();
    for path in log.used() {
        log.flip(&path, 4096 + 64 + 32 + 12 + 20);
    }
    let before: Vec<_> = log.used().iter().map(|path| log.content(path)).collect();
    log.on(async |runtime| {
        let refused = Shard::open(runtime, Path::new(DIR), options()).await;
        assert!(matches!(refused, Err(RecoveryError::NoCheckpoint { .. })), "{:?}", refused.err());
    });
    let after: Vec<_> = log.used().iter().map(|path| log.content(path)).collect();
    assert!(before == after);
}

async fn make_file(runtime: &SimRuntime, name: &str, size: u64, first_page: Option<&[u8]>) {
    let path = Path::new(DIR).join(name);
    let file = runtime.open(&path, OpenOptions { create_new: true, ..OpenOptions::default() }).await.expect("made");
    file.set_size(size).await.expect("sized");
    if let Some(bytes) = first_page {
        let mut page = file.allocate(bytes.len());
        page.as_mut_slice().copy_from_slice(bytes);
        file.write_at(page, bytes.len(), 0).await.0.expect("written");
    }
    file.sync().await.expect("synced");
    runtime.sync_dir(Path::new(DIR)).await.expect("synced");
}

#[test]
fn files_without_blocks_are_normal_and_unknown_ones_are_left_alone() {
    let log = several_segments();
    let segment_size = options().segment_size;
    let mut foreign = vec![0; PAGE_SIZE];
    let foreign_header = SegmentHeader {
        segment: log_format::ids::SegmentId(0x51),
        node: log_format::ids::NodeId(99),
        incarnation: log_format::ids::Incarnation(1),
        shard: log_format::ids::ShardIndex(0),
        segment_size,
        prepared_at: Timestamp(0),
    };
    foreign_header.encode(&mut foreign);
    log.on(async |runtime| {
        make_file(&runtime, "segment-0000000000000050.seg", 0, None).await;
        make_file(&runtime, "segment-0000000000000051.seg", segment_size, Some(&foreign)).await;
        make_file(&runtime, "segment-0000000000000052.seg", segment_size, None).await;
        make_file(&runtime, "spare-0000000000000053.seg", 12_288, None).await;
        make_file(&runtime, "lost+found", 4096, None).await;
        make_file(&runtime, "segment-54.seg", 4096, None).await;
    });
    log.check_all();
    let names = log.files("");
    let has = |wanted: &str| names.iter().any(|name| name.ends_with(wanted));
    assert!(has("lost+found") && has("segment-54.seg"), "what is not understood stays: {names:?}");
    assert!(has("segment-0000000000000051.seg"), "a foreign segment stays: {names:?}");
    assert!(!has("segment-0000000000000050.seg") && !has("spare-0000000000000053.seg"), "{names:?}");
    let newest = log.used().into_iter().rfind(|path| !path.ends_with("segment-0000000000000051.seg")).expect("used");
    assert!(newest > Path::new(DIR).join("segment-0000000000000053.seg"), "ids go on behind all that were seen: {newest:?}");
}

#[test]
fn a_block_at_or_above_a_later_segments_first_was_never_part_of_the_log() {
    let log = several_segments();
    let path = log.last_segment();
    let old = log.content(&path);
    let blocks = log.blocks(&path);
    let (offset, last) = *blocks.last().expect("blocks");
    // The last block is torn, a new life goes on without it and gives its seq to another record.
    let (extent, seq) = log.first_record(&path, offset);
    log.flip(&path, offset + 64 + 32 + 12);
    log.on(async |runtime| {
        let shard = open(runtime).await;
        assert_eq!(append(&shard, extent, &[b"of the second life".to_vec()]).await, Ok(seq));
    });
    // Then the old block comes back whole, as from a write that the device had kept back.
    log.on(async |runtime| {
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let file = runtime.open(&path, options).await.expect("opened");
        file.set_size(old.len() as u64).await.expect("sized");
    });
    assert!(log.sim.overwrite(0, &path, 0, &old));
    assert_eq!(log.blocks(&path).last().map(|(_, header)| header.number), Some(last.number));
    log.on(async |runtime| {
        let shard = open(runtime).await;
        let batch = read(&shard, extent, seq.0).await.expect("readable");
        assert_eq!(batch.payload, b"of the second life");
    });
}

#[test]
fn a_crash_at_any_point_of_the_second_start_is_like_the_first() {
    for seed in 0..40 {
        let log = build(seed, 400);
        for _ in 0..4 {
            let runtime = log.sim.node(0);
            let opening = runtime.spawn({
                let runtime = runtime.clone();
                async move { drop(open(runtime).await) }
            });
            drop(opening);
            log.sim.run_for(std::time::Duration::from_micros(log.sim.random_u64() % 30_000));
            log.sim.crash(0);
        }
        log.check_all();
    }
}
