//! Files of a simulated machine: each operation is an event that fires after a while, on the disk of [`super::disk`].

use std::io;
use std::path::Path;
use std::rc::Rc;

use rand::RngExt;

use super::SimRuntime;
use super::core::{Core, Owner, Shared, Slot};
use super::disk::{Disk, Inode, WriteId, WriteOutcome};
use super::faults::{FaultKind, Faults, LatencyRange};
use crate::{File, IoBuf, OpenOptions, PAGE_SIZE};

/// What fresh buffers hold, so that nobody comes to rely on zeros.
const FRESH: u8 = 0xDB;

/// A buffer for simulated I/O: whole pages, aligned as real ones are.
#[derive(Debug)]
pub struct SimBuf {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl SimBuf {
    fn new(length: usize) -> Self {
        let memory = vec![FRESH; length + PAGE_SIZE];
        let start = memory.as_ptr().align_offset(PAGE_SIZE);
        Self { memory, start, length }
    }

    fn truncate(&mut self, length: usize) {
        assert!(length <= self.length, "a buffer holds what is written from it");
        self.length = length;
    }
}

impl IoBuf for SimBuf {
    fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// A file of a simulated machine.
#[derive(Clone)]
pub struct SimFile {
    handle: Rc<Handle>,
    write: bool,
    durable: bool,
}

struct Handle {
    core: Shared,
    owner: Owner,
    inode: Inode,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(machine) = self.core.borrow_mut().machine(self.owner) {
            machine.disk.closed(self.inode);
        }
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

pub(super) fn crashed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated node of this handle has crashed")
}

fn check_aligned(offset: u64, length: usize) {
    assert!(
        offset.is_multiple_of(PAGE_SIZE as u64) && length.is_multiple_of(PAGE_SIZE) && length > 0,
        "I/O at {offset} of {length} bytes is not made of whole pages"
    );
}

/// Starts an operation: after a latency and unless the node crashes before, `action` is done on the core and its result given.
pub(super) async fn operation<T: 'static>(
    core: &Shared,
    owner: Owner,
    latency: impl FnOnce(&Faults) -> LatencyRange,
    what: &'static str,
    action: impl FnOnce(&mut Core) -> io::Result<T> + 'static,
) -> io::Result<T> {
    let slot = Slot::new();
    {
        let core = &mut *core.borrow_mut();
        let range = latency(&core.machine(owner).ok_or_else(crashed)?.faults);
        let delay = core.latency(range);
        let filled = slot.clone();
        core.after(delay, Some(owner), move |core| {
            let result = action(core);
            core.record(what, owner.node, u64::from(result.is_ok()), 0);
            filled.fill(result);
        });
    }
    slot.await
}

/// Reaches a fault with its probability.
fn fault(core: &mut Core, owner: Owner, probability: impl FnOnce(&Faults) -> f64, kind: FaultKind) -> bool {
    let Some(machine) = core.machine(owner) else { return false };
    let probability = probability(&machine.faults);
    let reached = core.chance(probability);
    if reached && let Some(machine) = core.machine(owner) {
        machine.reach(kind);
    }
    reached
}

fn disk(core: &mut Core, owner: Owner) -> &mut Disk {
    core.disk(owner).0
}

/// An operation on names, which may fail without effect.
pub(super) async fn name_operation<T: 'static>(
    core: &Shared,
    owner: Owner,
    what: &'static str,
    action: impl FnOnce(&mut Disk) -> io::Result<T> + 'static,
) -> io::Result<T> {
    operation(
        core,
        owner,
        |faults| faults.name_latency,
        what,
        move |core| {
            if fault(core, owner, |faults| faults.name_error, FaultKind::NameError) {
                return Err(eio());
            }
            action(disk(core, owner))
        },
    )
    .await
}

pub(super) async fn open(runtime: &SimRuntime, path: &Path, options: OpenOptions) -> io::Result<SimFile> {
    let (core, owner) = (&runtime.core, runtime.owner);
    let path = path.to_owned();
    let inode = name_operation(core, owner, "open", move |disk| {
        let inode = if options.create_new {
            disk.names.check_new(&path)?;
            let inode = disk.create_file();
            disk.names.link(&path, inode);
            inode
        } else {
            disk.names.lookup(&path)?
        };
        disk.opened(inode);
        Ok(inode)
    })
    .await?;
    let handle = Rc::new(Handle { core: core.clone(), owner, inode });
    Ok(SimFile { handle, write: options.write || options.create_new || options.durable, durable: options.durable })
}

pub(super) async fn sync_dir(runtime: &SimRuntime, path: &Path) -> io::Result<()> {
    let owner = runtime.owner;
    let path = path.to_owned();
    let point = match runtime.core.borrow_mut().machine(owner) {
        Some(machine) => machine.disk.names.sync_point(),
        None => return Err(crashed()),
    };
    operation(
        &runtime.core,
        owner,
        |faults| faults.sync_latency,
        "sync_dir",
        move |core| {
            if fault(core, owner, |faults| faults.name_error, FaultKind::NameError) {
                return Err(eio());
            }
            let disk = disk(core, owner);
            disk.names.sync(&path, point)?;
            disk.collect_garbage();
            Ok(())
        },
    )
    .await
}

impl SimFile {
    async fn operation<T: 'static>(
        &self,
        latency: impl FnOnce(&Faults) -> LatencyRange,
        what: &'static str,
        action: impl FnOnce(&mut Core) -> io::Result<T> + 'static,
    ) -> io::Result<T> {
        operation(&self.handle.core, self.handle.owner, latency, what, action).await
    }
}

