//! What the real backend promises beyond the contract of all backends: flags, threads, limits of locked memory, preflight refusals.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use node_io::glommio::{
    GlommioRuntime, GlommioSocket, GlommioStream, ShardThreadSettings, StartRefusal, preflight, registered_bytes_within_limit,
    spawn_shard_thread,
};
use node_io::{File, IoBuf, Listener, OpenOptions, PAGE_SIZE, ReadHalf, Runtime, Stream, WriteHalf};
use tokio::sync::{mpsc, oneshot};

const CREATE: OpenOptions = OpenOptions { write: true, create_new: true, durable: false };
const CREATE_DURABLE: OpenOptions = OpenOptions { write: true, create_new: true, durable: true };
const NOBODY: u32 = 65_534;

/// A directory for one test, open to all users, removed at its end.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("machine-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        Self(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings() -> ShardThreadSettings {
    ShardThreadSettings::for_shards(4, None)
}

fn on_shard<T: Send + 'static, F: Future<Output = T> + 'static>(body: impl FnOnce(GlommioRuntime) -> F + Send + 'static) -> T {
    spawn_shard_thread("test", settings(), body).unwrap().join()
}

/// Runs `body` in a process of its own, as the test called `name`, since it changes the process for good.
fn in_child(name: &str, body: impl FnOnce()) {
    const MARK: &str = "NODE_IO_TEST_CHILD";
    if std::env::var(MARK).is_ok_and(|child| child == name) {
        return body();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(MARK, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mark = format!("-{}", child.id());
    let output = child.wait_with_output().unwrap();
    // A child that gave its rights up can't remove its directory.
    for entry in std::fs::read_dir(env!("CARGO_TARGET_TMPDIR")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().ends_with(&mark) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{errors}");
}

fn limit_locked_memory(bytes: u64) {
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, bytes, bytes).unwrap();
}

/// Root is above most limits; false where there is nothing to give up.
fn become_ordinary_user() -> bool {
    if !nix::unistd::geteuid().is_root() {
        return false;
    }
    nix::unistd::setgroups(&[]).unwrap();
    nix::unistd::setgid(NOBODY.into()).unwrap();
    nix::unistd::setuid(NOBODY.into()).unwrap();
    true
}

async fn write_and_read(runtime: &GlommioRuntime, path: &Path, byte: u8) {
    const WRITES: u64 = 32;
    const LENGTH: usize = 64 * 1024;
    let file = runtime.open(path, CREATE_DURABLE).await.unwrap();
    let writes = (0..WRITES).map(|number| {
        let mut buf = file.allocate(LENGTH);
        buf.as_mut_slice().fill(byte);
        file.write_at(buf, LENGTH, number * LENGTH as u64)
    });
    join_all(writes).await.into_iter().for_each(|(result, _)| result.unwrap());
    let reads = (0..WRITES).map(|number| file.read_at(number * LENGTH as u64, LENGTH));
    for read in join_all(reads).await {
        let (buf, count) = read.unwrap();
        assert!(count == LENGTH && buf.as_slice().iter().all(|&found| found == byte));
    }
    file.close().await.unwrap();
}

/// The flags with which this process has `path` open.
fn open_flags(path: &Path) -> i32 {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = descriptors.flatten().find(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path)).unwrap();
    let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(open.file_name())).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
    i32::from_str_radix(flags.trim(), 8).unwrap()
}

#[test]
fn files_are_direct_and_durable_ones_are_dsync() {
    let directory = TestDirectory::new("flags");
    let path = directory.0.canonicalize().unwrap();
    on_shard(move |runtime| async move {
        let plain = runtime.open(&path.join("plain"), CREATE).await.unwrap();
        let durable = runtime.open(&path.join("durable"), CREATE_DURABLE).await.unwrap();
        let flags = open_flags(&path.join("plain"));
        assert_eq!((flags & libc::O_DIRECT, flags & libc::O_DSYNC), (libc::O_DIRECT, 0));
        let flags = open_flags(&path.join("durable"));
        assert_eq!((flags & libc::O_DIRECT, flags & libc::O_DSYNC), (libc::O_DIRECT, libc::O_DSYNC));
        plain.close().await.unwrap();
        durable.close().await.unwrap();
    });
}

