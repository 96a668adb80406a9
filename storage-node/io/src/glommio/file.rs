//! Files past the page cache: glommio's `DmaFile`, O_DIRECT, and O_DSYNC where writes are to be durable.
//!
//! Contract: a write is whole or an error; a read is short only at the file's end. Both hold even where the kernel stops
//! short: the rest is asked for again. Buffers of failed writes come back, since they are shared with glommio, not given to it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ::glommio::GlommioError;
use ::glommio::io::{DmaBuffer, DmaFile, OpenOptions as DmaOptions, ReadResult};

use super::{GlommioRuntime, device};
use crate::{File, IoBuf, OpenOptions, PAGE_SIZE};

/// A page-aligned buffer, from the executor's registered memory where that has room.
pub struct GlommioBuf(Content);

enum Content {
    /// Nobody else holds it, except for the time of a write.
    Owned(Rc<DmaBuffer>),
    /// What a read gave: it can't be changed in place.
    Read(ReadResult),
}

impl IoBuf for GlommioBuf {
    fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Content::Owned(buffer) => buffer.as_bytes(),
            Content::Read(result) => result,
        }
    }

    /// The first change of a buffer that a read gave copies it.
    fn as_mut_slice(&mut self) -> &mut [u8] {
        if let Content::Read(result) = &self.0 {
            let mut copy = ::glommio::allocate_dma_buffer(result.len().max(1));
            copy.trim_to_size(result.len());
            copy.as_bytes_mut().copy_from_slice(result);
            self.0 = Content::Owned(Rc::new(copy));
        }
        match &mut self.0 {
            Content::Owned(buffer) => Rc::get_mut(buffer).expect(SOLE_OWNER).as_bytes_mut(),
            Content::Read(_) => unreachable!("it was copied above"),
        }
    }
}

const SOLE_OWNER: &str = "a write gives its share of the buffer back when it completes";

impl GlommioBuf {
    fn owned(buffer: DmaBuffer) -> Self {
        Self(Content::Owned(Rc::new(buffer)))
    }

    /// The buffer, cut to `length`, as a write takes it.
    fn into_shared(mut self, length: usize) -> Rc<DmaBuffer> {
        if matches!(self.0, Content::Read(_)) {
            self.as_mut_slice();
        }
        let Content::Owned(mut buffer) = self.0 else { unreachable!("it was copied above") };
        if buffer.len() != length {
            Rc::get_mut(&mut buffer).expect(SOLE_OWNER).trim_to_size(length);
        }
        buffer
    }
}

/// An open file.
#[derive(Clone)]
pub struct GlommioFile {
    file: Rc<DmaFile>,
    runtime: GlommioRuntime,
}