/// Ends a write, or its first piece.
fn finish_write(core: &mut Core, owner: Owner, id: WriteId) -> io::Result<()> {
    if fault(core, owner, |faults| faults.write_error, FaultKind::WriteError) {
        let (disk, rng) = core.disk(owner);
        disk.fail_write(id, None, rng);
        return Err(eio());
    }
    let machine = core.machine(owner).expect("events of a crashed node do not fire");
    match machine.disk.complete_write(id, machine.faults.disk_bytes) {
        WriteOutcome::Whole => Ok(()),
        WriteOutcome::NoSpace => {
            machine.reach(FaultKind::NoSpace);
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        }
    }
}

/// What a short write does: the rest follows later, or never.
fn short_write(core: &mut Core, owner: Owner, id: WriteId) -> Option<io::Result<()>> {
    let probability = core.machine(owner)?.faults.short_write;
    let pages = disk(core, owner).pages_in_flight(id);
    if pages < 2 || !core.chance(probability) {
        return None;
    }
    let resumed = core.rng.random_bool(0.5);
    let kind = if resumed { FaultKind::ShortWriteResumed } else { FaultKind::ShortWriteFailed };
    core.machine(owner)?.reach(kind);
    if resumed {
        return Some(Ok(()));
    }
    let first = core.rng.random_range(1..pages);
    let (disk, rng) = core.disk(owner);
    disk.fail_write(id, Some(first), rng);
    Some(Err(io::Error::new(io::ErrorKind::WriteZero, "the device took only a part of the write")))
}

impl File for SimFile {
    type Buf = SimBuf;

    fn allocate(&self, length: usize) -> SimBuf {
        assert!(length.is_multiple_of(PAGE_SIZE), "buffers are whole pages, not {length} bytes");
        SimBuf::new(length)
    }

    async fn write_at(&self, mut buf: SimBuf, length: usize, offset: u64) -> (io::Result<()>, SimBuf) {
        check_aligned(offset, length);
        buf.truncate(length);
        if !self.write {
            return (Err(io::Error::from_raw_os_error(libc::EBADF)), buf);
        }
        let Handle { core: shared, owner, inode } = &*self.handle;
        let (owner, inode) = (*owner, *inode);
        let slot = Slot::new();
        {
            let core = &mut *shared.borrow_mut();
            let Some(machine) = core.machine(owner) else { return (Err(crashed()), buf) };
            let id = machine.disk.begin_write(inode, offset, buf.as_slice(), self.durable);
            let range = machine.faults.write_latency;
            let delay = core.latency(range);
            let second = core.latency(range);
            let filled = slot.clone();
            let end = move |core: &mut Core, result: io::Result<()>| {
                core.record("write", owner.node, offset, u64::from(result.is_ok()));
                filled.fill((result, buf));
            };
            core.after(delay, Some(owner), move |core| match short_write(core, owner, id) {
                Some(Ok(())) => {
                    core.after(second, Some(owner), move |core| {
                        let result = finish_write(core, owner, id);
                        end(core, result);
                    });
                }
                Some(failed) => end(core, failed),
                None => {
                    let result = finish_write(core, owner, id);
                    end(core, result);
                }
            });
        }
        slot.await
    }

    async fn read_at(&self, offset: u64, length: usize) -> io::Result<(SimBuf, usize)> {
        check_aligned(offset, length);
        let Handle { owner, inode, .. } = *self.handle;
        self.operation(
            |faults| faults.read_latency,
            "read",
            move |core| {
                if fault(core, owner, |faults| faults.read_error, FaultKind::ReadError) {
                    return Err(eio());
                }
                let mut buf = SimBuf::new(length);
                let count = disk(core, owner).read(inode, offset, buf.as_mut_slice());
                core.record("read_at", owner.node, offset, count as u64);
                Ok((buf, count))
            },
        )
        .await
    }

    async fn sync(&self) -> io::Result<()> {
        let Handle { owner, inode, .. } = *self.handle;
        let point = match self.handle.core.borrow_mut().machine(owner) {
            Some(machine) => machine.disk.sync_point(),
            None => return Err(crashed()),
        };
        self.operation(
            |faults| faults.sync_latency,
            "sync",
            move |core| {
                if fault(core, owner, |faults| faults.sync_error, FaultKind::SyncError) {
                    let (disk, rng) = core.disk(owner);
                    disk.fail_sync(inode, point, rng);
                    return Err(eio());
                }
                disk(core, owner).complete_sync(inode, point);
                Ok(())
            },
        )
        .await
    }

    async fn size(&self) -> io::Result<u64> {
        let Handle { owner, inode, .. } = *self.handle;
        self.operation(|faults| faults.name_latency, "size", move |core| Ok(disk(core, owner).size(inode))).await
    }

    async fn set_size(&self, size: u64) -> io::Result<()> {
        let Handle { owner, inode, .. } = *self.handle;
        if !self.write {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.operation(
            |faults| faults.name_latency,
            "set_size",
            move |core| {
                if fault(core, owner, |faults| faults.name_error, FaultKind::NameError) {
                    return Err(eio());
                }
                disk(core, owner).resize(inode, size);
                Ok(())
            },
        )
        .await
    }

    async fn close(self) -> io::Result<()> {
        Ok(())
    }
}
