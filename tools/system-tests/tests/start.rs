//! Where a node starts, and where it refuses to, with cause and remedy.

#![allow(clippy::unwrap_used)]

use client::{Client, ClientError, ClientOptions, ExtentId, NewExtent, Refusal};
use log_format::ids::{ExtentId as Id, shard_of};
use nix::unistd::{Gid, Uid, chown};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use system_tests::{Bound, Node, NodeOptions, record, roostd_path, scratch, skipped};

const NOBODY: (u32, u32) = (65534, 65534);
const LOCKED_MEMORY: u64 = 8 << 20;

/// Options for a node that runs as an ordinary user, and `data` made for that user; none if that can't be done here.
fn as_ordinary_user(data: &Path) -> Option<NodeOptions> {
    fs::create_dir(data).unwrap();
    if !Uid::effective().is_root() {
        return Some(NodeOptions::default());
    }
    let (user, group) = NOBODY;
    let can_run = Command::new(roostd_path()).arg("--version").uid(user).gid(group).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        skipped("another user than root can't reach the target directory");
        return None;
    }
    chown(data, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).unwrap();
    Some(NodeOptions { user: Some(NOBODY), ..NodeOptions::default() })
}

/// Starts a node that must refuse, with exit code 1 and an error with its hint: that error.
fn refused(data: &Path, options: &NodeOptions) -> String {
    let mut node = Node::launch(data, options);
    let status = node.wait(Duration::from_secs(20));
    let log = node.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let lines: Vec<&str> = log.lines().collect();
    let error = lines.iter().rposition(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error in {log}"));
    assert!(lines[error + 1].starts_with("hint: "), "{log}");
    fs::remove_file(data.with_extension("log")).unwrap();
    lines[error..].join("\n")
}

async fn connect(node: &Node) -> Client {
    Client::connect(node.address(), ClientOptions::default()).await.unwrap()
}

#[tokio::test]
async fn an_ordinary_user_with_8_mib_of_locked_memory_runs_a_node_of_two_shards() {
    let _bound = Bound::seconds("ordinary user", 120);
    let scratch = scratch!("user");
    let data = scratch.path("data");
    let Some(options) = as_ordinary_user(&data) else { return };
    let lower = "ulimit -l 8192 2>/dev/null; exec \"$@\"";
    let options = NodeOptions { wrapper: ["sh", "-c", lower, "sh"].map(str::to_owned).to_vec(), ..options };
    let node = Node::start_with(&data, &options);
    let limits = fs::read_to_string(format!("/proc/{}/limits", node.id())).unwrap();
    let locked = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
    let locked: Vec<&str> = locked.split_whitespace().collect();
    assert!(locked[1].parse::<u64>().is_ok_and(|hard| hard <= LOCKED_MEMORY), "{locked:?}");
    let status = fs::read_to_string(format!("/proc/{}/status", node.id())).unwrap();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    assert!(user.split_whitespace().all(|user| user != "0"), "{user}");

    let client = connect(&node).await;
    let mut extents = Vec::new();
    for _ in 0..8 {
        extents.push(client.create_extent(NewExtent::new()).await.unwrap().extent);
    }
    let shards: Vec<u32> = extents.iter().map(|extent| shard_of((*extent).into(), 2).0).collect();
    for number in 0..200 {
        for extent in &extents {
            client.append(*extent, record(extent.0, number)).await.unwrap();
        }
    }
    assert_eq!(node.metric("roost_records_appended_total", &[]), 1600.0, "on shards {shards:?}");
    node.stop(Duration::from_secs(20));
}

#[test]
fn a_directory_that_can_not_be_written_is_refused() {
    let _bound = Bound::seconds("not writable", 60);
    let scratch = scratch!("not-writable");
    let Some(options) = as_ordinary_user(&scratch.path("other")) else { return };
    let data = scratch.path("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o555)).unwrap();
    let error = refused(&data, &options);
    assert!(error.contains("is not writable") && error.contains("chown"), "{error}");
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was changed");
}

/// Runs something in a thread, and so in its children, where the kernel answers io_uring_setup with an error.
fn without_io_uring<T: Send>(errno: i32, run: impl FnOnce() -> T + Send) -> T {
    /// The same number on every architecture.
    const IO_URING_SETUP: i64 = 425;
    let rules = BTreeMap::from([(IO_URING_SETUP, Vec::new())]);
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let refuse = SeccompAction::Errno(errno as u32);
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap().try_into().unwrap();
    let filtered = || {
        seccompiler::apply_filter(&filter).unwrap();
        run()
    };
    std::thread::scope(|scope| scope.spawn(filtered).join().unwrap())
}

#[test]
fn a_refused_io_uring_is_named_with_its_remedy() {
    let _bound = Bound::seconds("io_uring", 60);
    let scratch = scratch!("io-uring");
    let data = scratch.path("data");
    for (errno, why) in
        [(nix::libc::EPERM, "io_uring is refused by a seccomp filter"), (nix::libc::ENOSYS, "io_uring is missing")]
    {
        let error = without_io_uring(errno, || refused(&data, &NodeOptions::default()));
        assert!(error.contains(why) && error.contains("io_uring_setup"), "{error}");
        assert!(!data.exists(), "nothing was made");
    }
}

/// A data directory with an extent and a record.
async fn filled(data: &Path, extent: ExtentId) {
    let node = Node::start(data);
    let client = connect(&node).await;
    client.create_extent(NewExtent::with_id(extent)).await.unwrap();
    client.append(extent, "a record").await.unwrap();
    node.stop(Duration::from_secs(20));
}

#[tokio::test]
async fn another_count_of_shards_than_the_data_has_is_refused() {
    let _bound = Bound::seconds("shard count", 60);
    let scratch = scratch!("shard-count");
    let data = scratch.path("data");
    filled(&data, Id(1)).await;
    for shards in [1, 3] {
        let error = refused(&data, &NodeOptions { shards, ..NodeOptions::default() });
        assert!(error.contains("the data has 2 shards") && error.contains("--shards"), "{error}");
    }
    let node = Node::start(&data);
    assert_eq!(connect(&node).await.describe(Id(1)).await.unwrap().last_seq.0, 1);
}

#[tokio::test]
async fn a_manifest_of_a_newer_version_is_refused_and_not_touched() {
    let _bound = Bound::seconds("newer manifest", 60);
    let scratch = scratch!("newer");
    let data = scratch.path("data");
    filled(&data, Id(1)).await;
    let path = data.join("node.manifest");
    let whole = fs::read(&path).unwrap();
    let mut newer = whole.clone();
    for copy in newer.chunks_mut(4096) {
        copy[4] += 1;
        let length = u32::from_le_bytes(copy[16..20].try_into().unwrap()) as usize;
        let checked = [&copy[..20], &copy[24..24 + length]].concat();
        copy[20..24].copy_from_slice(&log_format::payload_checksum(&checked).to_le_bytes());
    }
    fs::write(&path, &newer).unwrap();
    let error = refused(&data, &NodeOptions::default());
    assert!(error.contains("version 2") && error.contains("newer"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), newer);

    // One copy damaged: the other does. Both: refused, since there is data.
    let mut damaged = whole.clone();
    damaged[30] ^= 1;
    fs::write(&path, &damaged).unwrap();
    Node::start(&data).stop(Duration::from_secs(20));
    damaged[4096 + 30] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = refused(&data, &NodeOptions::default());
    assert!(error.contains("node.manifest") && error.contains("backup"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = refused(&data, &NodeOptions::default());
    assert!(error.contains("is missing, but the directory has shards"), "{error}");
    fs::write(&path, &whole).unwrap();
    let node = Node::start(&data);
    assert_eq!(connect(&node).await.describe(Id(1)).await.unwrap().last_seq.0, 1);
}

#[tokio::test]
async fn segments_of_another_node_are_set_aside_and_not_served() {
    let _bound = Bound::seconds("foreign segments", 60);
    let scratch = scratch!("foreign");
    let (data, other) = (scratch.path("data"), scratch.path("other"));
    // On the same shard.
    let (own, foreign) = (Id(1), (2..).map(Id).find(|id| shard_of((*id).into(), 2) == shard_of(Id(1).into(), 2)).unwrap());
    filled(&data, own).await;
    filled(&other, foreign).await;
    let shard = format!("shard-{:04}", shard_of(own.into(), 2).0);
    let mut copied = Vec::new();
    for entry in fs::read_dir(other.join(&shard)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("segment-") {
            let to = data.join(&shard).join(format!("segment-{:016x}.seg", 0x1000 + copied.len()));
            fs::copy(entry.path(), &to).unwrap();
            copied.push((to, fs::read(entry.path()).unwrap()));
        }
    }
    assert!(!copied.is_empty());
    for _ in 0..2 {
        let node = Node::start(&data);
        let client = connect(&node).await;
        assert_eq!(client.list().await.unwrap().iter().map(|info| info.extent).collect::<Vec<_>>(), [own]);
        assert!(matches!(client.describe(foreign).await, Err(ClientError::Refused(Refusal::NotFound))));
        client.append(own, "more").await.unwrap();
        assert!(node.log().contains("set aside"), "{}", node.log());
        node.stop(Duration::from_secs(20));
        for (path, bytes) in &copied {
            assert!(fs::read(path).unwrap() == *bytes, "{} was changed", path.display());
        }
    }
    let node = Node::start(&data);
    assert_eq!(connect(&node).await.describe(own).await.unwrap().last_seq.0, 3);
}

#[test]
fn a_node_takes_as_many_open_files_as_it_may() {
    let _bound = Bound::seconds("open files", 60);
    let scratch = scratch!("open-files");
    let wrapper = ["sh", "-c", "ulimit -Sn 256 && exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    let node = Node::start_with(&scratch.path("data"), &NodeOptions { wrapper, ..NodeOptions::default() });
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    assert_eq!(node.metric("process_max_fds", &[]), hard as f64);
}
