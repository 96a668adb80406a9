//! The newest blocks in memory, so that readers near the tail cost no device reads.
//!
//! Holds durable blocks only, within a byte budget; the oldest go first, since readers at the tail want the newest.

use std::collections::BTreeMap;
use std::rc::Rc;

use log_format::ids::SegmentId;
use node_io::IoBuf;

/// A block's bytes: the backend's own buffer, or a copy where the buffer would waste memory.
pub(crate) enum BlockBytes<B: IoBuf> {
    Buffer(B),
    Copy(Box<[u8]>),
}

impl<B: IoBuf> BlockBytes<B> {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer.as_slice(),
            Self::Copy(bytes) => bytes,
        }
    }
}

/// A block, and what it takes in memory.
struct Kept<B: IoBuf> {
    bytes: Rc<BlockBytes<B>>,
    cost: usize,
}

pub(crate) struct TailCache<B: IoBuf> {
    /// By segment and offset: in the order of the log.
    blocks: BTreeMap<(SegmentId, u64), Kept<B>>,
    bytes: usize,
    budget: usize,
}

impl<B: IoBuf> TailCache<B> {
    pub(crate) fn new(budget: usize) -> Self {
        Self { blocks: BTreeMap::new(), bytes: 0, budget }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a block that lies at `offset` of `segment`; its buffer takes `capacity` bytes of memory. Buffers that are less than
    /// half full are copied, so that many small blocks don't hold much memory.
    pub(crate) fn insert(&mut self, segment: SegmentId, offset: u64, buffer: B, capacity: usize) {
        let length = buffer.as_slice().len();
        if length > self.budget {
            return;
        }
        let (bytes, cost) = if length * 2 < capacity {
            (BlockBytes::Copy(buffer.as_slice().into()), length)
        } else {
            (BlockBytes::Buffer(buffer), capacity)
        };
        self.blocks.insert((segment, offset), Kept { bytes: Rc::new(bytes), cost });
        self.bytes += cost;
        while self.bytes > self.budget
            && let Some((_, oldest)) = self.blocks.pop_first()
        {
            self.bytes -= oldest.cost;
        }
    }

    /// The block that covers `offset` of `segment`, and where it starts.
    pub(crate) fn find(&self, segment: SegmentId, offset: u64) -> Option<(Rc<BlockBytes<B>>, u64)> {
        let ((found, start), kept) = self.blocks.range(..=(segment, offset)).next_back()?;
        (*found == segment && offset - start < kept.bytes.as_slice().len() as u64).then(|| (kept.bytes.clone(), *start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain(Vec<u8>);

    impl IoBuf for Plain {
        fn as_slice(&self) -> &[u8] {
            &self.0
        }
        fn as_mut_slice(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    #[test]
    fn the_newest_blocks_stay_within_the_budget() {
        let mut cache = TailCache::new(10_000);
        for index in 0..5u64 {
            cache.insert(SegmentId(1), index * 4096, Plain(vec![index as u8; 4096]), 4096);
        }
        assert_eq!(cache.bytes(), 8192);
        assert!(cache.find(SegmentId(1), 2 * 4096 + 5).is_none());
        let (block, start) = cache.find(SegmentId(1), 3 * 4096 + 5).expect("kept");
        assert_eq!((start, block.as_slice()[0]), (3 * 4096, 3));
        assert!(cache.find(SegmentId(1), 5 * 4096).is_none());
        assert!(cache.find(SegmentId(2), 4 * 4096).is_none());
    }

    #[test]
    fn a_block_in_a_far_larger_buffer_is_copied() {
        let mut cache = TailCache::new(1 << 20);
        cache.insert(SegmentId(1), 4096, Plain(vec![1; 4096]), 256 << 10);
        assert_eq!(cache.bytes(), 4096);
        assert!(matches!(*cache.find(SegmentId(1), 4096).expect("kept").0, BlockBytes::Copy(_)));
    }
}
