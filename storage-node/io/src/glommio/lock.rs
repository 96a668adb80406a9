//! The lock of a data directory: flock on a file that names its holder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Holds a data directory; given up when dropped, and by the kernel when the process ends.
pub struct GlommioLock {
    _held: Flock<File>,
}

fn holder(path: &Path) -> Option<u32> {
    let mut text = String::new();
    File::open(path).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn in_use(path: &Path) -> io::Error {
    let by = holder(path).map_or_else(|| "another process".to_owned(), |process| format!("process {process}"));
    io::Error::new(io::ErrorKind::WouldBlock, format!("{}: held by {by}", path.display()))
}

impl GlommioLock {
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut held) => {
                held.set_len(0)?;
                writeln!(held, "{}", std::process::id())?;
                Ok(Self { _held: held })
            }
            Err((_, Errno::EWOULDBLOCK)) => Err(in_use(path)),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Whether another process holds the lock file, which need not exist.
    pub(super) fn check_free(path: &Path) -> io::Result<()> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(_released) => Ok(()),
            Err((_, Errno::EWOULDBLOCK)) => Err(in_use(path)),
            Err((_, error)) => Err(error.into()),
        }
    }
}
