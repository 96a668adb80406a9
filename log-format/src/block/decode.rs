//! Reads blocks, runs and records where they lie, without copying. Total: any bytes give a value or an error.

use std::iter::FusedIterator;

use super::{
    BLOCK_HEADER_SIZE, BlockError, END_OF_OP, FLAG_CHECKPOINT, LENGTH_MASK, MAGIC, RECORD_HEADER_SIZE, RUN_HEADER_SIZE,
    RecordDamage, RunKind, RunProblem, header, record, record_check, run,
};
use crate::codec::{get_u16, get_u32, get_u64, is_page_multiple, is_zero};
use crate::ids::{BlockNumber, DeliverAt, ExtentId, ExtentNumber, Op, SegmentId, Seq, Timestamp};
use crate::{BLOCK_SIZE_MAX, FORMAT_VERSION, RECORD_SIZE_MAX};

/// What blocks, index pages and trailers must carry to belong to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The segment.
    pub segment: SegmentId,
    /// The log that the segment belongs to ([`crate::segment::log_id`]).
    pub log_id: u32,
}

/// A block's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The segment that the block was written to.
    pub segment: SegmentId,
    /// The block's number in the shard.
    pub number: BlockNumber,
    /// The last block known to be on the device, with all before it, when this one was built.
    pub committed: BlockNumber,
    /// The block's length: whole pages.
    pub length: u32,
    /// The end of its last run.
    pub used: u32,
    /// Its runs.
    pub run_count: u32,
    /// Its records, over all runs.
    pub record_count: u32,
    /// The log that it belongs to.
    pub log_id: u32,
    /// Whether it holds checkpoint runs.
    pub checkpoint: bool,
}

/// Reads a block's header from the first 64 of `bytes`. All lengths are within their bounds then; the crc, which needs the whole
/// block, is not checked, and neither is whose block it is.
pub fn decode_block_header(bytes: &[u8]) -> Result<BlockHeader, BlockError> {
    let bytes = bytes.get(..BLOCK_HEADER_SIZE).ok_or(BlockError::Short { needed: BLOCK_HEADER_SIZE, got: bytes.len() })?;
    let magic = get_u32(bytes, header::MAGIC);
    if magic != MAGIC {
        return Err(BlockError::Magic { found: magic });
    }
    let version = get_u16(bytes, header::VERSION);
    if version != FORMAT_VERSION {
        return Err(BlockError::Version { found: version });
    }
    let flags = get_u16(bytes, header::FLAGS);
    if flags & !FLAG_CHECKPOINT != 0 || !is_zero(&bytes[header::RESERVED..header::CRC]) {
        return Err(BlockError::Reserved);
    }
    let block = BlockHeader {
        segment: SegmentId(get_u64(bytes, header::SEGMENT)),
        number: BlockNumber(get_u64(bytes, header::NUMBER)),
        committed: BlockNumber(get_u64(bytes, header::COMMITTED)),
        length: get_u32(bytes, header::LENGTH),
        used: get_u32(bytes, header::USED),
        run_count: get_u32(bytes, header::RUN_COUNT),
        record_count: get_u32(bytes, header::RECORD_COUNT),
        log_id: get_u32(bytes, header::LOG_ID),
        checkpoint: flags & FLAG_CHECKPOINT != 0,
    };
    let least_used = BLOCK_HEADER_SIZE as u64
        + u64::from(block.run_count) * RUN_HEADER_SIZE as u64
        + u64::from(block.record_count) * RECORD_HEADER_SIZE as u64;
    let possible = block.length > 0
        && is_page_multiple(u64::from(block.length))
        && block.length as usize <= BLOCK_SIZE_MAX
        && block.used <= block.length
        && block.run_count <= block.record_count
        && least_used <= u64::from(block.used);
    if !possible {
        let BlockHeader { length, used, run_count, record_count, .. } = block;
        return Err(BlockError::Length { length, used, run_count, record_count });
    }
    if block.committed >= block.number {
        return Err(BlockError::Number { number: block.number, committed: block.committed });
    }
    Ok(block)
}

/// A current block: one whose header, run headers and list of checks are as they were written. Its records may still be damaged.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    header: BlockHeader,
    /// Up to the end of the last run.
    bytes: &'a [u8],
}

impl<'a> Block<'a> {
    /// Reads the block at the start of `bytes`, which may go on behind it, and makes the whole check of a current block (docs/format.md,
    /// section 4).
    pub fn decode(bytes: &'a [u8], identity: &LogIdentity) -> Result<Self, BlockError> {
        let header = decode_block_header(bytes)?;
        if header.segment != identity.segment {
            return Err(BlockError::Segment { expected: identity.segment, found: header.segment });
        }
        if header.log_id != identity.log_id {
            return Err(BlockError::LogId { expected: identity.log_id, found: header.log_id });
        }
        if bytes.len() < header.length as usize {
            return Err(BlockError::Short { needed: header.length as usize, got: bytes.len() });
        }
        let block = Self { header, bytes: &bytes[..header.used as usize] };
        block.walk(get_u32(bytes, header::CRC))?;
        Ok(block)
    }