#[test]
fn channels_work_between_shards_and_other_threads() {
    const MESSAGES: u64 = 20_000;
    const CLIENTS: u64 = 3;
    type Request = (u64, oneshot::Sender<u64>);
    let (requests, mut inbox) = mpsc::channel::<Request>(16);
    let server = spawn_shard_thread("server", settings(), move |runtime| async move {
        let mut served = 0;
        while let Some((value, answer)) = inbox.recv().await {
            served += 1;
            // Some are answered by another task, later.
            if value % 3 == 0 {
                let inner = runtime.clone();
                runtime.spawn_detached(Box::pin(async move {
                    inner.yield_now().await;
                    answer.send(value + 1).unwrap();
                }));
            } else {
                answer.send(value + 1).unwrap();
            }
        }
        served
    })
    .unwrap();
    async fn ask(requests: mpsc::Sender<Request>) {
        for value in 0..MESSAGES {
            let (answer, result) = oneshot::channel();
            requests.send((value, answer)).await.unwrap();
            assert_eq!(result.await.unwrap(), value + 1);
        }
    }
    let shards: Vec<_> = (1..CLIENTS)
        .map(|_| {
            let requests = requests.clone();
            spawn_shard_thread("client", settings(), move |_| ask(requests)).unwrap()
        })
        .collect();
    let tokio = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ask(requests));
    });
    shards.into_iter().for_each(node_io::glommio::ShardThread::join);
    tokio.join().unwrap();
    assert_eq!(server.join(), MESSAGES * CLIENTS);
}

#[test]
fn a_socket_moves_to_another_shard_without_losing_bytes() {
    const LENGTH: usize = 5_000_000;
    let byte = |place: usize| (place % 253) as u8;
    let (sockets, mut inbox) = mpsc::channel::<GlommioSocket>(1);
    let (address_sender, address) = std::sync::mpsc::channel::<SocketAddr>();
    let acceptor = spawn_shard_thread("acceptor", settings(), move |runtime| async move {
        let listener = runtime.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        address_sender.send(listener.local_address()).unwrap();
        let (mut read, write) = listener.accept().await.unwrap().into_split();
        let mut greeting = [0; 10];
        let mut filled = 0;
        while filled < greeting.len() {
            filled += read.read(&mut greeting[filled..]).await.unwrap();
        }
        assert_eq!(greeting, std::array::from_fn(byte));
        sockets.send(GlommioStream::reunite(read, write).into_socket()).await.unwrap();
    })
    .unwrap();
    let worker = spawn_shard_thread("worker", settings(), move |runtime| async move {
        let stream = runtime.adopt(inbox.recv().await.unwrap()).unwrap();
        let (mut read, mut write) = stream.into_split();
        let mut buf = vec![0; 1 << 20];
        let mut place = 10;
        while place < LENGTH {
            let count = read.read(&mut buf).await.unwrap();
            assert!(count > 0 && (place..).zip(&buf[..count]).all(|(place, &found)| found == byte(place)));
            place += count;
        }
        write.write_all(b"all").await.unwrap();
        assert_eq!(read.read(&mut buf).await.unwrap(), 0);
    })
    .unwrap();
    let mut client = std::net::TcpStream::connect(address.recv().unwrap()).unwrap();
    let bytes: Vec<u8> = (0..LENGTH).map(byte).collect();
    io::Write::write_all(&mut client, &bytes).unwrap();
    let mut answer = [0; 3];
    io::Read::read_exact(&mut client, &mut answer).unwrap();
    assert_eq!(&answer, b"all");
    drop(client);
    acceptor.join();
    worker.join();
}

#[test]
fn a_thread_is_pinned_or_says_why_not() {
    let cpu = (0..1024).find(|&cpu| nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap().is_set(cpu).unwrap());
    let pinned = ShardThreadSettings { cpu, ..settings() };
    let thread = spawn_shard_thread("pinned", pinned, move |_| async move {
        let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
        (0..1024).filter(|&cpu| allowed.is_set(cpu).unwrap()).collect::<Vec<_>>()
    })
    .unwrap();
    assert_eq!(thread.pinning_failure, None);
    assert_eq!(thread.join(), [cpu.unwrap()]);

    let nowhere = ShardThreadSettings { cpu: Some(100_000), ..settings() };
    let thread = spawn_shard_thread("nowhere", nowhere, |runtime| async move {
        runtime.sleep(Duration::from_millis(1)).await;
    })
    .unwrap();
    assert!(thread.pinning_failure.as_ref().is_some_and(|failure| failure.contains("100000")), "{:?}", thread.pinning_failure);
    thread.join();
}

