//! Builds a block in place, in a buffer that belongs to somebody else.
//!
//! The builder keeps numbers only: each call is given the buffer, which must be the same one from [`BlockBuilder::reset`] to
//! [`BlockBuilder::finish`]. Misuse (no space, records out of order) is a bug of the caller and panics. Once its two vectors have grown to
//! the size of the usual block, nothing is allocated; each payload is copied once and never read otherwise.

use super::{
    BLOCK_HEADER_SIZE, END_OF_OP, FLAG_CHECKPOINT, MAGIC, RUN_COUNT_MAX, RUN_HEADER_SIZE, RunKind, check_behind_extent, header,
    record, run,
};
use crate::codec::{put_u16, put_u32, put_u64};
use crate::ids::{BlockNumber, DeliverAt, ExtentId, ExtentNumber, Op, SegmentId, Seq, Timestamp};
use crate::{BLOCK_SIZE_MAX, FORMAT_VERSION, PAGE_SIZE, RECORD_SIZE_MAX};

/// What a run begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunStart {
    /// The shard's number for the extent; 0 for checkpoint runs.
    pub extent_number: ExtentNumber,
    /// The extent, which the records' checks bind; zero for checkpoint runs.
    pub extent: ExtentId,
    /// What the records are.
    pub kind: RunKind,
    /// The first record's seq; 0 for state runs, the part's index for checkpoint runs.
    pub first_seq: Seq,
    /// The first record's op.
    pub op: Op,
    /// When the records were appended.
    pub append_time: Timestamp,
}

/// What a block's header says besides what the builder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSeal {
    /// The segment that the block goes to.
    pub segment: SegmentId,
    /// The log of that segment ([`crate::segment::log_id`]).
    pub log_id: u32,
    /// The block's number.
    pub number: BlockNumber,
    /// The last block known to be on the device, with all before it.
    pub committed: BlockNumber,
    /// Whether this is a checkpoint block: then all its runs are checkpoint runs, else none is.
    pub checkpoint: bool,
}

/// The run that takes records now.
#[derive(Clone, Copy, Debug)]
struct OpenRun {
    start: RunStart,
    offset: usize,
    count: usize,
    /// The op of the next record.
    next_op: u64,
    /// The last record ended its op.
    ended: bool,
    extent_crc: u32,
}

/// Builds blocks, one after the other.
#[derive(Debug)]
pub struct BlockBuilder {
    used: usize,
    record_count: usize,
    run_offsets: Vec<u32>,
    /// The records' checks as they enter the block's crc.
    checks: Vec<u8>,
    open: Option<OpenRun>,
    /// Some run is a checkpoint run; some run is not.
    has_checkpoint: bool,
    has_other: bool,
}

impl Default for BlockBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockBuilder {
    /// A builder with an empty block.
    pub fn new() -> Self {
        Self {
            used: BLOCK_HEADER_SIZE,
            record_count: 0,
            run_offsets: Vec::new(),
            checks: Vec::new(),
            open: None,
            has_checkpoint: false,
            has_other: false,
        }
    }

    /// Starts over with an empty block; the memory is kept.
    pub fn reset(&mut self) {
        self.used = BLOCK_HEADER_SIZE;
        self.record_count = 0;
        self.run_offsets.clear();
        self.checks.clear();
        self.open = None;
        self.has_checkpoint = false;
        self.has_other = false;
    }

    /// Whether there is no run yet.
    pub fn is_empty(&self) -> bool {
        self.run_offsets.is_empty()
    }

    /// Bytes used so far, header and all.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes that the block would be long now: [`Self::used`] rounded up to whole pages.
    pub fn length(&self) -> usize {
        self.used.next_multiple_of(PAGE_SIZE)
    }

    /// Runs so far.
    pub fn run_count(&self) -> usize {
        self.run_offsets.len()
    }

    /// Records so far.
    pub fn record_count(&self) -> usize {
        self.record_count
    }

