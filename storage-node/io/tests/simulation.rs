//! What the simulated backend promises beyond the contract of all backends: its fault model, and that a seed decides everything.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use node_io::sim::{CrashMode, FaultKind, Faults, Limits, Sim, SimFile, SimRuntime};
use node_io::{File, IoBuf, Listener, OpenOptions, PAGE_SIZE, ReadHalf, Runtime, Stream, WriteHalf};

const SECTOR: usize = 512;
const NODE: u32 = 1;
const CREATE: OpenOptions = OpenOptions { write: true, create_new: true, durable: false };
const CREATE_DURABLE: OpenOptions = OpenOptions { write: true, create_new: true, durable: true };
const WRITE: OpenOptions = OpenOptions { write: true, create_new: false, durable: false };

/// Runs `body` for each seed, saying which.
fn seeds(count: u64, body: impl Fn(u64)) {
    for seed in 0..count {
        eprintln!("seed {seed}");
        body(seed);
    }
}

async fn write(file: &SimFile, page: usize, count: usize, byte: u8) -> io::Result<()> {
    let mut buf = file.allocate(count * PAGE_SIZE);
    buf.as_mut_slice().fill(byte);
    file.write_at(buf, count * PAGE_SIZE, (page * PAGE_SIZE) as u64).await.0
}

/// A file of a synced name, with `pages` pages of zeros on the medium.
async fn prepared(runtime: &SimRuntime, name: &str, pages: usize, options: OpenOptions) -> SimFile {
    let file = runtime.open(Path::new(name), options).await.unwrap();
    write(&file, 0, pages, 0).await.unwrap();
    file.sync().await.unwrap();
    runtime.sync_dir(Path::new("")).await.unwrap();
    file
}

fn content(sim: &Sim, name: &str) -> Vec<u8> {
    sim.read_file(NODE, Path::new(name)).unwrap()
}

/// Files, tasks, messages, faults and a crash: a little of everything.
fn busy_world(seed: u64) -> u64 {
    let sim = Sim::new(seed);
    for life in 0..3 {
        let (server, client) = (sim.node(1), sim.node(2));
        sim.set_faults(1, Faults { write_error: 0.1, short_write: 0.2, sync_error: 0.1, ..Faults::default() });
        let address = SocketAddr::from(([127, 0, 0, 1], 7440));
        let inner = server.clone();
        server.spawn_detached(Box::pin(async move {
            let listener = inner.listen(address).await.unwrap();
            let path = format!("file-{life}");
            let file = inner.open(Path::new(&path), CREATE).await.unwrap();
            let (mut read, mut write_half) = listener.accept().await.unwrap().into_split();
            let mut buf = vec![0; 1000];
            while let Ok(count @ 1..) = read.read(&mut buf).await {
                let written = write(&file, count % 8, 4, count as u8).await;
                let synced = file.sync().await;
                let answer = [u8::from(written.is_ok()), u8::from(synced.is_ok())];
                if write_half.write_all(&answer).await.is_err() {
                    return;
                }
            }
        }));
        let inner = client.clone();
        client.spawn_detached(Box::pin(async move {
            let (mut read, mut write_half) = loop {
                match inner.connect(address).await {
                    Ok(stream) => break stream.into_split(),
                    Err(_) => inner.sleep(Duration::from_micros(100)).await,
                }
            };
            for length in 1.. {
                if write_half.write_all(&vec![7; length * 37]).await.is_err() {
                    return;
                }
                let _ = read.read(&mut [0; 16]).await;
            }
        }));
        sim.run_for(Duration::from_millis(20));
        sim.crash(1);
    }
    sim.trace_hash()
}

#[test]
fn the_same_seed_gives_the_same_trace_and_others_differ() {
    let mut hashes = BTreeMap::new();
    seeds(20, |seed| assert_eq!(busy_world(seed), busy_world(seed)));
    for seed in 0..20 {
        if let Some(other) = hashes.insert(busy_world(seed), seed) {
            panic!("seeds {other} and {seed} have the same trace");
        }
    }
}