#[test]
fn an_ordinary_user_runs_shards_within_8_mib_of_locked_memory() {
    in_child("an_ordinary_user_runs_shards_within_8_mib_of_locked_memory", || {
        const SHARDS: usize = 4;
        let directory = TestDirectory::new("locked");
        limit_locked_memory(8 << 20);
        become_ordinary_user();
        preflight(&directory.0).unwrap();
        assert!(SHARDS * 3 * registered_bytes_within_limit(SHARDS) <= 4 << 20);
        let threads: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let path = directory.0.join(format!("shard-{shard}"));
                let body = move |runtime: GlommioRuntime| async move { write_and_read(&runtime, &path, shard as u8 + 1).await };
                spawn_shard_thread("shard", ShardThreadSettings::for_shards(SHARDS, Some(shard)), body).unwrap()
            })
            .collect();
        threads.into_iter().for_each(node_io::glommio::ShardThread::join);
    });
}

#[test]
fn too_little_locked_memory_is_refused() {
    in_child("too_little_locked_memory_is_refused", || {
        let directory = TestDirectory::new("unlocked");
        limit_locked_memory(64 << 10);
        let refusal = preflight(&directory.0).unwrap_err();
        assert!(matches!(refusal, StartRefusal::LockedMemoryTooLow { limit: 65_536, .. }), "{refusal}");
        assert!(refusal.remedy().contains("LimitMEMLOCK"));
        // Starting all the same is refused too, not a panic.
        let start = spawn_shard_thread("shard", settings(), |_| async {}).err().unwrap();
        assert!(matches!(start, StartRefusal::Executor { .. }), "{start}");
    });
}