    /// Checks every run's frame, the counts and the crc. The crc covers the run headers before the checks, the block has them mixed: they
    /// are summed apart and combined, so that one walk is enough.
    fn walk(&self, stored: u32) -> Result<(), BlockError> {
        let mut crc = crc32c::crc32c(&self.bytes[..header::CRC]);
        let mut checks_crc = 0;
        let mut batch = [0; 1024];
        let mut batched = 0;
        let (mut run_count, mut record_count) = (0u32, 0u32);
        let mut offset = BLOCK_HEADER_SIZE;
        while offset < self.bytes.len() {
            let problem = |problem| BlockError::Run { offset: offset as u32, problem };
            let rest = &self.bytes[offset..];
            let run = frame_run(rest, offset as u32, |check| {
                batch[batched..batched + 4].copy_from_slice(check);
                batched += 4;
                if batched == batch.len() {
                    checks_crc = crc32c::crc32c_append(checks_crc, &batch);
                    batched = 0;
                }
            })
            .map_err(problem)?;
            if (run.header.kind == RunKind::Checkpoint) != self.header.checkpoint {
                return Err(problem(RunProblem::CheckpointFlag));
            }
            crc = crc32c::crc32c_append(crc, &rest[..RUN_HEADER_SIZE]);
            run_count += 1;
            record_count += u32::from(run.header.count);
            offset += run.bytes.len();
        }
        checks_crc = crc32c::crc32c_append(checks_crc, &batch[..batched]);
        if run_count != self.header.run_count || record_count != self.header.record_count {
            return Err(BlockError::Run { offset: offset as u32, problem: RunProblem::Count });
        }
        let computed = crc32c::crc32c_combine(crc, checks_crc, record_count as usize * 4);
        if computed != stored {
            return Err(BlockError::Checksum { stored, computed });
        }
        Ok(())
    }

    /// The block's header.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// The block's runs, in order.
    pub fn runs(&self) -> Runs<'a> {
        Runs { bytes: self.bytes, offset: BLOCK_HEADER_SIZE }
    }
}

/// The runs of a block.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let rest = self.bytes.get(self.offset..)?;
        let run = frame_run(rest, self.offset as u32, |_| ()).ok()?;
        self.offset += run.bytes.len();
        Some(run)
    }
}

impl FusedIterator for Runs<'_> {}

/// A run's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// The shard's number for the extent; 0 in checkpoint runs.
    pub extent_number: ExtentNumber,
    /// How many records there are.
    pub count: u16,
    /// What they are.
    pub kind: RunKind,
    /// The first one's seq; 0 in state runs, the part's index in checkpoint runs.
    pub first_seq: Seq,
    /// The first one's op.
    pub op: Op,
    /// When they were appended.
    pub append_time: Timestamp,
}

/// A run whose frame is sound: all its records lie within it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    header: RunHeader,
    offset: u32,
    bytes: &'a [u8],
}

impl<'a> Run<'a> {
    /// Reads a run where it lies: `bytes` start at its header and may go on behind it. Unlike the runs of a [`Block`], its header is
    /// proven by no checksum: compare it with the index entry that led here, and [verify](Record::verify) each record, whose check
    /// binds its seq.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BlockError> {
        if bytes.len() < RUN_HEADER_SIZE {
            return Err(BlockError::Short { needed: RUN_HEADER_SIZE, got: bytes.len() });
        }
        let bytes = &bytes[..bytes.len().min(BLOCK_SIZE_MAX)];
        frame_run(bytes, 0, |_| ()).map_err(|problem| BlockError::Run { offset: 0, problem })
    }

    /// The run's header.
    pub fn header(&self) -> &RunHeader {
        &self.header
    }

    /// Where the run's header is in its block; 0 for a run that stands alone.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Bytes of the run, header and all.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// The run's records, in order.
    pub fn records(&self) -> Records<'a> {
        Records {
            bytes: self.bytes,
            place: RUN_HEADER_SIZE,
            run_offset: self.offset,
            kind: self.header.kind,
            seq: self.header.first_seq.0,
            op: self.header.op.0,
        }
    }
}