#[test]
fn no_crash_takes_back_a_durable_or_synced_write() {
    seeds(200, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let durable = prepared(&runtime, "durable", 8, CREATE_DURABLE).await;
            let synced = prepared(&runtime, "synced", 8, CREATE).await;
            // Unflushed writes in the way of a later durable one must not come back over it.
            let plain = runtime.open(Path::new("durable"), WRITE).await.unwrap();
            write(&plain, 0, 8, 1).await.unwrap();
            write(&durable, 2, 3, 2).await.unwrap();
            write(&synced, 0, 4, 3).await.unwrap();
            synced.sync().await.unwrap();
            write(&synced, 4, 4, 4).await.unwrap();
        });
        sim.crash(NODE);
        assert!(content(&sim, "durable")[2 * PAGE_SIZE..5 * PAGE_SIZE].iter().all(|&byte| byte == 2));
        assert!(content(&sim, "synced")[..4 * PAGE_SIZE].iter().all(|&byte| byte == 3));
        // And it stays so over the next crash.
        sim.node(NODE);
        let after = (content(&sim, "durable"), content(&sim, "synced"));
        sim.crash(NODE);
        assert!(after == (content(&sim, "durable"), content(&sim, "synced")), "a crash with nothing unflushed changed something");
    });
}

/// How much of a write of `byte` over zeros is there.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    None,
    All,
    Torn,
}

fn kept(bytes: &[u8], byte: u8) -> Kept {
    let new = bytes
        .chunks(SECTOR)
        .map(|sector| {
            assert!(sector.iter().all(|&found| found == sector[0]), "a sector is torn");
            assert!(sector[0] == 0 || sector[0] == byte, "a sector holds what nobody wrote");
            sector[0] == byte
        })
        .collect::<Vec<_>>();
    match new.iter().filter(|&&new| new).count() {
        0 => Kept::None,
        count if count == new.len() => Kept::All,
        _ => Kept::Torn,
    }
}

#[test]
fn a_crash_keeps_none_a_prefix_or_a_subset_of_what_is_unflushed() {
    const WRITES: usize = 8;
    const PAGES: usize = 4;
    let outcomes = Cell::new([0u32; 5]);
    let count = |place: usize| {
        let mut counts = outcomes.get();
        counts[place] += 1;
        outcomes.set(counts);
    };
    seeds(300, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let file = prepared(&runtime, "file", WRITES * PAGES, CREATE).await;
            for number in 0..WRITES {
                write(&file, number * PAGES, PAGES, number as u8 + 1).await.unwrap();
            }
        });
        let mode = sim.crash(NODE);
        let after = content(&sim, "file");
        let kept: Vec<Kept> = after.chunks(PAGES * PAGE_SIZE).zip(1..).map(|(bytes, byte)| kept(bytes, byte)).collect();
        let whole = kept.iter().take_while(|&kept| *kept == Kept::All).count();
        match mode {
            CrashMode::KeepNone => {
                assert_eq!(whole, 0);
                assert!(kept.iter().all(|kept| *kept == Kept::None), "{kept:?}");
                count(0);
            }
            CrashMode::KeepPrefix => {
                assert!(kept.iter().skip(whole + 1).all(|kept| *kept == Kept::None), "{kept:?}");
                count(1);
            }
            CrashMode::KeepSubset => count(2),
            CrashMode::KeepAll => unreachable!("a crash does not choose it"),
        }
        if kept.contains(&Kept::Torn) {
            assert!(sim.reached(NODE, FaultKind::WriteTorn) > 0);
            count(3);
        }
        if kept.windows(2).any(|pair| pair == [Kept::None, Kept::All]) {
            assert_eq!(mode, CrashMode::KeepSubset);
            count(4);
        }
    });
    assert!(outcomes.get().iter().all(|&count| count > 10), "not all outcomes were reached: {:?}", outcomes.get());
}