/// The plain error below glommio's, so that its code and kind are seen.
pub(super) fn plain_error<T>(error: GlommioError<T>) -> io::Error {
    match error {
        GlommioError::IoError(error) | GlommioError::EnhancedIoError { source: error, .. } => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn at_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn check_aligned(offset: u64, length: usize) {
    assert!(
        offset.is_multiple_of(PAGE_SIZE as u64) && length.is_multiple_of(PAGE_SIZE) && length > 0,
        "I/O at {offset} of {length} bytes is not made of whole pages"
    );
}

/// Lets glommio find out rightly whether a device can be polled for completions. It tries with a read of the first file that it opens on
/// a device; where nothing is there to be read, the read succeeds without the device, and all later ones fail.
async fn probe_device(runtime: &GlommioRuntime, path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let device = device::number(&directory).map_err(|error| at_path(path, error))?;
    if runtime.shared.probed_devices.borrow().contains(&device) {
        return Ok(());
    }
    match runtime.blocking((), move || device::written_probe(&directory)).await {
        Ok(probe) => {
            let file = DmaOptions::new().read(true).dma_open(probe.path()).await.map_err(plain_error)?;
            file.close().await.map_err(plain_error)?;
        }
        // A full disk is no reason not to open what is there; its files are not empty.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
        Err(error) => return Err(at_path(path, error)),
    }
    runtime.shared.probed_devices.borrow_mut().insert(device);
    Ok(())
}

pub(super) async fn open(runtime: &GlommioRuntime, path: &Path, options: OpenOptions) -> io::Result<GlommioFile> {
    probe_device(runtime, path).await?;
    let mut dma = DmaOptions::new();
    dma.read(true).write(options.write || options.create_new || options.durable);
    if options.create_new {
        dma.create_new(true).mode(0o640);
    }
    if options.durable {
        dma.custom_flags(libc::O_DSYNC);
    }
    let file = dma.dma_open(path).await.map_err(|error| at_path(path, plain_error(error)))?;
    Ok(GlommioFile { file: Rc::new(file), runtime: runtime.clone() })
}

impl GlommioFile {
    fn size_now(&self) -> io::Result<u64> {
        // SAFETY: the file stays open as long as `self.file` is borrowed.
        #[expect(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(self.file.as_raw_fd()) };
        Ok(nix::sys::stat::fstat(fd)?.st_size as u64)
    }

    async fn write_once(&self, buffer: Rc<DmaBuffer>, offset: u64) -> io::Result<usize> {
        self.file.write_rc_at(buffer, offset).await.map_err(plain_error)
    }

    /// Writes what a short write left.
    async fn write_rest(&self, bytes: &[u8], mut written: usize, offset: u64) -> io::Result<()> {
        while written < bytes.len() {
            // Direct I/O starts at whole pages: what is past the last one is written again.
            let start = written / PAGE_SIZE * PAGE_SIZE;
            let rest = &bytes[start..];
            let mut copy = self.file.alloc_dma_buffer(rest.len());
            copy.as_bytes_mut().copy_from_slice(rest);
            match self.write_once(Rc::new(copy), offset + start as u64).await? {
                count if start + count <= written => return Err(io::ErrorKind::WriteZero.into()),
                count => written = start + count,
            }
        }
        Ok(())
    }

    /// Reads until the file's end or all is there.
    async fn read_whole(&self, offset: u64, length: usize) -> io::Result<(GlommioBuf, usize)> {
        let first = self.file.read_at_aligned(offset, length).await.map_err(plain_error)?;
        let mut count = first.len();
        if count == length || offset + count as u64 >= self.size_now()? {
            return Ok((GlommioBuf(Content::Read(first)), count));
        }
        let mut whole = self.file.alloc_dma_buffer(length);
        whole.as_bytes_mut()[..count].copy_from_slice(&first);
        while count < length {
            let start = count / PAGE_SIZE * PAGE_SIZE;
            let next = self.file.read_at_aligned(offset + start as u64, length - start).await.map_err(plain_error)?;
            if start + next.len() <= count {
                break;
            }
            whole.as_bytes_mut()[start..start + next.len()].copy_from_slice(&next);
            count = start + next.len();
        }
        Ok((GlommioBuf::owned(whole), count))
    }
}

impl File for GlommioFile {
    type Buf = GlommioBuf;

    fn allocate(&self, length: usize) -> GlommioBuf {
        assert!(length.is_multiple_of(PAGE_SIZE) && length > 0, "buffers are whole pages, not {length} bytes");
        GlommioBuf::owned(self.file.alloc_dma_buffer(length))
    }

    async fn write_at(&self, buf: GlommioBuf, length: usize, offset: u64) -> (io::Result<()>, GlommioBuf) {
        check_aligned(offset, length);
        let outstanding = self.runtime.outstanding();
        let buffer = buf.into_shared(length);
        let result = match self.write_once(buffer.clone(), offset).await {
            Ok(written) if written == length => Ok(()),
            Ok(written) => self.write_rest(buffer.as_bytes(), written, offset).await,
            Err(error) => Err(error),
        };
        outstanding.finish();
        (result, GlommioBuf(Content::Owned(buffer)))
    }

    async fn read_at(&self, offset: u64, length: usize) -> io::Result<(GlommioBuf, usize)> {
        check_aligned(offset, length);
        let outstanding = self.runtime.outstanding();
        let result = self.read_whole(offset, length).await;
        outstanding.finish();
        result
    }

    async fn sync(&self) -> io::Result<()> {
        let outstanding = self.runtime.outstanding();
        let result = self.file.fdatasync().await.map_err(plain_error);
        outstanding.finish();
        result
    }

    async fn size(&self) -> io::Result<u64> {
        self.size_now()
    }

    async fn set_size(&self, size: u64) -> io::Result<()> {
        let size = i64::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let fd = self.file.as_raw_fd();
        let work = move || {
            // SAFETY: the runtime keeps a share of the file until this has run.
            #[expect(unsafe_code)]
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            Ok(nix::unistd::ftruncate(fd, size)?)
        };
        self.runtime.blocking(self.file.clone(), work).await
    }

    async fn close(self) -> io::Result<()> {
        self.file.close_rc().await.map_err(plain_error)?;
        Ok(())
    }
}
