//! The fault model of the fake disk, clause by clause.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use node_io::sim::{CrashMode, FaultKind, Faults, Sim};
use node_io::{File, IoBuf, PAGE_SIZE, Runtime};

use crate::{CREATE, CREATE_DURABLE, NODE, SECTOR, WRITE, content, prepared, seeds, write};

/// Files, tasks, messages, faults and a crash: a little of everything.
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
