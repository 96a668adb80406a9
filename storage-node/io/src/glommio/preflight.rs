//! Finds out, before anything is started, whether this machine lets a node run, and if not, why and what to do.
//!
//! What counts is tried, not guessed: a ring is created, and a page is written and read past the page cache.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::utsname::uname;
use thiserror::Error;

use super::device::{self, Below, ProbeFile};
use super::lock::GlommioLock;
use crate::{Capabilities, PAGE_SIZE};

/// What glommio asks for, for each process.
const LOCKED_MEMORY_MIN: u64 = 512 * 1024;
/// The first kernel that has all that glommio uses.
const KERNEL_MIN: (u32, u32) = (5, 8);

/// Why a node can't start here. The message names the cause; [`StartRefusal::remedy`] says what to do.
#[derive(Debug, Error)]
pub enum StartRefusal {
    /// The kernel is older than what io_uring needs here.
    #[error("the kernel is too old: {release} has not all of io_uring that is needed")]
    KernelTooOld {
        /// What runs.
        release: String,
    },
    /// The kernel, or a filter that poses as it, knows no io_uring.
    #[error("io_uring is missing: the kernel was built without it, or a seccomp filter hides it (seccomp here: {seccomp})")]
    IoUringMissing {
        /// Whether a filter is at work in this process.
        seccomp: &'static str,
    },
    /// The administrator turned io_uring off.
    #[error("io_uring is turned off: kernel.io_uring_disabled is {value}")]
    IoUringDisabled {
        /// The sysctl's value: 1 for all but a group and privileged processes, 2 for all.
        value: u32,
    },
    /// io_uring is refused though the sysctl allows it.
    #[error("io_uring is refused by a seccomp filter or a security module (seccomp here: {seccomp})")]
    IoUringFiltered {
        /// Whether a filter is at work in this process.
        seccomp: &'static str,
    },
    /// A ring can't be created for another reason.
    #[error("io_uring does not work: creating a ring failed: {source}")]
    IoUringFailed {
        /// What the kernel said.
        source: io::Error,
    },
    /// The limit of locked memory is too low.
    #[error("too little memory may be locked: the limit is {limit} bytes, {needed} are needed")]
    LockedMemoryTooLow {
        /// The limit of this process.
        limit: u64,
        /// The least that will do.
        needed: u64,
    },
    /// The directory that is to hold the data directory does not exist.
    #[error("the data directory can't be made: {} does not exist", .parent.display())]
    ParentMissing {
        /// What is missing.
        parent: PathBuf,
    },
    /// The data directory, or what is to hold it, is something else.
    #[error("{} is not a directory", .path.display())]
    NotADirectory {
        /// What it is that is none.
        path: PathBuf,
    },
    /// The directory can't be written.
    #[error("{} is not writable: {source} (it belongs to user {owner}, this process runs as user {user})", .path.display())]
    NotWritable {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        user: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The filesystem keeps its files in memory.
    #[error("{} is on {filesystem}, which keeps nothing when the machine stops", .path.display())]
    Volatile {
        /// The directory.
        path: PathBuf,
        /// The filesystem.
        filesystem: String,
    },
    /// The filesystem has no direct I/O, or with larger pages than ours.
    #[error("{} is on a filesystem without direct I/O in pages of 4096 bytes ({filesystem}): {source}", .path.display())]
    NoDirectIo {
        /// The directory.
        path: PathBuf,
        /// The device and filesystem.
        filesystem: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The I/O library can't read the properties of the device.
    #[error("the properties of {} can't be read: {source}", .path.display())]
    DeviceUnreadable {
        /// Where they should be.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process holds the data directory.
    #[error("the data directory is in use: {source}")]
    InUse {
        /// Who holds it.
        source: io::Error,
    },
    /// Something in the way that none of the other cases names.
    #[error("{} can't be examined: {source}", .path.display())]
    Unreadable {
        /// What was examined.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A shard's executor could not be made.
    #[error("a shard's executor can't be started: {reason}")]
    Executor {
        /// Why.
        reason: String,
    },
}

impl StartRefusal {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        let (major, minor) = KERNEL_MIN;
        match self {
            Self::KernelTooOld { .. } => format!("run kernel {major}.{minor} or later; 6.1 or later is recommended"),
            Self::IoUringMissing { .. } | Self::IoUringFiltered { .. } => {
                "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container or service \
                 (Docker and Kubernetes block them by default), or run outside of it"
                    .to_owned()
            }
            Self::IoUringDisabled { value: 1 } => {
                "run `sysctl kernel.io_uring_disabled=0`, or add the user's group to kernel.io_uring_group".to_owned()
            }
            Self::IoUringDisabled { .. } => "run `sysctl kernel.io_uring_disabled=0`".to_owned(),
            Self::IoUringFailed { .. } => "look into the kernel's log (`dmesg`) for the reason".to_owned(),
            Self::LockedMemoryTooLow { .. } => {
                "raise it: `ulimit -l 8192`, LimitMEMLOCK=8M in the systemd unit, or --ulimit memlock=8388608 for a container"
                    .to_owned()
            }
            Self::ParentMissing { parent } => format!("create {}, or name another data directory", parent.display()),
            Self::NotADirectory { path } => format!("move {} away, or name another data directory", path.display()),
            Self::NotWritable { path, user, .. } => {
                format!(
                    "run `chown {user} {}`, or start as the user who owns it; a read-only filesystem must be remounted",
                    path.display()
                )
            }
            Self::Volatile { .. } | Self::NoDirectIo { .. } => {
                "name a data directory on a local disk with ext4 or XFS (--data-dir)".to_owned()
            }
            Self::DeviceUnreadable { .. } => {
                "make /sys readable to the node, or put the data directory on another device".to_owned()
            }
            Self::InUse { .. } => "stop the process that holds it, or name another data directory (--data-dir)".to_owned(),
            Self::Unreadable { path, .. } => format!("make {} accessible to this user", path.display()),
            Self::Executor { .. } => "free processors, memory or file descriptors, or start fewer shards".to_owned(),
        }
    }
}

/// Checks all that a node needs to run on `data_dir`, which need not exist yet; changes nothing there.
///
/// # Errors
/// The first thing that is in the way.
pub fn preflight(data_dir: &Path) -> Result<Capabilities, StartRefusal> {
    check_kernel()?;
    check_ring()?;
    check_locked_memory()?;
    let directory = existing_directory(data_dir)?;
    check_writable(&directory)?;
    let capabilities = check_direct_io(&directory)?;
    GlommioLock::check_free(&data_dir.join("LOCK")).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => StartRefusal::InUse { source },
        _ => StartRefusal::Unreadable { path: data_dir.join("LOCK"), source },
    })?;
    Ok(capabilities)
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn check_kernel() -> Result<(), StartRefusal> {
    let release = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    match parse_release(&release) {
        Some(version) if version < KERNEL_MIN => Err(StartRefusal::KernelTooOld { release }),
        // A release that can't be read is no reason to refuse: the ring is tried next.
        _ => Ok(()),
    }
}

/// Creates a ring and drops it.
fn check_ring() -> Result<(), StartRefusal> {
    const RING_ENTRIES: u32 = 8;
    /// The size of `struct io_uring_params`.
    const PARAMETERS_SIZE: usize = 120;
    let mut parameters = [0u64; PARAMETERS_SIZE / 8];
    // SAFETY: the parameters are as large as the kernel's struct, aligned, zeroed as it demands, and borrowed for the call.
    #[expect(unsafe_code)]
    let status = unsafe { libc::syscall(libc::SYS_io_uring_setup, RING_ENTRIES, parameters.as_mut_ptr()) };
    if status < 0 {
        return Err(ring_refusal(io::Error::last_os_error(), io_uring_disabled(), seccomp()));
    }
    // SAFETY: the call gave a new descriptor that nobody else owns.
    #[expect(unsafe_code)]
    drop(unsafe { OwnedFd::from_raw_fd(status as i32) });
    Ok(())
}

fn ring_refusal(source: io::Error, disabled: u32, seccomp: &'static str) -> StartRefusal {
    match source.raw_os_error() {
        Some(libc::ENOSYS) => StartRefusal::IoUringMissing { seccomp },
        Some(libc::EPERM | libc::EACCES) if disabled > 0 => StartRefusal::IoUringDisabled { value: disabled },
        Some(libc::EPERM | libc::EACCES) => StartRefusal::IoUringFiltered { seccomp },
        // Kernels before 5.12 count rings as locked memory.
        Some(libc::ENOMEM) => {
            let limit = locked_memory_limit();
            StartRefusal::LockedMemoryTooLow { limit, needed: LOCKED_MEMORY_MIN.max(limit.saturating_mul(2)) }
        }
        _ => StartRefusal::IoUringFailed { source },
    }
}

fn io_uring_disabled() -> u32 {
    // Kernels before 6.6 have no such switch.
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn seccomp() -> &'static str {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim) {
        Some("0") => "off",
        Some("1") => "strict",
        Some("2") => "filter",
        _ => "unknown",
    }
}

fn locked_memory_limit() -> u64 {
    getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(limit, _)| limit)
}

