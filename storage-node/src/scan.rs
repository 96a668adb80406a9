//! Reads the blocks of a segment one behind the other: what recovery and the rebuilding of an index share.

use std::io;

use log_format::PAGE_SIZE;
use log_format::block::{Block, LogIdentity, decode_block_header};
use log_format::ids::BlockNumber;
use node_io::{File, IoBuf};

/// Bytes fetched at once.
const CHUNK: usize = 1 << 20;

/// Walks a segment's blocks by offset.
pub(crate) struct BlockScan<'f, F: File> {
    file: &'f F,
    identity: LogIdentity,
    /// Where the blocks end at the latest.
    end: u64,
    chunk: Option<(u64, F::Buf, usize)>,
}

impl<'f, F: File> BlockScan<'f, F> {
    pub(crate) fn new(file: &'f F, identity: LogIdentity, end: u64) -> Self {
        Self { file, identity, end, chunk: None }
    }

    /// The bytes from `offset` on that are in memory, `length` at least unless the segment ends before.
    async fn bytes(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let held = self.chunk.as_ref().is_some_and(|(start, _, count)| {
            offset >= *start && (offset + length as u64 <= start + *count as u64 || start + *count as u64 >= self.end)
        });
        if !held {
            let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let (buffer, count) = self.file.read_at(offset, length.max(CHUNK).min(left)).await?;
            self.chunk = Some((offset, buffer, count));
        }
        let (start, buffer, count) = self.chunk.as_ref().expect("just read");
        let at = usize::try_from(offset - start).expect("a chunk is in memory").min(*count);
        Ok(&buffer.as_slice()[at..*count])
    }

    /// The current block at `offset`; none if what is there is no current block of this segment.
    pub(crate) async fn block_at(&mut self, offset: u64) -> io::Result<Option<Block<'_>>> {
        if offset + PAGE_SIZE as u64 > self.end {
            return Ok(None);
        }
        let identity = self.identity;
        let head = self.bytes(offset, PAGE_SIZE).await?;
        let Ok(header) = decode_block_header(head) else { return Ok(None) };
        if header.segment != identity.segment || header.log_id != identity.log_id {
            return Ok(None);
        }
        let length = header.length as usize;
        let bytes = self.bytes(offset, length).await?;
        Ok(bytes.get(..length).and_then(|bytes| Block::decode(bytes, &identity).ok()))
    }

    /// The first current block at or behind `offset` with a number above `above`, and the greatest committed number that any block from there
    /// on names: what is known to have been on the device.
    pub(crate) async fn evidence(&mut self, offset: u64, above: BlockNumber) -> io::Result<Evidence> {
        let mut evidence = Evidence::default();
        let mut offset = offset;
        while offset < self.end {
            let mut step = PAGE_SIZE as u64;
            if let Some(block) = self.block_at(offset).await?
                && block.header().number > above
            {
                let header = block.header();
                evidence.next.get_or_insert((offset, header.number));
                evidence.committed = evidence.committed.max(header.committed);
                step = u64::from(header.length);
            }
            offset += step;
        }
        Ok(evidence)
    }
}

/// What later blocks of a segment say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The next current block: its offset and number.
    pub(crate) next: Option<(u64, BlockNumber)>,
    /// The greatest block number known to have been on the device with all before it.
    pub(crate) committed: BlockNumber,
}
