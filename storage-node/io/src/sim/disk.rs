//! The fake disk of a simulated machine.
//!
//! # Fault model
//! The disk is an array of 512-byte sectors for each file, and a table of names. It keeps what is on the medium apart from what
//! was only written. What we assume of real devices and filesystems, and so what this disk does:
//!
//! - A sector is written whole or not at all. Nothing else is atomic: a write that is cut by a crash may leave any subset of its
//!   sectors, whatever its order and its size. Writes to different places do not wait for each other.
//! - A write is visible to reads when it completes, not before. Through a durable handle it is on the medium then. Otherwise it is
//!   *unflushed* until a sync that was started after it completed has ended well.
//! - A crash keeps none of the unflushed writes, a prefix of them (in the order in which they completed, over all files), or an
//!   arbitrary subset of their sectors. Writes in flight are treated as the last of the unflushed ones, durable ones too.
//! - What a durable write or a sync put on the medium stays there: no crash takes it back. (Rot does: see [`Disk::flip_bit`].)
//! - A failed write may have changed any part of its range, visibly; that part is unflushed, also through a durable handle.
//! - A failed sync leaves each write that it covered either on the medium or lost. Lost means: still visible to reads, gone after
//!   the next crash, whatever syncs succeed after it. This is what Linux does with pages that could not be written back.
//! - A file's size grows with the write that extends it and is as durable as that write. A crash may keep the write's sectors and
//!   lose the size. [`Disk::resize`] is unflushed until a sync; what a resize adds reads as zeros.
//! - A full disk fails the write that needs the page too many, after writing those before it. Pages never written need no space.
//! - Names are apart from files. A name made, renamed or removed is on the medium after a sync of its directory, not
//!   before, and syncing the file does not help. A crash keeps, in each directory, a prefix of the changes since its last sync.
//! - A file keeps its content when it is renamed, so a recycled file holds what its former life left behind.
//!
//! Not yet modelled: misdirected writes, stale reads, hung operations.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::faults::{CrashMode, FaultKind};
use super::names::Names;
use crate::PAGE_SIZE;

/// What the device writes whole or not at all.
const SECTOR_SIZE: usize = 512;
const SECTORS_PER_PAGE: usize = PAGE_SIZE / SECTOR_SIZE;

pub(super) type Page = Rc<[u8; PAGE_SIZE]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inode(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteId(u64);

/// How far changes to a file had got when a sync started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order(u64);

/// Sparse content: a page never written reads as zeros.
#[derive(Clone, Default)]
struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

impl Content {
    fn put(&mut self, index: u64, page: Page) {
        self.pages.insert(index, page);
        self.size = self.size.max((index + 1) * PAGE_SIZE as u64);
    }

    fn resize(&mut self, size: u64) {
        if size < self.size {
            let kept = size.div_ceil(PAGE_SIZE as u64);
            self.pages.split_off(&kept);
            let tail = (size % PAGE_SIZE as u64) as usize;
            if tail > 0
                && let Some(page) = self.pages.get_mut(&(kept - 1))
            {
                Rc::make_mut(page)[tail..].fill(0);
            }
        }
        self.size = size;
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { first, pages } => {
                for (index, page) in (*first..).zip(pages) {
                    if let Some(page) = page {
                        self.put(index, page.clone());
                    }
                }
            }
            Change::Resize { size } => self.resize(*size),
        }
    }

    /// Puts those sectors of `page` in place that `keep` chooses.
    fn put_sectors(&mut self, index: u64, page: &Page, mut keep: impl FnMut(usize) -> bool) {
        let mut merged = self.pages.get(&index).map_or([0; PAGE_SIZE], |old| **old);
        let mut kept = 0;
        for sector in 0..SECTORS_PER_PAGE {
            if keep(sector) {
                let range = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
                merged[range.clone()].copy_from_slice(&page[range]);
                kept += 1;
            }
        }
        if kept > 0 {
            self.put(index, Rc::new(merged));
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let count = self.size.saturating_sub(offset).min(into.len() as u64) as usize;
        for (index, chunk) in (offset / PAGE_SIZE as u64..).zip(into[..count].chunks_mut(PAGE_SIZE)) {
            match self.pages.get(&index) {
                Some(page) => chunk.copy_from_slice(&page[..chunk.len()]),
                None => chunk.fill(0),
            }
        }
        count
    }
}

enum Change {
    /// Pages that a later durable write replaced are `None`.
    Write {
        first: u64,
        pages: Vec<Option<Page>>,
    },
    Resize {
        size: u64,
    },
}

#[derive(Default)]
struct FileState {
    /// What reads see.
    current: Content,
    /// What is on the medium.
    durable: Content,
    /// What leads from `durable` to `current`, in the order of completion.
    unflushed: Vec<(Order, Change)>,
    open_handles: u32,
}

struct InFlight {
    inode: Inode,
    first: u64,
    pages: Vec<Page>,
    durable: bool,
}

pub(super) struct Disk {
    pub(super) names: Names,
    files: BTreeMap<Inode, FileState>,
    in_flight: BTreeMap<WriteId, InFlight>,
    locks: BTreeMap<PathBuf, u32>,
    counter: u64,
    zero_page: Page,
}

/// How a write that ran to its end came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Whole,
    NoSpace,
}

