//! What lies below a directory: the block device, its filesystem, and the alignment that direct I/O asks for.

use std::fs::{File, OpenOptions, read_link, read_to_string};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use crate::{Capabilities, PAGE_SIZE};

/// Taken where the kernel does not tell: devices have sectors of at most this size, with few exceptions.
const OFFSET_ALIGNMENT_GUESS: u32 = 4096;
const MEMORY_ALIGNMENT_GUESS: u32 = 512;

pub(super) fn capabilities(directory: &Path) -> io::Result<Capabilities> {
    let probe = ProbeFile::create(directory, 0)?;
    let (memory_alignment, offset_alignment) =
        direct_io_alignment(&probe.file)?.unwrap_or((MEMORY_ALIGNMENT_GUESS, OFFSET_ALIGNMENT_GUESS));
    let below = Below::of(directory)?;
    if memory_alignment == 0 || offset_alignment == 0 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{}: {} has no direct I/O", directory.display(), below.filesystem),
        ));
    }
    Ok(Capabilities { offset_alignment, memory_alignment, durability: "o_dsync", device: below.to_string() })
}

/// A file in a directory that is gone when dropped; without a name where the filesystem has such files.
pub(super) struct ProbeFile {
    pub(super) file: File,
    name: Option<PathBuf>,
}

impl ProbeFile {
    /// Opens it with `flags` besides.
    pub(super) fn create(directory: &Path, flags: i32) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match options.clone().custom_flags(libc::O_TMPFILE | flags).open(directory) {
            Ok(file) => return Ok(Self { file, name: None }),
            // The filesystem or an old kernel knows no files without names.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT | libc::EINVAL)) => {
            }
            Err(error) => return Err(error),
        }
        let name = directory.join(format!(".roost-probe-{}", std::process::id()));
        let file = options.create_new(true).custom_flags(flags).open(&name)?;
        Ok(Self { file, name: Some(name) })
    }
}

impl ProbeFile {
    /// Where it can be opened once more.
    pub(super) fn path(&self) -> PathBuf {
        let by_number = || PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()));
        self.name.clone().unwrap_or_else(by_number)
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // What can't be removed is an empty file with a telling name.
            let _ = std::fs::remove_file(name);
        }
    }
}

/// The device number below a directory.
pub(super) fn number(directory: &Path) -> io::Result<u64> {
    Ok(directory.metadata()?.dev())
}

/// A file in `directory` with a page that is on the device.
pub(super) fn written_probe(directory: &Path) -> io::Result<ProbeFile> {
    let probe = ProbeFile::create(directory, 0)?;
    probe.file.write_all_at(&[0x5A; PAGE_SIZE], 0)?;
    probe.file.sync_data()?;
    Ok(probe)
}

/// Alignments of memory and of offsets; `None` where the kernel does not tell (before 6.1), zeros where there is no direct I/O.
fn direct_io_alignment(file: &File) -> io::Result<Option<(u32, u32)>> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is a C string, the descriptor is open, and the answer has the size that the call writes.
    #[expect(unsafe_code)]
    let status =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, answer.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded; and zeros are a valid value of this plain struct.
    #[expect(unsafe_code)]
    let answer = unsafe { answer.assume_init() };
    let told = answer.stx_mask & libc::STATX_DIOALIGN != 0;
    Ok(told.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align)))
}

/// What a directory lies on.
pub(super) struct Below {
    pub(super) device: Option<String>,
    pub(super) filesystem: String,
    pub(super) major: u64,
}

impl std::fmt::Display for Below {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.device {
            Some(device) => write!(formatter, "{device} {}", self.filesystem),
            None => write!(formatter, "{}", self.filesystem),
        }
    }
}

impl Below {
    pub(super) fn of(directory: &Path) -> io::Result<Self> {
        let directory = directory.canonicalize()?;
        let number = directory.metadata()?.dev();
        let link = read_link(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
        let device = link.ok().and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
        let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let filesystem = filesystem_of(&directory, &mounts).unwrap_or_else(|| "unknown".to_owned());
        Ok(Self { device, filesystem, major: major(number) })
    }
}

/// The type of the filesystem that `directory` is on, by the last mount whose mount point is its longest prefix.
fn filesystem_of(directory: &Path, mounts: &str) -> Option<String> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(place.split(' ').nth(4)?));
        directory.starts_with(&point).then(|| (point.components().count(), kind.split(' ').next().unwrap_or("").to_owned()))
    };
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

/// Undoes the octal escapes of the mount table.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                          31 22 0:29 / /dev/shm rw,nosuid shared:9 - tmpfs tmpfs rw\n\
                          40 22 8:1 / /mnt/fast\\040disk rw - xfs /dev/sda1 rw\n\
                          41 22 8:2 / /mnt/fast\\040disk rw - btrfs /dev/sda2 rw\n";

    #[test]
    fn the_longest_and_last_mount_names_the_filesystem() {
        let kind = |path: &str| filesystem_of(Path::new(path), MOUNTS);
        assert_eq!(kind("/var/lib/roost").as_deref(), Some("ext4"));
        assert_eq!(kind("/dev/shm").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/dev/shmem").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt/fast disk/roost").as_deref(), Some("btrfs"));
        assert_eq!(filesystem_of(Path::new("/var"), "nonsense"), None);
    }
}
