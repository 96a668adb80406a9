//! A directory of one test.

use crate::bound;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of one test, gone with the value, and when the test runs out of time.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it; use [`scratch!`](crate::scratch).
    ///
    /// # Panics
    /// If it can't be made.
    pub fn new(parent: &str, name: &str) -> Self {
        let path = Path::new(parent).join(format!("system-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        bound::remember_directory(&path);
        Self(path)
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file inside, with this content.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        bound::forget_directory(&self.0);
    }
}