impl Disk {
    pub(super) fn new() -> Self {
        Self {
            names: Names::default(),
            files: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            locks: BTreeMap::new(),
            counter: 0,
            zero_page: Rc::new([0; PAGE_SIZE]),
        }
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn file(&mut self, inode: Inode) -> &mut FileState {
        self.files.get_mut(&inode).expect("a file lives as long as a name or a handle leads to it")
    }

    pub(super) fn create_file(&mut self) -> Inode {
        let inode = Inode(self.count());
        self.files.insert(inode, FileState::default());
        inode
    }

    pub(super) fn opened(&mut self, inode: Inode) {
        self.file(inode).open_handles += 1;
    }

    pub(super) fn closed(&mut self, inode: Inode) {
        self.file(inode).open_handles -= 1;
        self.collect_garbage();
    }

    /// Forgets files that nothing leads to any more.
    pub(super) fn collect_garbage(&mut self) {
        let busy: Vec<Inode> = self.in_flight.values().map(|write| write.inode).collect();
        let names = &self.names;
        self.files.retain(|inode, file| file.open_handles > 0 || names.leads_to(*inode) || busy.contains(inode));
    }

    /// Bytes that files take. A file without a name takes space as long as it is open.
    pub(super) fn used_bytes(&self) -> u64 {
        let pages = |file: &FileState| file.current.pages.len() as u64;
        let counted = |inode: &Inode, file: &FileState| file.open_handles > 0 || self.names.has_current(*inode);
        self.files.iter().filter(|(inode, file)| counted(inode, file)).map(|(_, file)| pages(file) * PAGE_SIZE as u64).sum()
    }

    /// Takes a lock file, making it if missing.
    pub(super) fn lock(&mut self, path: &Path, node: u32) -> io::Result<()> {
        if let Some(holder) = self.locks.get(path) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{}: held by process {holder}", path.display())));
        }
        if self.names.lookup(path).is_err() {
            self.names.check_new(path)?;
            let inode = self.create_file();
            self.names.link(path, inode);
        }
        self.locks.insert(path.to_owned(), node);
        Ok(())
    }

    pub(super) fn unlock(&mut self, path: &Path) {
        self.locks.remove(path);
    }

    pub(super) fn size(&mut self, inode: Inode) -> u64 {
        self.file(inode).current.size
    }

    pub(super) fn read(&mut self, inode: Inode, offset: u64, into: &mut [u8]) -> usize {
        self.file(inode).current.read(offset, into)
    }

    /// A write reaches the device. It is in flight until it is finished.
    pub(super) fn begin_write(&mut self, inode: Inode, offset: u64, bytes: &[u8], durable: bool) -> WriteId {
        let pages = bytes
            .as_chunks::<PAGE_SIZE>()
            .0
            .iter()
            .map(|page| if *page == *self.zero_page { self.zero_page.clone() } else { Rc::new(*page) })
            .collect();
        let id = WriteId(self.count());
        self.in_flight.insert(id, InFlight { inode, first: offset / PAGE_SIZE as u64, pages, durable });
        id
    }

    fn take_in_flight(&mut self, id: WriteId) -> InFlight {
        self.in_flight.remove(&id).expect("a write is finished once")
    }

    /// A write completes as far as the disk has room.
    pub(super) fn complete_write(&mut self, id: WriteId, disk_bytes: u64) -> WriteOutcome {
        let InFlight { inode, first, mut pages, durable } = self.take_in_flight(id);
        let order = Order(self.count());
        let old = &self.file(inode).current.pages;
        let in_place = (first..).zip(&pages).all(|(index, _)| old.contains_key(&index));
        let room = if in_place { 0 } else { disk_bytes.saturating_sub(self.used_bytes()) / PAGE_SIZE as u64 };
        let file = self.file(inode);
        let mut added = 0;
        let fitting = (first..)
            .zip(&pages)
            .take_while(|(index, _)| {
                added += u64::from(!file.current.pages.contains_key(index));
                added <= room
            })
            .count();
        let outcome = if fitting == pages.len() { WriteOutcome::Whole } else { WriteOutcome::NoSpace };
        pages.truncate(fitting);
        let range = first..first + pages.len() as u64;
        let change = Change::Write { first, pages: pages.into_iter().map(Some).collect() };
        file.current.apply(&change);
        if durable && outcome == WriteOutcome::Whole {
            file.make_durable(range, &change);
        } else {
            file.unflushed.push((order, change));
        }
        outcome
    }

