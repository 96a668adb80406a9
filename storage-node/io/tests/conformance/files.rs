//! Clauses on the content of files.

use std::io;
use std::path::PathBuf;

use futures_util::future::join_all;
use node_io::{File, IoBuf, OpenOptions, PAGE_SIZE, Runtime};

use crate::{CREATE, READ, WRITE, clauses, pages, read_all, write_pages};

clauses! {
    what_was_written_is_read,
    durable_files_read_back,
    buffers_are_whole_pages_and_aligned,
    a_read_is_short_only_at_the_end,
    a_read_past_the_end_gives_nothing,
    a_write_gives_its_buffer_back_cut_and_unchanged,
    a_failed_write_gives_its_buffer_back,
    a_buffer_that_was_read_can_be_changed_and_written,
    many_operations_run_at_a_time,
    large_writes_and_reads_are_whole,
    a_file_can_be_cut_and_extended,
    sync_ends_well,
    clones_share_the_file,
    handles_see_each_others_writes,
}

async fn what_was_written_is_read<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    write_pages(&file, 3, 10, 0).await;
    write_pages(&file, 1, 77, PAGE_SIZE as u64).await;
    let (buf, count) = file.read_at(0, 3 * PAGE_SIZE).await.unwrap();
    assert_eq!(count, 3 * PAGE_SIZE);
    for (page, expected) in buf.as_slice().chunks(PAGE_SIZE).zip([10, 77, 12]) {
        assert!(page.iter().all(|&byte| byte == expected), "expected {expected}, found {}", page[0]);
    }
    let (buf, count) = file.read_at(2 * PAGE_SIZE as u64, PAGE_SIZE).await.unwrap();
    assert_eq!((buf.as_slice()[0], count), (12, PAGE_SIZE));
    file.close().await.unwrap();
}

async fn durable_files_read_back<R: Runtime>(runtime: R, directory: PathBuf) {
    let path = directory.join("file");
    let file = runtime.open(&path, OpenOptions { create_new: true, durable: true, write: false }).await.unwrap();
    write_pages(&file, 4, 1, 0).await;
    file.close().await.unwrap();
    let again = runtime.open(&path, OpenOptions { durable: true, ..READ }).await.unwrap();
    write_pages(&again, 1, 9, 4 * PAGE_SIZE as u64).await;
    let content = read_all(&again).await;
    assert_eq!(content.len(), 5 * PAGE_SIZE);
    assert_eq!(content.iter().step_by(PAGE_SIZE).copied().collect::<Vec<_>>(), [1, 2, 3, 4, 9]);
}

async fn buffers_are_whole_pages_and_aligned<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    for count in [1, 2, 64, 256] {
        let buf = file.allocate(count * PAGE_SIZE);
        assert_eq!(buf.as_slice().len(), count * PAGE_SIZE);
        assert_eq!(buf.as_slice().as_ptr() as usize % PAGE_SIZE, 0, "{count} pages");
    }
}

async fn a_read_is_short_only_at_the_end<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    write_pages(&file, 5, 1, 0).await;
    let (buf, count) = file.read_at(3 * PAGE_SIZE as u64, 8 * PAGE_SIZE).await.unwrap();
    assert_eq!(count, 2 * PAGE_SIZE);
    assert_eq!((buf.as_slice()[0], buf.as_slice()[count - 1]), (4, 5));
    let (_, count) = file.read_at(3 * PAGE_SIZE as u64, 2 * PAGE_SIZE).await.unwrap();
    assert_eq!(count, 2 * PAGE_SIZE);
    // The end need not be that of a page.
    file.set_size(2 * PAGE_SIZE as u64 + 100).await.unwrap();
    let (buf, count) = file.read_at(2 * PAGE_SIZE as u64, PAGE_SIZE).await.unwrap();
    assert_eq!((count, buf.as_slice()[99]), (100, 3));
}

async fn a_read_past_the_end_gives_nothing<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    assert_eq!(file.read_at(0, PAGE_SIZE).await.unwrap().1, 0);
    write_pages(&file, 1, 1, 0).await;
    assert_eq!(file.read_at(PAGE_SIZE as u64, PAGE_SIZE).await.unwrap().1, 0);
    assert_eq!(file.read_at(1 << 20, PAGE_SIZE).await.unwrap().1, 0);
}

async fn a_write_gives_its_buffer_back_cut_and_unchanged<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    let (result, mut buf) = file.write_at(pages(&file, 8, 20), 3 * PAGE_SIZE, 0).await;
    result.unwrap();
    assert_eq!(buf.as_slice().len(), 3 * PAGE_SIZE);
    assert_eq!(buf.as_slice().iter().step_by(PAGE_SIZE).copied().collect::<Vec<_>>(), [20, 21, 22]);
    assert_eq!(file.size().await.unwrap(), 3 * PAGE_SIZE as u64);
    // It can be changed and written again.
    buf.as_mut_slice()[0] = 99;
    let (result, buf) = file.write_at(buf, PAGE_SIZE, 0).await;
    result.unwrap();
    assert_eq!(buf.as_slice().len(), PAGE_SIZE);
    let content = read_all(&file).await;
    assert_eq!((content[0], content[1]), (99, 20));
}