/// From now on this thread gets `error` for every `io_uring_setup`.
fn refuse_rings(error: i32) {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program and its steps live through the calls, and its length is theirs.
    #[expect(unsafe_code)]
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_filter_on_io_uring_is_named() {
    let directory = TestDirectory::new("filtered");
    let refused = |error| {
        let path = directory.0.clone();
        std::thread::spawn(move || {
            refuse_rings(error);
            preflight(&path).unwrap_err()
        })
        .join()
        .unwrap()
    };
    let refusal = refused(libc::EPERM);
    assert!(matches!(refusal, StartRefusal::IoUringFiltered { .. } | StartRefusal::IoUringDisabled { .. }), "{refusal}");
    let refusal = refused(libc::ENOSYS);
    assert!(matches!(refusal, StartRefusal::IoUringMissing { .. }), "{refusal}");
    assert!(refusal.remedy().contains("seccomp"));
}

#[test]
fn preflight_changes_nothing_and_tells_the_device() {
    let directory = TestDirectory::new("preflight");
    let capabilities = preflight(&directory.0).unwrap();
    assert!(capabilities.offset_alignment as usize <= PAGE_SIZE && !capabilities.device.is_empty(), "{capabilities:?}");
    // It need not exist, if it can be made.
    assert_eq!(preflight(&directory.0.join("data")).unwrap(), capabilities);
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}

#[test]
fn preflight_refuses_what_is_no_directory() {
    let directory = TestDirectory::new("no-directory");
    let file = directory.0.join("file");
    std::fs::write(&file, "text").unwrap();
    assert!(matches!(preflight(&file).unwrap_err(), StartRefusal::NotADirectory { .. }));
    assert!(matches!(preflight(&file.join("data")).unwrap_err(), StartRefusal::NotADirectory { .. }));
    let refusal = preflight(&directory.0.join("missing/data")).unwrap_err();
    assert!(matches!(&refusal, StartRefusal::ParentMissing { parent } if *parent == directory.0.join("missing")), "{refusal}");
    assert!(refusal.to_string().contains("missing") && refusal.remedy().contains("create"));
}

#[test]
fn preflight_refuses_a_directory_that_is_not_writable() {
    in_child("preflight_refuses_a_directory_that_is_not_writable", || {
        use std::os::unix::fs::PermissionsExt;
        let directory = TestDirectory::new("read-only");
        std::fs::set_permissions(&directory.0, std::fs::Permissions::from_mode(0o555)).unwrap();
        become_ordinary_user();
        let refusal = preflight(&directory.0).unwrap_err();
        assert!(matches!(&refusal, StartRefusal::NotWritable { path, .. } if *path == directory.0), "{refusal}");
        assert!(refusal.remedy().contains("chown"));
    });
}

#[test]
fn preflight_refuses_a_directory_in_use() {
    let directory = TestDirectory::new("in-use");
    let path = directory.0.clone();
    on_shard(move |runtime| async move {
        let lock = runtime.lock(&path.join("LOCK")).await.unwrap();
        let refusal = preflight(&path).unwrap_err();
        assert!(matches!(refusal, StartRefusal::InUse { .. }), "{refusal}");
        assert!(refusal.to_string().contains(&format!("held by process {}", std::process::id())), "{refusal}");
        drop(lock);
        preflight(&path).unwrap();
    });
}

#[test]
fn preflight_refuses_filesystems_that_keep_nothing_or_have_no_direct_io() {
    // Not every machine has these; each that it has must be refused.
    for place in ["/dev/shm", "/proc", "/sys"] {
        if Path::new(place).is_dir() {
            let refusal = preflight(Path::new(place)).unwrap_err();
            let expected = match place {
                "/dev/shm" => matches!(refusal, StartRefusal::Volatile { .. } | StartRefusal::NotWritable { .. }),
                _ => matches!(refusal, StartRefusal::NotWritable { .. } | StartRefusal::NoDirectIo { .. }),
            };
            assert!(expected, "{place}: {refusal}");
        }
    }
}

#[test]
fn dropped_operations_do_no_harm() {
    const PAGES: usize = 16;
    let directory = TestDirectory::new("dropped");
    let path = directory.0.clone();
    on_shard(move |runtime| async move {
        let file = runtime.open(&path.join("file"), CREATE).await.unwrap();
        let mut zeros = file.allocate(PAGES * PAGE_SIZE);
        zeros.as_mut_slice().fill(0);
        file.write_at(zeros, PAGES * PAGE_SIZE, 0).await.0.unwrap();
        let mut context = Context::from_waker(Waker::noop());
        for round in 0..300u64 {
            let mut buf = file.allocate(PAGE_SIZE);
            buf.as_mut_slice().fill(9);
            let offset = round % PAGES as u64 * PAGE_SIZE as u64;
            assert!(matches!(pin!(file.write_at(buf, PAGE_SIZE, offset)).poll(&mut context), Poll::Pending));
            assert!(matches!(pin!(file.read_at(0, PAGES * PAGE_SIZE)).poll(&mut context), Poll::Pending));
            assert!(matches!(pin!(runtime.list_dir(&path)).poll(&mut context), Poll::Pending));
            if round % 3 == 0 {
                runtime.yield_now().await;
            }
            // Memory that a dropped operation still used would show here.
            let mut fresh = file.allocate(PAGE_SIZE);
            fresh.as_mut_slice().fill(1);
            runtime.yield_now().await;
            assert!(fresh.as_slice().iter().all(|&byte| byte == 1));
        }
        let (buf, count) = file.read_at(0, PAGES * PAGE_SIZE).await.unwrap();
        assert_eq!(count, PAGES * PAGE_SIZE);
        let pages = buf.as_slice().chunks(PAGE_SIZE);
        assert!(pages.into_iter().all(|page| page.iter().all(|&byte| byte == page[0] && (byte == 0 || byte == 9))));
        // Ends with operations outstanding: the thread waits for them.
        assert!(matches!(pin!(runtime.list_dir(&path)).poll(&mut context), Poll::Pending));
    });
}

#[test]
fn a_lock_names_its_holder_in_its_file() {
    let directory = TestDirectory::new("holder");
    let path = directory.0.join("LOCK");
    on_shard(move |runtime| async move {
        let lock = runtime.lock(&path).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(lock);
    });
}