    /// Whether the last run can take the first record of `start` without a new run header: the same extent, kind and append time, the next
    /// seq, the next op, and room in its count. A whole op of n records fits only if [`Self::room`] is at least n.
    pub fn continues(&self, start: &RunStart) -> bool {
        let Some(open) = &self.open else { return false };
        let same = open.start.extent_number == start.extent_number
            && open.start.extent == start.extent
            && open.start.kind == start.kind
            && open.start.append_time == start.append_time;
        let seq_follows = match start.kind {
            RunKind::Sequence | RunKind::Timer => start.first_seq.0 == open.start.first_seq.0.saturating_add(open.count as u64),
            RunKind::State => start.first_seq == Seq(0),
            RunKind::Checkpoint => false,
        };
        same && seq_follows && open.ended && open.next_op == start.op.0 && open.count < RUN_COUNT_MAX
    }

    /// How many more records the last run can take; 0 if there is none.
    pub fn room(&self) -> usize {
        self.open.as_ref().map_or(0, |open| RUN_COUNT_MAX - open.count)
    }

    /// Begins a run; gives the offset of its header in the block.
    ///
    /// # Panics
    /// If it does not fit into `buf`, if the run before has no record, or if the numbers do not go with the kind (docs/format.md).
    pub fn begin_run(&mut self, buf: &mut [u8], start: &RunStart) -> u32 {
        assert!(self.open.is_none_or(|open| open.count > 0), "a run has at least one record");
        match start.kind {
            RunKind::Sequence | RunKind::Timer => assert!(start.first_seq > Seq(0), "seqs begin at 1"),
            RunKind::State => assert!(start.first_seq == Seq(0), "state runs have no seq"),
            RunKind::Checkpoint => assert!(start.extent == ExtentId(0), "checkpoint runs belong to no extent"),
        }
        let is_checkpoint = start.kind == RunKind::Checkpoint;
        assert!(is_checkpoint == (start.extent_number == ExtentNumber(0)), "extents' numbers begin at 1");
        let offset = self.used;
        let end = offset + RUN_HEADER_SIZE;
        assert!(end <= buf.len().min(BLOCK_SIZE_MAX), "the run's header fits into the block");
        let bytes = &mut buf[offset..end];
        put_u32(bytes, run::EXTENT_NUMBER, start.extent_number.0);
        put_u16(bytes, run::COUNT, 0);
        bytes[run::KIND] = start.kind as u8;
        bytes[run::RESERVED] = 0;
        put_u64(bytes, run::FIRST_SEQ, start.first_seq.0);
        put_u64(bytes, run::OP, start.op.0);
        put_u64(bytes, run::APPEND_TIME, start.append_time.0);
        self.run_offsets.push(offset as u32);
        self.used = end;
        self.has_checkpoint |= is_checkpoint;
        self.has_other |= !is_checkpoint;
        self.open = Some(OpenRun {
            start: *start,
            offset,
            count: 0,
            next_op: start.op.0,
            ended: false,
            extent_crc: crc32c::crc32c(&start.extent.to_bytes()),
        });
        offset as u32
    }

    /// Adds a record to the last run: its seq is the run's first plus its index. Gives the offset of its header in the block.
    /// `payload_checksum` is taken as it is ([`crate::payload_checksum`]). `end_of_op` marks the last record of its op, over all its runs.
    ///
    /// # Panics
    /// If there is no run, it is full, the record does not fit into `buf` or is greater than [`RECORD_SIZE_MAX`], or if
    /// `deliver_at` is not 0 outside timer runs.
    pub fn push_record(
        &mut self,
        buf: &mut [u8],
        payload: &[u8],
        payload_checksum: u32,
        deliver_at: DeliverAt,
        end_of_op: bool,
    ) -> u32 {
        let open = self.open.as_mut().expect("a run was begun");
        let kind = open.start.kind;
        assert!(open.count < RUN_COUNT_MAX, "the run has room for the record");
        assert!(payload.len() <= RECORD_SIZE_MAX, "the payload is not greater than a record may be");
        assert!(kind == RunKind::Timer || deliver_at == DeliverAt(0), "only timer records have a delivery time");
        let offset = self.used;
        let header_size = kind.record_header_size();
        let end = offset + header_size + payload.len();
        assert!(end <= buf.len().min(BLOCK_SIZE_MAX), "the record fits into the block");

        let seq = Seq(open.start.first_seq.0.checked_add(open.count as u64).expect("seqs of one extent never reach 2^64"));
        let length_field = payload.len() as u32 | if end_of_op { END_OF_OP } else { 0 };
        let check = check_behind_extent(open.extent_crc, seq, deliver_at, length_field, payload_checksum);
        let bytes = &mut buf[offset..end];
        put_u32(bytes, record::LENGTH, length_field);
        put_u32(bytes, record::PAYLOAD_CHECKSUM, payload_checksum);
        put_u32(bytes, record::CHECK, check);
        if kind == RunKind::Timer {
            put_u64(bytes, record::DELIVER_AT, deliver_at.0);
        }
        bytes[header_size..].copy_from_slice(payload);

        open.count += 1;
        open.ended = end_of_op;
        if end_of_op {
            open.next_op = open.next_op.checked_add(1).expect("ops of one group never reach 2^64");
        }
        put_u16(buf, open.offset + run::COUNT, open.count as u16);
        self.checks.extend_from_slice(&check.to_le_bytes());
        self.record_count += 1;
        self.used = end;
        offset as u32
    }

