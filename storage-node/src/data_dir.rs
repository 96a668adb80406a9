//! The data directory of a node: its lock, its manifest, its shards' directories.
//!
//! The manifest says who the node is and into how many shards its data is cut; both are fixed when the directory is made. A directory with
//! data but without a readable manifest is refused: a new identity over old data would make the data unreadable.

use std::io;
use std::path::{Path, PathBuf};

use log_format::ids::{Incarnation, NodeId, ShardIndex};
use log_format::manifest::{ChooseError, Manifest, choose, copy_offset};
use log_format::{PAGE_SIZE, segment};
use node_io::{File, IoBuf, OpenOptions, Runtime};

use crate::segment::write_pages;

const MANIFEST: &str = "node.manifest";
const LOCK: &str = "LOCK";
/// A new manifest is written twice, as these generations, so that both copies are there from the start.
const FIRST_GENERATIONS: [u64; 2] = [1, 2];

/// Why a data directory can't be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds it.
    #[error("{0}")]
    InUse(String),
    /// The system refuses.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is data, but nothing says whose.
    #[error("{path} is missing, but the directory has shards")]
    NoManifest {
        /// The manifest's path.
        path: PathBuf,
    },
    /// Neither copy of the manifest can be used.
    #[error("{path}: {source}")]
    Manifest {
        /// The manifest's path.
        path: PathBuf,
        /// What is wrong.
        source: ChooseError,
    },
    /// Another count of shards is wanted than the data has.
    #[error("the data has {found} shards, {wanted} are asked for")]
    ShardCount {
        /// What the manifest says.
        found: u32,
        /// What is asked for.
        wanted: u32,
    },
    /// No segment can have this size.
    #[error("{0} bytes is no size for segments")]
    SegmentSize(u64),
}

impl DataDirError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InUse(_) => "stop the other node, or give this one a directory of its own with --data-dir",
            Self::Io { .. } => "check the directory's owner, permissions and device",
            Self::NoManifest { .. } | Self::Manifest { source: ChooseError::Neither { .. }, .. } => {
                "restore node.manifest from a backup of this very directory; nothing was changed"
            }
            Self::Manifest { .. } => "use the version of roostd that wrote the directory, or a newer one; nothing was changed",
            Self::ShardCount { .. } => {
                "the count is fixed when the directory is made: leave --shards out, or start on a new directory"
            }
            Self::SegmentSize(_) => "give a multiple of 4096 of at least 1 MiB with --segment-size",
        }
    }
}

/// An open data directory, held against a second owner until dropped.
pub struct DataDir<R: Runtime> {
    /// Who the node is and how its data is cut.
    pub manifest: Manifest,
    path: PathBuf,
    _lock: R::Lock,
}

impl<R: Runtime> DataDir<R> {
    /// Opens the directory, making it if it is missing or empty. `shard_count`: what is wanted, if anything; `default_shard_count`: what a
    /// new directory gets otherwise.
    ///
    /// # Errors
    /// See [`DataDirError`].
    pub async fn open(
        runtime: &R,
        path: &Path,
        shard_count: Option<u32>,
        default_shard_count: u32,
        segment_size: u64,
    ) -> Result<Self, DataDirError> {
        if !segment::is_segment_size(segment_size) {
            return Err(DataDirError::SegmentSize(segment_size));
        }
        runtime.create_dir_all(path).await.map_err(DataDirError::io(path))?;
        let lock_path = path.join(LOCK);
        let lock = runtime.lock(&lock_path).await.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => DataDirError::InUse(error.to_string()),
            _ => DataDirError::io(&lock_path)(error),
        })?;
        let manifest = match read_manifest(runtime, path).await? {
            Some(manifest) => manifest,
            None => {
                let manifest = Manifest {
                    node: NodeId(u128::from(runtime.random_u64()) << 64 | u128::from(runtime.random_u64())),
                    incarnation: Incarnation(1),
                    shard_count: shard_count.unwrap_or(default_shard_count),
                    segment_size,
                    feature_flags: 0,
                };
                write_first_manifest(runtime, path, &manifest).await.map_err(DataDirError::io(&path.join(MANIFEST)))?;
                manifest
            }
        };
        match shard_count {
            Some(wanted) if wanted != manifest.shard_count => {
                Err(DataDirError::ShardCount { found: manifest.shard_count, wanted })
            }
            _ => Ok(Self { manifest, path: path.to_owned(), _lock: lock }),
        }
    }

    /// The directory of a shard.
    pub fn shard_path(&self, shard: ShardIndex) -> PathBuf {
        self.path.join(format!("shard-{:04}", shard.0))
    }
}

/// The manifest; none in a directory that holds no data yet.
async fn read_manifest<R: Runtime>(runtime: &R, dir: &Path) -> Result<Option<Manifest>, DataDirError> {
    let path = dir.join(MANIFEST);
    let names = runtime.list_dir(dir).await.map_err(DataDirError::io(dir))?;
    let has = |wanted: &dyn Fn(&str) -> bool| names.iter().filter_map(|name| name.file_name()?.to_str()).any(wanted);
    let has_shards = has(&|name| name.starts_with("shard-"));
    if !has(&|name| name == MANIFEST) {
        return if has_shards { Err(DataDirError::NoManifest { path }) } else { Ok(None) };
    }
    let file = runtime.open(&path, OpenOptions::default()).await.map_err(DataDirError::io(&path))?;
    let (bytes, count) = file.read_at(0, 2 * PAGE_SIZE).await.map_err(DataDirError::io(&path))?;
    let (first, second) = bytes.as_slice()[..count].split_at(count.min(PAGE_SIZE));
    match choose(first, second) {
        Ok(copy) => Ok(Some(copy.manifest)),
        // The very first start was cut short: no shard was made yet, so nothing is lost by making the manifest again.
        Err(ChooseError::Neither { .. }) if !has_shards => {
            runtime.remove(&path).await.map_err(DataDirError::io(&path))?;
            Ok(None)
        }
        Err(source) => Err(DataDirError::Manifest { path, source }),
    }
}

async fn write_first_manifest<R: Runtime>(runtime: &R, dir: &Path, manifest: &Manifest) -> io::Result<()> {
    let options = OpenOptions { create_new: true, ..OpenOptions::default() };
    let file = runtime.open(&dir.join(MANIFEST), options).await?;
    for generation in FIRST_GENERATIONS {
        write_pages(&file, &manifest.encode_copy(generation)[..], copy_offset(generation)).await?;
    }
    file.sync().await?;
    file.close().await?;
    runtime.sync_dir(dir).await
}