    /// A write fails: an arbitrary part of it was written, or, with `first_pages`, that many pages from its start.
    pub(super) fn fail_write(&mut self, id: WriteId, first_pages: Option<usize>, rng: &mut ChaCha8Rng) {
        let InFlight { inode, first, pages, .. } = self.take_in_flight(id);
        let order = Order(self.count());
        let file = self.file(inode);
        let mut written = Content::default();
        let mut changed = vec![None; pages.len()];
        for (place, page) in pages.iter().enumerate() {
            let index = first + place as u64;
            if let Some(old) = file.current.pages.get(&index) {
                written.put(index, old.clone());
            }
            match first_pages {
                Some(count) if place < count => written.put(index, page.clone()),
                Some(_) => continue,
                None if rng.random_bool(0.5) => continue,
                None => written.put_sectors(index, page, |_| rng.random_bool(0.5)),
            }
            changed[place] = written.pages.get(&index).cloned();
        }
        let change = Change::Write { first, pages: changed };
        file.current.apply(&change);
        file.unflushed.push((order, change));
    }

    pub(super) fn pages_in_flight(&self, id: WriteId) -> usize {
        self.in_flight.get(&id).map_or(0, |write| write.pages.len())
    }

    pub(super) fn resize(&mut self, inode: Inode, size: u64) {
        let order = Order(self.count());
        let file = self.file(inode);
        file.current.resize(size);
        file.unflushed.push((order, Change::Resize { size }));
    }

    /// What a sync that starts now will cover.
    pub(super) fn sync_point(&mut self) -> Order {
        Order(self.count())
    }

    /// A sync ends well: what completed before `point` is on the medium.
    pub(super) fn complete_sync(&mut self, inode: Inode, point: Order) {
        let file = self.file(inode);
        let later = file.unflushed.split_off(file.unflushed.partition_point(|(order, _)| *order < point));
        for (_, change) in std::mem::replace(&mut file.unflushed, later) {
            file.durable.apply(&change);
        }
    }

    /// A sync fails: each change that it covered is on the medium or lost.
    pub(super) fn fail_sync(&mut self, inode: Inode, point: Order, rng: &mut ChaCha8Rng) {
        let file = self.file(inode);
        let later = file.unflushed.split_off(file.unflushed.partition_point(|(order, _)| *order < point));
        for (_, change) in std::mem::replace(&mut file.unflushed, later) {
            if rng.random_bool(0.5) {
                file.durable.apply(&change);
            }
        }
    }

    /// Rot: flips a bit both in what reads see and on the medium. False if there is no such byte.
    pub(super) fn flip_bit(&mut self, path: &Path, offset: u64, bit: u8) -> bool {
        let Some(inode) = self.names.file(path) else { return false };
        let file = self.file(inode);
        if offset >= file.current.size {
            return false;
        }
        let (index, place) = (offset / PAGE_SIZE as u64, (offset % PAGE_SIZE as u64) as usize);
        for content in [&mut file.current, &mut file.durable] {
            if offset < content.size {
                let page = content.pages.entry(index).or_insert_with(|| Rc::new([0; PAGE_SIZE]));
                Rc::make_mut(page)[place] ^= 1 << (bit % 8);
            }
        }
        true
    }

    /// Replaces bytes on the medium, as an editor would while the node is down.
    pub(super) fn overwrite(&mut self, path: &Path, offset: u64, bytes: &[u8]) -> bool {
        let Some(inode) = self.names.file(path) else { return false };
        let file = self.file(inode);
        for content in [&mut file.current, &mut file.durable] {
            for (place, &byte) in (offset..).zip(bytes) {
                let page = content.pages.entry(place / PAGE_SIZE as u64).or_insert_with(|| Rc::new([0; PAGE_SIZE]));
                Rc::make_mut(page)[(place % PAGE_SIZE as u64) as usize] = byte;
            }
            content.size = content.size.max(offset + bytes.len() as u64);
        }
        true
    }

    /// The whole content of a file as reads see it.
    pub(super) fn content(&mut self, path: &Path) -> Option<Vec<u8>> {
        let inode = self.names.file(path)?;
        let content = &self.file(inode).current;
        let mut bytes = vec![0; content.size as usize];
        content.read(0, &mut bytes);
        Some(bytes)
    }