/// Finds a run's end, giving each record's check to `on_check`. All arithmetic on the run's numbers is safe behind it.
fn frame_run<'a>(bytes: &'a [u8], offset: u32, mut on_check: impl FnMut(&[u8])) -> Result<Run<'a>, RunProblem> {
    let head = bytes.get(..RUN_HEADER_SIZE).ok_or(RunProblem::Short)?;
    let kind = RunKind::from_byte(head[run::KIND]).ok_or(RunProblem::Kind(head[run::KIND]))?;
    if head[run::RESERVED] != 0 {
        return Err(RunProblem::Reserved);
    }
    let header = RunHeader {
        extent_number: ExtentNumber(get_u32(head, run::EXTENT_NUMBER)),
        count: get_u16(head, run::COUNT),
        kind,
        first_seq: Seq(get_u64(head, run::FIRST_SEQ)),
        op: Op(get_u64(head, run::OP)),
        append_time: Timestamp(get_u64(head, run::APPEND_TIME)),
    };
    if header.count == 0 {
        return Err(RunProblem::Empty);
    }
    if (kind == RunKind::Checkpoint) != (header.extent_number == ExtentNumber(0)) {
        return Err(RunProblem::ExtentNumber(header.extent_number.0));
    }
    let first_seq_is_right = match kind {
        RunKind::Sequence | RunKind::Timer => header.first_seq > Seq(0),
        RunKind::State => header.first_seq == Seq(0),
        RunKind::Checkpoint => true,
    };
    let count = u64::from(header.count);
    if !first_seq_is_right || header.first_seq.0.checked_add(count).is_none() || header.op.0.checked_add(count).is_none() {
        return Err(RunProblem::Numbers);
    }
    let mut place = RUN_HEADER_SIZE;
    for _ in 0..header.count {
        let head = bytes.get(place..).and_then(|rest| rest.get(..kind.record_header_size())).ok_or(RunProblem::Short)?;
        let payload_length = get_u32(head, record::LENGTH) & LENGTH_MASK;
        if payload_length as usize > RECORD_SIZE_MAX {
            return Err(RunProblem::RecordLength(payload_length));
        }
        on_check(&head[record::CHECK..record::CHECK + 4]);
        place += head.len() + payload_length as usize;
    }
    let bytes = bytes.get(..place).ok_or(RunProblem::Short)?;
    Ok(Run { header, offset, bytes })
}

/// A record where it lies. Nothing of it is proven before [`Record::verify`]; its `op` counts the ends of op before it in its
/// run, so it is proven only when those records are, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its seq; its index in state runs; the part's index in checkpoint runs.
    pub seq: Seq,
    /// The op that it belongs to.
    pub op: Op,
    /// Whether it is the last one of its op, over all runs that the op has.
    pub end_of_op: bool,
    /// When it falls due; 0 outside timer runs.
    pub deliver_at: DeliverAt,
    /// Its bytes.
    pub payload: &'a [u8],
    /// The checksum of its bytes, as its header says.
    pub payload_checksum: u32,
    /// The check that binds it to its address, as its header says.
    pub check: u32,
    /// The length field of its header, flags and all.
    pub length_field: u32,
    /// Where its header is in its block; in its run, if that stands alone.
    pub offset: u32,
}

impl Record<'_> {
    /// Checks that the record is the one written for its seq of `extent` (zero for checkpoint runs) and that it is whole.
    pub fn verify(&self, extent: ExtentId) -> Result<(), RecordDamage> {
        self.verify_check_only(extent)?;
        let computed = crate::payload_checksum(self.payload);
        if computed != self.payload_checksum {
            return Err(RecordDamage::Payload { stored: self.payload_checksum, computed });
        }
        Ok(())
    }

    /// [`Record::verify`] without the pass over the payload, for where another one follows.
    pub fn verify_check_only(&self, extent: ExtentId) -> Result<(), RecordDamage> {
        let computed = record_check(extent, self.seq, self.deliver_at, self.length_field, self.payload_checksum);
        if computed != self.check {
            return Err(RecordDamage::Check { stored: self.check, computed });
        }
        if self.length_field & !(LENGTH_MASK | END_OF_OP) != 0 {
            return Err(RecordDamage::Reserved);
        }
        Ok(())
    }
}

/// The records of a run.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    place: usize,
    run_offset: u32,
    kind: RunKind,
    seq: u64,
    op: u64,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let head = self.bytes.get(self.place..)?.get(..self.kind.record_header_size())?;
        let length_field = get_u32(head, record::LENGTH);
        let start = self.place + head.len();
        let end = start + (length_field & LENGTH_MASK) as usize;
        let record = Record {
            seq: Seq(self.seq),
            op: Op(self.op),
            end_of_op: length_field & END_OF_OP != 0,
            deliver_at: DeliverAt(if self.kind == RunKind::Timer { get_u64(head, record::DELIVER_AT) } else { 0 }),
            payload: self.bytes.get(start..end)?,
            payload_checksum: get_u32(head, record::PAYLOAD_CHECKSUM),
            check: get_u32(head, record::CHECK),
            length_field,
            offset: self.run_offset + self.place as u32,
        };
        self.place = end;
        // A run's frame is refused where these would pass the greatest number.
        self.seq += 1;
        self.op += u64::from(record.end_of_op);
        Some(record)
    }
}

impl FusedIterator for Records<'_> {}