#[test]
fn a_durable_write_in_flight_may_be_torn_and_was_not_acked() {
    let torn = Cell::new(0);
    let absent = Cell::new(0);
    let whole = Cell::new(0);
    seeds(300, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        let file = sim.block_on(NODE, prepared(&runtime, "file", 8, CREATE_DURABLE));
        let acked = Rc::new(Cell::new(false));
        let setter = acked.clone();
        runtime.spawn_detached(Box::pin(async move {
            write(&file, 0, 8, 9).await.unwrap();
            setter.set(true);
        }));
        sim.run_for(Duration::from_micros(20));
        assert!(!acked.get(), "no write is that fast");
        sim.crash(NODE);
        assert!(!acked.get());
        let counter = match kept(&content(&sim, "file"), 9) {
            Kept::None => &absent,
            Kept::All => &whole,
            Kept::Torn => &torn,
        };
        counter.set(counter.get() + 1);
    });
    assert!([&torn, &absent, &whole].iter().all(|counter| counter.get() > 10), "{torn:?} {absent:?} {whole:?}");
}

#[test]
fn without_torn_writes_a_crash_keeps_each_write_whole_or_not_at_all() {
    seeds(100, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.set_faults(NODE, Faults { torn_write: 0.0, ..Faults::default() });
        let file = sim.block_on(NODE, async {
            let file = prepared(&runtime, "file", 16, CREATE).await;
            join_all((0..2).map(|number| write(&file, number * 4, 4, number as u8 + 1))).await;
            file
        });
        runtime.spawn_detached(Box::pin(async move {
            join_all((2..4).map(|number| write(&file, number * 4, 4, number as u8 + 1))).await;
        }));
        sim.run_for(Duration::from_micros(100));
        sim.crash(NODE);
        for (bytes, byte) in content(&sim, "file").chunks(4 * PAGE_SIZE).zip(1..) {
            assert_ne!(kept(bytes, byte), Kept::Torn);
        }
    });
}

#[test]
fn names_that_were_not_synced_may_vanish_in_order() {
    let seen = Cell::new([0u32; 4]);
    seeds(200, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            prepared(&runtime, "old", 1, CREATE).await;
            let new = runtime.open(Path::new("new.tmp"), CREATE_DURABLE).await.unwrap();
            write(&new, 0, 1, 5).await.unwrap();
            new.sync().await.unwrap();
            runtime.rename(Path::new("new.tmp"), Path::new("old")).await.unwrap();
            runtime.open(Path::new("last"), CREATE).await.unwrap();
        });
        sim.crash(NODE);
        let names: Vec<String> = sim.list_dir(NODE, Path::new("")).iter().map(|name| name.display().to_string()).collect();
        let old = content(&sim, "old")[0];
        let place = match (names.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), old) {
            (["old"], 0) => 0,
            (["new.tmp", "old"], 0) => 1,
            (["old"], 5) => 2,
            (["last", "old"], 5) => 3,
            other => panic!("no prefix of what was done: {other:?}"),
        };
        let mut counts = seen.get();
        counts[place] += 1;
        seen.set(counts);
        assert_eq!(sim.reached(NODE, FaultKind::NameLost), 3 - place as u64);
    });
    assert!(seen.get().iter().all(|&count| count > 5), "{:?}", seen.get());
}

#[test]
fn synced_names_and_made_directories_stay() {
    seeds(100, |seed| {
        let sim = Sim::new(seed);
        sim.set_faults(sim.node(NODE).node(), Faults { lost_names: 1.0, ..Faults::default() });
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let directory = Path::new("a/b");
            runtime.create_dir_all(directory).await.unwrap();
            for name in ["x", "y", "z"] {
                runtime.open(&directory.join(name), CREATE).await.unwrap();
            }
            runtime.rename(&directory.join("x"), &directory.join("w")).await.unwrap();
            runtime.remove(&directory.join("y")).await.unwrap();
            runtime.sync_dir(directory).await.unwrap();
        });
        sim.crash(NODE);
        assert_eq!(sim.list_dir(NODE, Path::new("a/b")), [Path::new("w"), Path::new("z")]);
    });
}

