//! Lookups in the footers of closed segments, through a bounded cache of index pages.
//!
//! Pages are verified when they are read. The cache holds them decoded and counts what they take in memory.

use std::cell::RefCell;
use std::rc::Rc;

use log_format::PAGE_SIZE;
use log_format::block::RunKind;
use log_format::footer::{DirectoryEntry, IndexPage, Section, SequenceEntry, find_extent, sequence_position};
use log_format::ids::{ExtentNumber, SegmentId, Seq, Timestamp};
use lru::LruCache;
use node_io::{IoBuf, Runtime};

use crate::index::{FooterIndex, MemoryIndex, RunEntry, SegmentIndex};
use crate::read::FetchError;
use crate::scan::BlockScan;
use crate::segment::{DATA_START, Segment};
use crate::shard::Inner;

/// Which page: of a segment, a section, and its number there.
type PageKey = (SegmentId, u8, u32);

/// Index pages in memory, the least recently used go first.
pub(crate) struct PageCache {
    pages: RefCell<LruCache<PageKey, Rc<IndexPage>>>,
    bytes: RefCell<usize>,
    budget: usize,
}

fn page_bytes(page: &IndexPage) -> usize {
    match page {
        IndexPage::Sequence(entries) => size_of_val(&entries[..]),
        IndexPage::Timer(entries) => size_of_val(&entries[..]),
        IndexPage::Directory(entries) => size_of_val(&entries[..]),
    }
}

impl PageCache {
    pub(crate) fn new(budget: usize) -> Self {
        Self { pages: RefCell::new(LruCache::unbounded()), bytes: RefCell::new(0), budget }
    }

    pub(crate) fn bytes(&self) -> usize {
        *self.bytes.borrow()
    }

    fn get(&self, key: PageKey) -> Option<Rc<IndexPage>> {
        self.pages.borrow_mut().get(&key).cloned()
    }

    fn put(&self, key: PageKey, page: Rc<IndexPage>) {
        let mut pages = self.pages.borrow_mut();
        let mut bytes = self.bytes.borrow_mut();
        *bytes += page_bytes(&page);
        if let Some((_, old)) = pages.push(key, page) {
            *bytes -= page_bytes(&old);
        }
        while *bytes > self.budget
            && let Some((_, old)) = pages.pop_lru()
        {
            *bytes -= page_bytes(&old);
        }
    }
}

impl<R: Runtime> Inner<R> {
    async fn page(
        &self,
        segment: &Segment<R>,
        footer: &FooterIndex,
        section: Section,
        number: u32,
    ) -> Result<Rc<IndexPage>, FetchError> {
        let key = (segment.id, section as u8, number);
        if let Some(page) = self.pages.get(key) {
            return Ok(page);
        }
        let offset = match section {
            Section::Directory => footer.directory_page_offset(number),
            Section::Sequence | Section::Timer => footer.sequence_page_offset(number),
        };
        let (bytes, _) = self.fetch(segment, offset, offset + PAGE_SIZE as u64).await?;
        let page = IndexPage::decode(bytes.as_slice(), &segment.identity, section, number);
        let page = Rc::new(page.map_err(|error| FetchError::Damaged(error.to_string()))?);
        self.pages.put(key, page.clone());
        Ok(page)
    }

    /// The directory entry of an extent in a closed segment: a binary search over the directory's pages.
    async fn directory_entry(
        &self,
        segment: &Segment<R>,
        footer: &FooterIndex,
        number: ExtentNumber,
    ) -> Result<Option<DirectoryEntry>, FetchError> {
        let (mut low, mut high) = (0, footer.trailer.directory_pages);
        while low < high {
            let middle = low + (high - low) / 2;
            let page = self.page(segment, footer, Section::Directory, middle).await?;
            let IndexPage::Directory(entries) = &*page else { return Ok(None) };
            match (entries.first(), entries.last()) {
                (Some(first), _) if number < first.number => high = middle,
                (_, Some(last)) if number > last.number => low = middle + 1,
                _ => return Ok(find_extent(entries, number).copied()),
            }
        }
        Ok(None)
    }

