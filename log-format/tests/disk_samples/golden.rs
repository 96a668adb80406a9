//! The golden files: compared with what the encoders make now, or made anew.

#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::path::{Path, PathBuf};

fn directory(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(below)
}

/// Compares the samples with the files of a directory, which must hold no others.
pub(crate) fn compare(below: &str, samples: &[(String, Vec<u8>)]) {
    let directory = directory(below);
    if std::env::var_os("ROOST_REGENERATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&directory).unwrap();
        for (name, bytes) in samples {
            std::fs::write(directory.join(name).with_extension("bin"), bytes).unwrap();
        }
    }
    for (name, bytes) in samples {
        let path = directory.join(name).with_extension("bin");
        let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let difference = golden.iter().zip(bytes).position(|(golden, byte)| golden != byte);
        assert!(golden == *bytes, "{} is not written as in version 1: first difference at {difference:?}", path.display());
    }
    let files = std::fs::read_dir(&directory).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count();
    assert_eq!(files, samples.len(), "a file in {} that no sample makes", directory.display());
}

pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path = directory("v1").join(name).with_extension("bin");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