#[test]
fn what_a_failed_sync_covered_is_durable_or_lost_whatever_succeeds_later() {
    let lost = Cell::new(0);
    let survived = Cell::new(0);
    seeds(100, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let file = prepared(&runtime, "file", 2, CREATE).await;
            write(&file, 0, 1, 1).await.unwrap();
            sim.set_faults(NODE, Faults { sync_error: 1.0, ..Faults::default() });
            assert_eq!(file.sync().await.unwrap_err().raw_os_error(), Some(libc::EIO));
            sim.set_faults(NODE, Faults::default());
            write(&file, 1, 1, 2).await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(file.read_at(0, PAGE_SIZE).await.unwrap().0.as_slice()[0], 1, "it must look well until the crash");
        });
        assert_eq!(sim.reached(NODE, FaultKind::SyncError), 1);
        sim.crash(NODE);
        let after = content(&sim, "file");
        assert_eq!(after[PAGE_SIZE], 2);
        let counter = if after[0] == 1 { &survived } else { &lost };
        counter.set(counter.get() + 1);
    });
    assert!(lost.get() > 10 && survived.get() > 10, "{lost:?} {survived:?}");
}

#[test]
fn failed_and_short_writes_leave_a_part_and_give_the_buffer_back() {
    let partial = Cell::new(0);
    let resumed = Cell::new(0);
    seeds(100, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        let faults = [Faults { write_error: 1.0, ..Faults::default() }, Faults { short_write: 1.0, ..Faults::default() }];
        for (number, faults) in faults.into_iter().enumerate() {
            let name = format!("file-{number}");
            sim.set_faults(NODE, Faults::default());
            let file = sim.block_on(NODE, prepared(&runtime, &name, 4, CREATE_DURABLE));
            sim.set_faults(NODE, faults);
            let mut buf = file.allocate(4 * PAGE_SIZE);
            buf.as_mut_slice().fill(3);
            let (result, buf) = sim.block_on(NODE, file.write_at(buf, 4 * PAGE_SIZE, 0));
            assert!(buf.as_slice().iter().all(|&byte| byte == 3) && buf.as_slice().len() == 4 * PAGE_SIZE);
            let kept = kept(&content(&sim, &name), 3);
            match result {
                Ok(()) => {
                    assert_eq!((number, kept), (1, Kept::All));
                    resumed.set(resumed.get() + 1);
                }
                Err(_) if kept == Kept::Torn => partial.set(partial.get() + 1),
                Err(_) => {}
            }
        }
    });
    assert!(partial.get() > 50 && resumed.get() > 10, "{partial:?} {resumed:?}");
}

