//! Clauses on names, directories and locks.

use std::io;
use std::path::PathBuf;

use node_io::{File, PAGE_SIZE, Runtime};

use crate::{CREATE, READ, WRITE, clauses, read_all, write_pages};

clauses! {
    a_missing_file_is_not_found,
    directories_are_made_with_those_above,
    names_are_listed_sorted,
    a_rename_replaces_and_keeps_the_content,
    a_renamed_file_keeps_its_handles,
    a_removed_file_is_gone_but_stays_readable,
    operations_on_missing_names_fail,
    a_lock_keeps_a_second_owner_out,
    space_and_capabilities_are_told,
}

async fn a_missing_file_is_not_found<R: Runtime>(runtime: R, directory: PathBuf) {
    for options in [READ, WRITE] {
        let error = runtime.open(&directory.join("missing"), options).await.err().expect("it is missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
    let error = runtime.open(&directory.join("missing/file"), CREATE).await.err().expect("its directory is missing");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

async fn directories_are_made_with_those_above<R: Runtime>(runtime: R, directory: PathBuf) {
    let deep = directory.join("one/two/three");
    runtime.create_dir_all(&deep).await.unwrap();
    runtime.create_dir_all(&deep).await.unwrap();
    runtime.open(&deep.join("file"), CREATE).await.unwrap();
    assert_eq!(runtime.list_dir(&directory).await.unwrap(), [PathBuf::from("one")]);
    assert!(runtime.create_dir_all(&deep.join("file/four")).await.is_err());
}

async fn names_are_listed_sorted<R: Runtime>(runtime: R, directory: PathBuf) {
    for name in ["b", "a10", "a2", "c"] {
        runtime.open(&directory.join(name), CREATE).await.unwrap();
    }
    assert_eq!(runtime.list_dir(&directory).await.unwrap(), ["a10", "a2", "b", "c"].map(PathBuf::from));
    let error = runtime.list_dir(&directory.join("missing")).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

async fn a_rename_replaces_and_keeps_the_content<R: Runtime>(runtime: R, directory: PathBuf) {
    let (from, to) = (directory.join("from"), directory.join("to"));
    for (path, byte) in [(&from, 1), (&to, 2)] {
        write_pages(&runtime.open(path, CREATE).await.unwrap(), 1, byte, 0).await;
    }
    runtime.rename(&from, &to).await.unwrap();
    runtime.sync_dir(&directory).await.unwrap();
    assert_eq!(runtime.list_dir(&directory).await.unwrap(), [PathBuf::from("to")]);
    assert_eq!(read_all(&runtime.open(&to, READ).await.unwrap()).await[0], 1);
}

async fn a_renamed_file_keeps_its_handles<R: Runtime>(runtime: R, directory: PathBuf) {
    let (from, to) = (directory.join("from"), directory.join("to"));
    let file = runtime.open(&from, CREATE).await.unwrap();
    runtime.rename(&from, &to).await.unwrap();
    write_pages(&file, 2, 7, 0).await;
    assert_eq!(file.size().await.unwrap(), 2 * PAGE_SIZE as u64);
    file.set_size(PAGE_SIZE as u64).await.unwrap();
    file.close().await.unwrap();
    let content = read_all(&runtime.open(&to, READ).await.unwrap()).await;
    assert_eq!((content.len(), content[0]), (PAGE_SIZE, 7));
}

async fn a_removed_file_is_gone_but_stays_readable<R: Runtime>(runtime: R, directory: PathBuf) {
    let path = directory.join("file");
    let file = runtime.open(&path, CREATE).await.unwrap();
    write_pages(&file, 1, 4, 0).await;
    runtime.remove(&path).await.unwrap();
    runtime.sync_dir(&directory).await.unwrap();
    assert!(runtime.list_dir(&directory).await.unwrap().is_empty());
    assert_eq!(read_all(&file).await[0], 4);
    assert_eq!(runtime.open(&path, READ).await.err().expect("it was removed").kind(), io::ErrorKind::NotFound);
}

async fn operations_on_missing_names_fail<R: Runtime>(runtime: R, directory: PathBuf) {
    let missing = directory.join("missing");
    assert_eq!(runtime.remove(&missing).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(runtime.rename(&missing, &directory.join("to")).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(runtime.sync_dir(&missing).await.unwrap_err().kind(), io::ErrorKind::NotFound);
}

async fn a_lock_keeps_a_second_owner_out<R: Runtime>(runtime: R, directory: PathBuf) {
    let path = directory.join("LOCK");
    let lock = runtime.lock(&path).await.unwrap();
    let error = runtime.lock(&path).await.err().expect("it is held");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(error.to_string().contains("held by process "), "{error}");
    drop(lock);
    let again = runtime.lock(&path).await.unwrap();
    assert!(runtime.lock(&path).await.is_err());
    drop(again);
    assert_eq!(runtime.list_dir(&directory).await.unwrap(), [PathBuf::from("LOCK")]);
}

async fn space_and_capabilities_are_told<R: Runtime>(runtime: R, directory: PathBuf) {
    let (free, total) = runtime.space(&directory).unwrap();
    assert!(0 < free && free <= total);
    let capabilities = runtime.capabilities(&directory).unwrap();
    for alignment in [capabilities.offset_alignment, capabilities.memory_alignment] {
        assert!(alignment.is_power_of_two() && alignment as usize <= PAGE_SIZE, "{capabilities:?}");
    }
    assert!(!capabilities.device.is_empty() && !capabilities.durability.is_empty());
    assert!(runtime.list_dir(&directory).await.unwrap().is_empty(), "asking left something behind");
}