fn check_locked_memory() -> Result<(), StartRefusal> {
    match locked_memory_limit() {
        limit if limit < LOCKED_MEMORY_MIN => Err(StartRefusal::LockedMemoryTooLow { limit, needed: LOCKED_MEMORY_MIN }),
        _ => Ok(()),
    }
}

/// The data directory, or the one that it will be made in.
fn existing_directory(data_dir: &Path) -> Result<PathBuf, StartRefusal> {
    let parent = match data_dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    for path in [data_dir, parent] {
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => return Ok(path.to_owned()),
            Ok(_) => return Err(StartRefusal::NotADirectory { path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Something above it is a file.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(StartRefusal::NotADirectory { path: parent.to_owned() });
            }
            Err(source) => return Err(StartRefusal::Unreadable { path: path.to_owned(), source }),
        }
    }
    Err(StartRefusal::ParentMissing { parent: parent.to_owned() })
}

fn check_writable(directory: &Path) -> Result<(), StartRefusal> {
    let Err(source) = ProbeFile::create(directory, 0) else { return Ok(()) };
    let owner = directory.metadata().map_or(0, |metadata| metadata.uid());
    let user = nix::unistd::geteuid().as_raw();
    Err(StartRefusal::NotWritable { path: directory.to_owned(), owner, user, source })
}