#[test]
fn reads_and_names_fail_when_told_to() {
    let sim = Sim::new(1);
    let runtime = sim.node(NODE);
    sim.block_on(NODE, async {
        let file = prepared(&runtime, "file", 1, CREATE).await;
        sim.set_faults(NODE, Faults { read_error: 1.0, name_error: 1.0, ..Faults::default() });
        assert_eq!(file.read_at(0, PAGE_SIZE).await.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(runtime.rename(Path::new("file"), Path::new("other")).await.is_err());
        assert!(runtime.open(Path::new("file"), WRITE).await.is_err());
        assert!(runtime.sync_dir(Path::new("")).await.is_err());
    });
    assert_eq!(sim.list_dir(NODE, Path::new("")), [Path::new("file")]);
    assert_eq!((sim.reached(NODE, FaultKind::ReadError), sim.reached(NODE, FaultKind::NameError)), (1, 3));
}

#[test]
fn a_full_disk_refuses_what_needs_room_and_takes_what_does_not() {
    const PAGES: u64 = 10;
    let sim = Sim::new(1);
    let runtime = sim.node(NODE);
    sim.set_faults(NODE, Faults { disk_bytes: PAGES * PAGE_SIZE as u64, ..Faults::default() });
    sim.block_on(NODE, async {
        let file = prepared(&runtime, "file", 8, CREATE_DURABLE).await;
        assert_eq!(runtime.space(Path::new("")).unwrap(), (2 * PAGE_SIZE as u64, PAGES * PAGE_SIZE as u64));
        let error = write(&file, 8, 4, 1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.size().await.unwrap(), PAGES * PAGE_SIZE as u64, "the pages that fit were written");
        write(&file, 0, 8, 2).await.unwrap();
        // A file whose name is gone takes room until it is closed.
        runtime.remove(Path::new("file")).await.unwrap();
        runtime.sync_dir(Path::new("")).await.unwrap();
        assert_eq!(runtime.space(Path::new("")).unwrap().0, 0);
        file.close().await.unwrap();
        assert_eq!(runtime.space(Path::new("")).unwrap().0, PAGES * PAGE_SIZE as u64);
    });
    assert_eq!(sim.reached(NODE, FaultKind::NoSpace), 1);
}

#[test]
fn a_recycled_file_holds_what_its_former_life_left() {
    let sim = Sim::new(1);
    let runtime = sim.node(NODE);
    sim.block_on(NODE, async {
        let file = prepared(&runtime, "old", 2, CREATE_DURABLE).await;
        write(&file, 0, 2, 6).await.unwrap();
        runtime.rename(Path::new("old"), Path::new("spare")).await.unwrap();
        runtime.sync_dir(Path::new("")).await.unwrap();
    });
    sim.crash(NODE);
    assert!(content(&sim, "spare").iter().all(|&byte| byte == 6));
}

#[test]
fn a_kill_keeps_what_was_written_and_a_later_power_cut_may_not() {
    let lost = Cell::new(0);
    seeds(50, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let file = prepared(&runtime, "file", 1, CREATE).await;
            write(&file, 0, 1, 8).await.unwrap();
        });
        sim.kill(NODE);
        assert_eq!(content(&sim, "file")[0], 8);
        sim.node(NODE);
        sim.crash_with(NODE, CrashMode::KeepNone);
        lost.set(lost.get() + u32::from(content(&sim, "file")[0] == 0));
    });
    assert_eq!(lost.get(), 50, "it was never flushed");
}