async fn a_failed_write_gives_its_buffer_back<R: Runtime>(runtime: R, directory: PathBuf) {
    let path = directory.join("file");
    let file = runtime.open(&path, CREATE).await.unwrap();
    write_pages(&file, 2, 1, 0).await;
    let reader = runtime.open(&path, READ).await.unwrap();
    let (result, mut buf) = reader.write_at(pages(&file, 2, 50), 2 * PAGE_SIZE, 0).await;
    assert!(result.is_err());
    assert_eq!(buf.as_slice().iter().step_by(PAGE_SIZE).copied().collect::<Vec<_>>(), [50, 51]);
    buf.as_mut_slice()[0] = 52;
    file.write_at(buf, 2 * PAGE_SIZE, 0).await.0.unwrap();
    assert_eq!(read_all(&reader).await[0], 52);
}

async fn a_buffer_that_was_read_can_be_changed_and_written<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    write_pages(&file, 2, 1, 0).await;
    let (mut buf, _) = file.read_at(0, 2 * PAGE_SIZE).await.unwrap();
    buf.as_mut_slice()[5] = 200;
    file.write_at(buf, 2 * PAGE_SIZE, 2 * PAGE_SIZE as u64).await.0.unwrap();
    let (buf, _) = file.read_at(0, PAGE_SIZE).await.unwrap();
    file.write_at(buf, PAGE_SIZE, 3 * PAGE_SIZE as u64).await.0.unwrap();
    let content = read_all(&file).await;
    assert_eq!((content[5], content[2 * PAGE_SIZE + 5], content[3 * PAGE_SIZE]), (1, 200, 1));
}

async fn many_operations_run_at_a_time<R: Runtime>(runtime: R, directory: PathBuf) {
    const COUNT: usize = 300;
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    let writes = (0..COUNT).map(|place| write_pages(&file, 1, place as u8, (place * PAGE_SIZE) as u64));
    join_all(writes).await;
    let reads = (0..COUNT).map(|place| file.read_at((place * PAGE_SIZE) as u64, PAGE_SIZE));
    for (place, read) in join_all(reads).await.into_iter().enumerate() {
        let (buf, count) = read.unwrap();
        assert_eq!((buf.as_slice()[0], count), (place as u8, PAGE_SIZE));
    }
}

async fn large_writes_and_reads_are_whole<R: Runtime>(runtime: R, directory: PathBuf) {
    const COUNT: usize = 1024;
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    write_pages(&file, COUNT, 3, 0).await;
    let (buf, count) = file.read_at(0, COUNT * PAGE_SIZE).await.unwrap();
    assert_eq!(count, COUNT * PAGE_SIZE);
    assert!(buf.as_slice().chunks(PAGE_SIZE).enumerate().all(|(place, page)| page[0] == 3u8.wrapping_add(place as u8)));
}

async fn a_file_can_be_cut_and_extended<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    write_pages(&file, 3, 1, 0).await;
    file.set_size(PAGE_SIZE as u64 + 10).await.unwrap();
    assert_eq!(file.size().await.unwrap(), PAGE_SIZE as u64 + 10);
    file.set_size(4 * PAGE_SIZE as u64).await.unwrap();
    let content = read_all(&file).await;
    assert_eq!(content.len(), 4 * PAGE_SIZE);
    assert_eq!(content[PAGE_SIZE + 9], 2);
    assert!(content[PAGE_SIZE + 10..].iter().all(|&byte| byte == 0), "what a cut took away came back");
}

async fn sync_ends_well<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    write_pages(&file, 2, 1, 0).await;
    file.sync().await.unwrap();
    assert_eq!(read_all(&file).await.len(), 2 * PAGE_SIZE);
}

async fn clones_share_the_file<R: Runtime>(runtime: R, directory: PathBuf) {
    let file = runtime.open(&directory.join("file"), CREATE).await.unwrap();
    let clone = file.clone();
    write_pages(&file, 1, 5, 0).await;
    file.close().await.unwrap();
    assert_eq!(read_all(&clone).await[0], 5);
    write_pages(&clone, 1, 6, 0).await;
    clone.close().await.unwrap();
}

async fn handles_see_each_others_writes<R: Runtime>(runtime: R, directory: PathBuf) {
    let path = directory.join("file");
    let first = runtime.open(&path, CREATE).await.unwrap();
    let second = runtime.open(&path, WRITE).await.unwrap();
    let error = runtime.open(&path, CREATE).await.err().expect("it exists");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    write_pages(&first, 1, 8, 0).await;
    assert_eq!(read_all(&second).await[0], 8);
}
