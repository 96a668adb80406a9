//! Time, tasks, the network, crashes, and that the seed decides everything.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use node_io::sim::{FaultKind, Faults, Limits, Sim};
use node_io::{File, Listener, ReadHalf, Runtime, Stream, WriteHalf};

use crate::{CREATE, NODE, seeds, write};

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
            let ended = Rc::new(RefCell::new(Vec::new()));
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
    let orders: BTreeSet<Vec<i32>> = (0..50).map(order).collect();
    assert!(orders.len() > 20, "only {} orders over 50 seeds", orders.len());
    assert_eq!(order(9), order(9));
}

#[test]
fn reads_are_segmented_and_writers_held_back() {
    const LENGTH: usize = 300_000;
    seeds(10, |seed| {
        let sim = Sim::new(seed);
        let runtime = sim.node(NODE);
        sim.block_on(NODE, async {
            let listener = runtime.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            let (_read, mut client_write) = runtime.connect(listener.local_address()).await.unwrap().into_split();
            let (mut server_read, _write) = listener.accept().await.unwrap().into_split();
            runtime.spawn_detached(Box::pin(async move {
                client_write.write_all(&vec![1; LENGTH]).await.unwrap();
                client_write.shutdown().await.unwrap();
            }));
            let mut received = 0;
            let mut buf = vec![0; 10_000];
            while let count @ 1.. = server_read.read(&mut buf).await.unwrap() {
                received += count;
            }
            assert_eq!(received, LENGTH);
        });
        assert!(sim.reached(NODE, FaultKind::ReadSegmented) > 5);
        assert!(sim.reached(NODE, FaultKind::BackPressure) > 0);
    });
}