#[test]
fn a_crash_ends_tasks_frees_locks_and_breaks_connections() {
    struct Dropped(Rc<Cell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    seeds(20, |seed| {
        let sim = Sim::new(seed);
        let (server, client) = (sim.node(NODE), sim.node(2));
        let address = SocketAddr::from(([10, 0, 0, 1], 1));
        let dropped = Rc::new(Cell::new(false));
        let guard = Dropped(dropped.clone());
        let inner = server.clone();
        server.spawn_detached(Box::pin(async move {
            let _guard = guard;
            let _lock = inner.lock(Path::new("LOCK")).await.unwrap();
            let listener = inner.listen(address).await.unwrap();
            let _stream = listener.accept().await.unwrap();
            inner.sleep(Duration::from_secs(3600)).await;
            unreachable!("the node crashes before");
        }));
        sim.run_for(Duration::from_millis(5));
        let (mut read, _write) = sim.block_on(2, async { client.connect(address).await.unwrap().into_split() });
        let reader = client.spawn(async move { read.read(&mut [0; 10]).await });
        sim.run_for(Duration::from_millis(5));
        sim.crash(NODE);
        assert!(dropped.get());
        assert_eq!(sim.block_on(2, reader).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let refused = sim.block_on(2, client.connect(address)).err().expect("nobody listens any more");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let server = sim.node(NODE);
        sim.block_on(NODE, async { drop(server.lock(Path::new("LOCK")).await.unwrap()) });
        assert_eq!(sim.reached(NODE, FaultKind::ConnectionCut), 1);
    });
}

#[test]
fn a_node_can_crash_itself_and_others_from_within() {
    let sim = Sim::new(3);
    let runtime = sim.node(NODE);
    let (inner, world) = (runtime.clone(), sim.clone());
    runtime.spawn_detached(Box::pin(async move {
        inner.sleep(Duration::from_millis(1)).await;
        world.crash(NODE);
        inner.yield_now().await;
        unreachable!("a crashed node's task went on");
    }));
    sim.run_for(Duration::from_millis(10));
    sim.run(async {
        let next = sim.node(NODE);
        next.spawn(async {}).await;
        sim.crash(NODE);
    });
}

#[test]
fn cut_connections_are_broken_on_both_sides() {
    let sim = Sim::new(4);
    let runtime = sim.node(NODE);
    let result = sim.block_on(NODE, async {
        let listener = runtime.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let (mut client, _client) = runtime.connect(listener.local_address()).await.unwrap().into_split();
        let (mut server, _server) = listener.accept().await.unwrap().into_split();
        sim.cut_connections(NODE);
        (client.read(&mut [0; 4]).await, server.read(&mut [0; 4]).await)
    });
    assert_eq!(result.0.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(result.1.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn the_wall_clock_steps_and_the_monotonic_does_not() {
    let sim = Sim::new(5);
    let runtime = sim.node(NODE);
    let (wall, monotonic) = (runtime.wall_clock(), runtime.monotonic());
    sim.step_clock(NODE, -3_600_000_000_000);
    assert_eq!(runtime.wall_clock(), wall - 3_600_000_000_000);
    assert_eq!(runtime.monotonic(), monotonic);
    sim.crash(NODE);
    assert_eq!(sim.node(NODE).wall_clock(), wall - 3_600_000_000_000, "a machine keeps its clock");
}

#[test]
fn rot_flips_one_bit_on_the_medium() {
    let sim = Sim::new(6);
    let runtime = sim.node(NODE);
    sim.block_on(NODE, prepared(&runtime, "file", 2, CREATE));
    assert!(sim.corrupt(NODE, Path::new("file"), 5000, 3));
    assert!(!sim.corrupt(NODE, Path::new("file"), 2 * PAGE_SIZE as u64, 3), "past the end");
    assert!(!sim.corrupt(NODE, Path::new("missing"), 0, 3));
    sim.crash(NODE);
    let after = content(&sim, "file");
    assert_eq!(after[5000], 8);
    assert_eq!(after.iter().filter(|&&byte| byte != 0).count(), 1);
}

fn panic_text(body: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(body)).expect_err("it should have panicked");
    panic.downcast_ref::<String>().expect("a panic with a message").clone()
}

#[test]
fn a_deadlock_and_a_livelock_are_panics_that_name_the_seed() {
    let deadlock = panic_text(|| Sim::new(77).run(std::future::pending()));
    assert!(deadlock.contains("seed 77") && deadlock.contains("deadlock"), "{deadlock}");
    let spinning = |limits: Limits| {
        let sim = Sim::new(78);
        sim.set_limits(limits);
        let runtime = sim.node(NODE);
        let inner = runtime.clone();
        runtime.spawn_detached(Box::pin(async move {
            loop {
                inner.yield_now().await;
            }
        }));
        sim.run(std::future::pending())
    };
    let turns = panic_text(|| spinning(Limits { turns: 1000, ..Limits::default() }));
    assert!(turns.contains("seed 78") && turns.contains("limit of turns"), "{turns}");
    let time = panic_text(|| spinning(Limits { time: Duration::from_millis(1), ..Limits::default() }));
    assert!(time.contains("seed 78") && time.contains("virtual time"), "{time}");
}

#[test]
fn ready_tasks_run_in_an_order_that_the_seed_chooses() {
    let order = |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let ended = Rc::new(std::cell::RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..6)
                .map(|number| {
                    let ended = ended.clone();
                    runtime.spawn(async move { ended.borrow_mut().push(number) })
                })
                .collect();
            join_all(tasks).await;
            ended.take()
        })
    };
    let orders: std::collections::BTreeSet<Vec<i32>> = (0..50).map(order).collect();
    assert!(orders.len() > 20, "only {} orders over 50 seeds", orders.len());
    assert_eq!(order(9), order(9));
}