    /// The machine stops. What was not on the medium is kept as `mode` says. Gives the faults that were reached.
    pub(super) fn crash(&mut self, mode: CrashMode, torn_write: f64, lost_names: f64, rng: &mut ChaCha8Rng) -> Vec<FaultKind> {
        let mut reached = Vec::new();
        if mode == CrashMode::KeepAll {
            for id in self.in_flight.keys().copied().collect::<Vec<_>>() {
                self.complete_write(id, u64::MAX);
            }
        } else {
            self.crash_content(mode, torn_write, rng, &mut reached);
            let lost = self.names.crash(lost_names, rng);
            reached.extend(std::iter::repeat_n(FaultKind::NameLost, lost));
        }
        for file in self.files.values_mut() {
            file.open_handles = 0;
        }
        self.locks.clear();
        self.collect_garbage();
        reached
    }

    fn crash_content(&mut self, mode: CrashMode, torn_write: f64, rng: &mut ChaCha8Rng, reached: &mut Vec<FaultKind>) {
        let mut changes: Vec<(Order, Inode, Change, bool)> = Vec::new();
        for (&inode, file) in &mut self.files {
            changes.extend(file.unflushed.drain(..).map(|(order, change)| (order, inode, change, false)));
        }
        changes.sort_by_key(|(order, ..)| *order);
        let completed = changes.len();
        for (_, InFlight { inode, first, pages, .. }) in std::mem::take(&mut self.in_flight) {
            let change = Change::Write { first, pages: pages.into_iter().map(Some).collect() };
            changes.push((Order(self.count()), inode, change, true));
        }
        let prefix = match mode {
            CrashMode::KeepNone | CrashMode::KeepSubset => 0,
            CrashMode::KeepAll => completed,
            // The commonest cut is in what was in flight: half the time all that had completed is kept.
            CrashMode::KeepPrefix if rng.random_bool(0.5) => rng.random_range(completed..=changes.len()),
            CrashMode::KeepPrefix => rng.random_range(0..=completed),
        };
        for (place, (_, inode, change, in_flight)) in changes.iter().enumerate() {
            let fate = match mode {
                CrashMode::KeepPrefix if place < prefix => Fate::Kept,
                CrashMode::KeepPrefix if place == prefix && torn_write > 0.0 && rng.random_bool(torn_write) => Fate::Torn,
                CrashMode::KeepSubset if torn_write > 0.0 && rng.random_bool(torn_write) => Fate::Torn,
                CrashMode::KeepSubset if rng.random_bool(0.5) => Fate::Kept,
                _ => Fate::Lost,
            };
            let file = self.files.get_mut(inode).expect("a file with changes is known");
            let fate = match (fate, change) {
                (Fate::Torn, Change::Resize { .. }) => Fate::Kept,
                (fate, _) => fate,
            };
            match fate {
                Fate::Kept => file.durable.apply(change),
                Fate::Torn => {
                    file.durable.tear(change, rng);
                    reached.push(FaultKind::WriteTorn);
                }
                Fate::Lost if !in_flight => reached.push(FaultKind::WriteLost),
                Fate::Lost => {}
            }
        }
        for file in self.files.values_mut() {
            file.current = file.durable.clone();
        }
    }
}

enum Fate {
    Kept,
    Torn,
    Lost,
}

impl FileState {
    /// Puts a durable write on the medium, past what is unflushed in its way.
    fn make_durable(&mut self, range: Range<u64>, change: &Change) {
        // A resize is committed with the file's metadata, and all before it with it: were it left unflushed, a shrink that a
        // crash keeps would cut the durable write off.
        if let Some(last) = self.unflushed.iter().rposition(|(_, earlier)| matches!(earlier, Change::Resize { .. })) {
            for (_, earlier) in self.unflushed.drain(..=last) {
                self.durable.apply(&earlier);
            }
        }
        self.unflushed.retain_mut(|(_, earlier)| {
            let Change::Write { first, pages } = earlier else { return true };
            for (index, page) in (*first..).zip(pages.iter_mut()) {
                if range.contains(&index) {
                    *page = None;
                }
            }
            pages.iter().any(Option::is_some)
        });
        self.durable.apply(change);
    }
}

impl Content {
    /// Puts a part of a write in place: its first sectors, its last ones, or any.
    fn tear(&mut self, change: &Change, rng: &mut ChaCha8Rng) {
        let Change::Write { first, pages } = change else { return };
        let sectors = pages.len() * SECTORS_PER_PAGE;
        let size_before = self.size;
        let cut = rng.random_range(1..sectors.max(2));
        let shape = rng.random_range(0..3u8);
        for (place, page) in pages.iter().enumerate() {
            let Some(page) = page else { continue };
            self.put_sectors(*first + place as u64, page, |sector| match shape {
                0 => place * SECTORS_PER_PAGE + sector < cut,
                1 => place * SECTORS_PER_PAGE + sector >= cut,
                _ => rng.random_bool(0.5),
            });
        }
        if self.size > size_before && rng.random_bool(0.5) {
            self.resize(size_before);
        }
    }
}