    /// Walks an extent's entries in a closed segment: `position` says where in a page to start, and `take` is given what lies there. Ends
    /// when `take` says so or the entries end. The page to start in is found by binary search: it is the first that has an entry at
    /// `position`.
    async fn sequence_entries(
        &self,
        segment: &Segment<R>,
        footer: &FooterIndex,
        number: ExtentNumber,
        position: impl Fn(&[SequenceEntry]) -> usize,
        mut take: impl FnMut(&SequenceEntry) -> bool,
    ) -> Result<(), FetchError> {
        let Some(directory) = self.directory_entry(segment, footer, number).await? else { return Ok(()) };
        let (mut low, mut high) = (directory.first_page, footer.trailer.sequence_pages);
        while low < high {
            let middle = low + (high - low) / 2;
            let page = self.page(segment, footer, Section::Sequence, middle).await?;
            let IndexPage::Sequence(entries) = &*page else { return Ok(()) };
            if position(entries) < entries.len() { high = middle } else { low = middle + 1 }
        }
        for number_of_page in low..footer.trailer.sequence_pages {
            let page = self.page(segment, footer, Section::Sequence, number_of_page).await?;
            let IndexPage::Sequence(entries) = &*page else { return Ok(()) };
            for entry in &entries[position(entries)..] {
                if entry.extent != number || !take(entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Derives the index of a segment from its blocks again, puts it in the place of the damaged footer's, and looks into it: the log wins.
    pub(crate) async fn rebuild_index<T>(
        &self,
        segment: &Segment<R>,
        footer: &FooterIndex,
        damage: &FetchError,
        look: impl FnOnce(&MemoryIndex) -> T,
    ) -> Result<T, FetchError> {
        self.count_damage(damage);
        tracing::error!(segment = segment.id.0, %damage, "a page of the footer is damaged: the index is derived from the blocks again");
        let end = footer.trailer.data_end;
        let mut memory = MemoryIndex::default();
        let mut scan = BlockScan::new(&segment.file, segment.identity, end);
        let mut offset = DATA_START;
        while offset < end {
            // Blocks lie one behind the other; behind a damaged one the next is looked for page by page.
            let mut step = PAGE_SIZE as u64;
            if let Some(block) = scan.block_at(offset).await? {
                step = u64::from(block.header().length);
                let table = self.table.borrow();
                for run in block.runs().filter(|run| run.header().kind == RunKind::Sequence) {
                    let number = run.header().extent_number;
                    if let Some(extent) = table.get(number) {
                        let (entry, payload_bytes) = RunEntry::of(&run, offset);
                        memory.push(number, extent.id, extent.kind, entry, payload_bytes);
                    }
                }
            }
            offset += step;
        }
        let found = look(&memory);
        *segment.index.borrow_mut() = SegmentIndex::Memory(memory);
        Ok(found)
    }

    /// Up to `limit` runs of an extent in a closed segment, from the one that holds `from` or the next behind it.
    pub(crate) async fn footer_runs(
        &self,
        segment: &Segment<R>,
        footer: &FooterIndex,
        number: ExtentNumber,
        from: Seq,
        limit: usize,
    ) -> Result<Vec<RunEntry>, FetchError> {
        let mut runs = Vec::new();
        let position = |entries: &[SequenceEntry]| sequence_position(entries, number, from);
        self.sequence_entries(segment, footer, number, position, |entry| {
            runs.push(RunEntry::from(entry));
            runs.len() < limit
        })
        .await?;
        Ok(runs)
    }

    /// The first run of an extent in a closed segment that was appended at or after `time`.
    pub(crate) async fn footer_run_at_time(
        &self,
        segment: &Segment<R>,
        footer: &FooterIndex,
        number: ExtentNumber,
        time: Timestamp,
    ) -> Result<Option<RunEntry>, FetchError> {
        let mut found = None;
        // Append times never go back within an extent.
        let position =
            |entries: &[SequenceEntry]| entries.partition_point(|entry| (entry.extent, entry.append_time) < (number, time));
        self.sequence_entries(segment, footer, number, position, |entry| {
            found = Some(RunEntry::from(entry));
            false
        })
        .await?;
        Ok(found)
    }
}