    #[cfg(test)]
    pub(super) fn capacities(&self) -> (usize, usize) {
        (self.run_offsets.capacity(), self.checks.capacity())
    }

    /// Ends the block: zeroes what is behind its runs, writes the header. Gives the block's length. The builder must be
    /// [reset](Self::reset) before the next block.
    ///
    /// # Panics
    /// If the whole pages do not fit into `buf`, the last run has no record, or the runs do not go with `seal.checkpoint`.
    pub fn finish(&mut self, buf: &mut [u8], seal: &BlockSeal) -> usize {
        assert!(self.open.is_none_or(|open| open.count > 0), "a run has at least one record");
        assert!(
            if seal.checkpoint { !self.has_other } else { !self.has_checkpoint },
            "a checkpoint block has checkpoint runs only"
        );
        assert!(seal.committed < seal.number, "blocks before this one only can be committed");
        let length = self.length();
        assert!(length <= buf.len(), "the block's pages fit into the buffer");
        buf[self.used..length].fill(0);
        let bytes = &mut buf[..BLOCK_HEADER_SIZE];
        put_u32(bytes, header::MAGIC, MAGIC);
        put_u16(bytes, header::VERSION, FORMAT_VERSION);
        put_u16(bytes, header::FLAGS, if seal.checkpoint { FLAG_CHECKPOINT } else { 0 });
        put_u64(bytes, header::SEGMENT, seal.segment.0);
        put_u64(bytes, header::NUMBER, seal.number.0);
        put_u64(bytes, header::COMMITTED, seal.committed.0);
        put_u32(bytes, header::LENGTH, length as u32);
        put_u32(bytes, header::USED, self.used as u32);
        put_u32(bytes, header::RUN_COUNT, self.run_offsets.len() as u32);
        put_u32(bytes, header::RECORD_COUNT, self.record_count as u32);
        put_u32(bytes, header::LOG_ID, seal.log_id);
        put_u64(bytes, header::RESERVED, 0);
        let mut crc = crc32c::crc32c(&buf[..header::CRC]);
        for &offset in &self.run_offsets {
            crc = crc32c::crc32c_append(crc, &buf[offset as usize..offset as usize + RUN_HEADER_SIZE]);
        }
        crc = crc32c::crc32c_append(crc, &self.checks);
        put_u32(buf, header::CRC, crc);
        length
    }
}

/// Bytes that new runs take for records of these payload lengths: one run header for every [`RUN_COUNT_MAX`] records begun, and the
/// records with their headers. Saturates.
pub fn run_space(kind: RunKind, payload_lengths: impl Iterator<Item = usize>) -> usize {
    let mut space = RUN_HEADER_SIZE;
    let mut count = 0;
    for length in payload_lengths {
        if count == RUN_COUNT_MAX {
            space = space.saturating_add(RUN_HEADER_SIZE);
            count = 0;
        }
        space = space.saturating_add(kind.record_header_size()).saturating_add(length);
        count += 1;
    }
    space
}
