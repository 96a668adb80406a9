//! The names on a fake disk: what is seen, what is on the medium, and the changes between the two.
//!
//! The fault model is described in [`super::disk`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::disk::Inode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    File(Inode),
}

#[derive(Debug)]
enum NameChange {
    Link { path: PathBuf, inode: Inode },
    Unlink { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, inode: Inode },
}

impl NameChange {
    fn directory(&self) -> &Path {
        let (NameChange::Link { path, .. } | NameChange::Unlink { path } | NameChange::Rename { to: path, .. }) = self;
        path.parent().unwrap_or(Path::new(""))
    }

    fn inode(&self) -> Option<Inode> {
        match self {
            NameChange::Link { inode, .. } | NameChange::Rename { inode, .. } => Some(*inode),
            NameChange::Unlink { .. } => None,
        }
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, Entry>) {
        match self {
            NameChange::Link { path, inode } => {
                names.insert(path, Entry::File(inode));
            }
            NameChange::Unlink { path } => {
                names.remove(&path);
            }
            NameChange::Rename { from, to, inode } => {
                names.remove(&from);
                names.insert(to, Entry::File(inode));
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Names {
    current: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
    unsynced: Vec<(u64, NameChange)>,
    changes: u64,
}

fn error(kind: io::ErrorKind, path: &Path) -> io::Error {
    io::Error::new(kind, format!("{}: {kind}", path.display()))
}

/// Paths are compared as written, without `.` and a leading `/`.
fn normal(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir)).collect()
}

impl Names {
    fn entry(&self, path: &Path) -> Option<Entry> {
        if path.as_os_str().is_empty() { Some(Entry::Directory) } else { self.current.get(path).copied() }
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        match self.entry(path.parent().unwrap_or(Path::new(""))) {
            Some(Entry::Directory) => Ok(()),
            Some(Entry::File(_)) => Err(error(io::ErrorKind::NotADirectory, path)),
            None => Err(error(io::ErrorKind::NotFound, path)),
        }
    }

    fn check_directory(&self, path: &Path) -> io::Result<()> {
        match self.entry(path) {
            Some(Entry::Directory) => Ok(()),
            Some(Entry::File(_)) => Err(error(io::ErrorKind::NotADirectory, path)),
            None => Err(error(io::ErrorKind::NotFound, path)),
        }
    }

    fn existing_file(&self, path: &Path) -> io::Result<Inode> {
        match self.entry(path) {
            Some(Entry::File(inode)) => Ok(inode),
            Some(Entry::Directory) => Err(error(io::ErrorKind::IsADirectory, path)),
            None => Err(error(io::ErrorKind::NotFound, path)),
        }
    }

    fn change(&mut self, change: NameChange) {
        self.changes += 1;
        self.unsynced.push((self.changes, change));
    }

    pub(super) fn file(&self, path: &Path) -> Option<Inode> {
        self.existing_file(&normal(path)).ok()
    }

    pub(super) fn lookup(&self, path: &Path) -> io::Result<Inode> {
        self.existing_file(&normal(path))
    }

    /// Whether `path` may be made: it does not exist and its directory does.
    pub(super) fn check_new(&self, path: &Path) -> io::Result<()> {
        let path = normal(path);
        self.check_parent(&path)?;
        if self.entry(&path).is_some() { Err(error(io::ErrorKind::AlreadyExists, &path)) } else { Ok(()) }
    }

    pub(super) fn link(&mut self, path: &Path, inode: Inode) {
        let path = normal(path);
        self.current.insert(path.clone(), Entry::File(inode));
        self.change(NameChange::Link { path, inode });
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let path = normal(path);
        self.existing_file(&path)?;
        self.current.remove(&path);
        self.change(NameChange::Unlink { path });
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from), normal(to));
        assert_eq!(from.parent(), to.parent(), "a rename stays inside its directory");
        let inode = self.existing_file(&from)?;
        if self.entry(&to) == Some(Entry::Directory) {
            return Err(error(io::ErrorKind::IsADirectory, &to));
        }
        if from != to {
            self.current.remove(&from);
            self.current.insert(to.clone(), Entry::File(inode));
            self.change(NameChange::Rename { from, to, inode });
        }
        Ok(())
    }

    pub(super) fn create_directories(&mut self, path: &Path) -> io::Result<()> {
        let mut above = PathBuf::new();
        for part in normal(path).components() {
            above.push(part);
            if self.entry(&above).is_some() {
                self.check_directory(&above)?;
            } else {
                self.current.insert(above.clone(), Entry::Directory);
                self.durable.insert(above.clone(), Entry::Directory);
            }
        }
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let path = normal(path);
        self.check_directory(&path)?;
        Ok(self
            .current
            .keys()
            .filter(|name| name.parent() == Some(&path))
            .filter_map(|name| name.file_name().map(PathBuf::from))
            .collect())
    }

    /// What a sync that starts now will cover.
    pub(super) fn sync_point(&self) -> u64 {
        self.changes
    }

    pub(super) fn sync(&mut self, path: &Path, point: u64) -> io::Result<()> {
        let path = normal(path);
        self.check_directory(&path)?;
        for (number, change) in std::mem::take(&mut self.unsynced) {
            if number <= point && change.directory() == path {
                change.apply(&mut self.durable);
            } else {
                self.unsynced.push((number, change));
            }
        }
        Ok(())
    }

    pub(super) fn has_current(&self, inode: Inode) -> bool {
        self.current.values().any(|entry| *entry == Entry::File(inode))
    }

    pub(super) fn leads_to(&self, inode: Inode) -> bool {
        self.has_current(inode)
            || self.durable.values().any(|entry| *entry == Entry::File(inode))
            || self.unsynced.iter().any(|(_, change)| change.inode() == Some(inode))
    }

    /// Keeps a prefix of each directory's changes, or, with the chance 1 - `lost_names`, all. Gives how many were lost.
    pub(super) fn crash(&mut self, lost_names: f64, rng: &mut ChaCha8Rng) -> usize {
        let directories: BTreeSet<PathBuf> = self.unsynced.iter().map(|(_, change)| change.directory().to_owned()).collect();
        let mut unsynced = std::mem::take(&mut self.unsynced);
        let mut lost = 0;
        for directory in directories {
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                unsynced.into_iter().partition(|(_, change)| change.directory() == directory);
            unsynced = elsewhere;
            let loses = lost_names > 0.0 && rng.random_bool(lost_names);
            let kept = if loses { rng.random_range(0..=here.len()) } else { here.len() };
            lost += here.len() - kept;
            for (_, change) in here.into_iter().take(kept) {
                change.apply(&mut self.durable);
            }
        }
        self.current = self.durable.clone();
        lost
    }
}