fn check_direct_io(directory: &Path) -> Result<Capabilities, StartRefusal> {
    let path = || directory.to_owned();
    let below = Below::of(directory).map_err(|source| StartRefusal::Unreadable { path: path(), source })?;
    if matches!(below.filesystem.as_str(), "tmpfs" | "ramfs") {
        return Err(StartRefusal::Volatile { path: path(), filesystem: below.filesystem });
    }
    let refusal = |source| StartRefusal::NoDirectIo { path: path(), filesystem: below.to_string(), source };
    write_and_read_page(directory).map_err(refusal)?;
    check_device_properties(&below)?;
    let capabilities = device::capabilities(directory).map_err(refusal)?;
    if capabilities.offset_alignment.max(capabilities.memory_alignment) as usize > PAGE_SIZE {
        let (offset, memory) = (capabilities.offset_alignment, capabilities.memory_alignment);
        return Err(refusal(io::Error::other(format!(
            "it asks for alignment of offsets to {offset} and memory to {memory} bytes"
        ))));
    }
    Ok(capabilities)
}

fn write_and_read_page(directory: &Path) -> io::Result<()> {
    let probe = ProbeFile::create(directory, libc::O_DIRECT | libc::O_DSYNC)?;
    let mut memory = vec![0u8; 2 * PAGE_SIZE];
    let start = memory.as_ptr().align_offset(PAGE_SIZE);
    let page = &mut memory[start..start + PAGE_SIZE];
    page.fill(0x5A);
    probe.file.write_all_at(page, 0)?;
    page.fill(0);
    probe.file.read_exact_at(page, 0)?;
    if page.iter().all(|&byte| byte == 0x5A) {
        Ok(())
    } else {
        Err(io::Error::other("a page read back differs from what was written"))
    }
}

/// glommio panics where it can't read these; it looks at the device with minor number 0.
fn check_device_properties(below: &Below) -> Result<(), StartRefusal> {
    let device = PathBuf::from(format!("/sys/dev/block/{}:0", below.major));
    if !device.exists() {
        return Ok(());
    }
    let properties = [
        "rotational",
        "minimum_io_size",
        "optimal_io_size",
        "logical_block_size",
        "physical_block_size",
        "max_sectors_kb",
        "max_segment_size",
        "write_cache",
    ];
    for property in properties {
        let path = device.join("queue").join(property);
        if let Err(source) = std::fs::read_to_string(&path) {
            return Err(StartRefusal::DeviceUnreadable { path, source });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_refusing_a_ring_has_a_name() {
        let refusal = |code, disabled| ring_refusal(io::Error::from_raw_os_error(code), disabled, "filter");
        assert!(matches!(refusal(libc::ENOSYS, 0), StartRefusal::IoUringMissing { seccomp: "filter" }));
        assert!(matches!(refusal(libc::EPERM, 2), StartRefusal::IoUringDisabled { value: 2 }));
        assert!(matches!(refusal(libc::EPERM, 0), StartRefusal::IoUringFiltered { seccomp: "filter" }));
        assert!(matches!(refusal(libc::ENOMEM, 0), StartRefusal::LockedMemoryTooLow { .. }));
        assert!(matches!(refusal(libc::EMFILE, 0), StartRefusal::IoUringFailed { .. }));
    }

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(parse_release("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(parse_release("5.4.0"), Some((5, 4)));
        assert_eq!(parse_release("unknown"), None);
    }

    #[test]
    fn every_refusal_names_a_remedy() {
        let source = || io::Error::from_raw_os_error(libc::EACCES);
        let path = PathBuf::from("/data");
        let refusals = [
            StartRefusal::KernelTooOld { release: "5.4".to_owned() },
            StartRefusal::IoUringMissing { seccomp: "off" },
            StartRefusal::IoUringDisabled { value: 1 },
            StartRefusal::IoUringDisabled { value: 2 },
            StartRefusal::NotWritable { path: path.clone(), owner: 0, user: 1000, source: source() },
            StartRefusal::ParentMissing { parent: path },
        ];
        for refusal in refusals {
            assert!(refusal.remedy().len() > 10, "{refusal}");
        }
    }
}
