//! Clauses on tasks, clocks, channels and randomness.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use node_io::{Monotonic, Runtime};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

use crate::clauses;

clauses! {
    a_task_gives_its_result,
    a_task_runs_without_its_handle,
    a_task_that_yields_lets_others_run,
    channels_work_between_tasks,
    many_tasks_wait_for_one_event,
    a_sleep_is_not_short,
    sleeps_end_in_order,
    a_dropped_sleep_does_no_harm,
    clocks_go_forward,
    random_numbers_differ,
}

async fn a_task_gives_its_result<R: Runtime>(runtime: R, _: PathBuf) {
    let inner = runtime.clone();
    let handle = runtime.spawn(async move {
        inner.yield_now().await;
        inner.spawn(async { 20 }).await + 22
    });
    assert_eq!(handle.await, 42);
}

async fn a_task_runs_without_its_handle<R: Runtime>(runtime: R, _: PathBuf) {
    let (sender, receiver) = oneshot::channel();
    let inner = runtime.clone();
    drop(runtime.spawn(async move {
        inner.yield_now().await;
        sender.send(7).unwrap();
    }));
    assert_eq!(receiver.await, Ok(7));
}

async fn a_task_that_yields_lets_others_run<R: Runtime>(runtime: R, _: PathBuf) {
    let done = Rc::new(Cell::new(false));
    let setter = done.clone();
    runtime.spawn_detached(Box::pin(async move { setter.set(true) }));
    while !done.get() {
        runtime.yield_now().await;
    }
}

async fn channels_work_between_tasks<R: Runtime>(runtime: R, _: PathBuf) {
    const COUNT: u64 = 1000;
    let (requests, mut inbox) = mpsc::channel::<(u64, oneshot::Sender<u64>)>(4);
    let (progress, mut watcher) = watch::channel(0);
    let server = runtime.spawn(async move {
        while let Some((value, answer)) = inbox.recv().await {
            progress.send_replace(value);
            answer.send(value * 2).unwrap();
        }
    });
    for value in 1..=COUNT {
        let (answer, result) = oneshot::channel();
        requests.send((value, answer)).await.unwrap();
        assert_eq!(result.await, Ok(value * 2));
    }
    assert_eq!(*watcher.borrow_and_update(), COUNT);
    drop(requests);
    server.await;
}

async fn many_tasks_wait_for_one_event<R: Runtime>(runtime: R, _: PathBuf) {
    const COUNT: u32 = 500;
    let event = Rc::new(Notify::new());
    let waiting = Rc::new(Semaphore::new(0));
    let tasks: Vec<_> = (0..COUNT)
        .map(|number| {
            let (event, waiting) = (event.clone(), waiting.clone());
            runtime.spawn(async move {
                let notified = event.notified();
                waiting.add_permits(1);
                notified.await;
                number
            })
        })
        .collect();
    waiting.acquire_many(COUNT).await.unwrap().forget();
    event.notify_waiters();
    let mut sum = 0;
    for task in tasks {
        sum += task.await;
    }
    assert_eq!(sum, COUNT * (COUNT - 1) / 2);
}

async fn a_sleep_is_not_short<R: Runtime>(runtime: R, _: PathBuf) {
    for duration in [Duration::ZERO, Duration::from_micros(50), Duration::from_millis(5)] {
        let before = runtime.monotonic();
        runtime.sleep(duration).await;
        assert!(runtime.monotonic().since(before) >= duration, "{duration:?}");
    }
}

async fn sleeps_end_in_order<R: Runtime>(runtime: R, _: PathBuf) {
    let ended = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = [90, 30, 60]
        .into_iter()
        .map(|millis| {
            let (inner, ended) = (runtime.clone(), ended.clone());
            runtime.spawn(async move {
                inner.sleep(Duration::from_millis(millis)).await;
                ended.borrow_mut().push(millis);
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    assert_eq!(*ended.borrow(), [30, 60, 90]);
}

async fn a_dropped_sleep_does_no_harm<R: Runtime>(runtime: R, _: PathBuf) {
    let before = runtime.monotonic();
    for _ in 0..100 {
        tokio::select! {
            biased;
            () = runtime.sleep(Duration::from_secs(3600)) => unreachable!("an hour passed"),
            () = runtime.yield_now() => {}
        }
    }
    runtime.sleep(Duration::from_millis(1)).await;
    assert!(runtime.monotonic().since(before) < Duration::from_secs(600));
}

async fn clocks_go_forward<R: Runtime>(runtime: R, _: PathBuf) {
    const YEAR_2020: u64 = 1_577_836_800_000_000_000;
    let (monotonic, wall) = (runtime.monotonic(), runtime.wall_clock());
    assert!(wall > YEAR_2020, "{wall} is not in nanoseconds since the epoch");
    runtime.sleep(Duration::from_millis(20)).await;
    assert!(runtime.monotonic() > monotonic);
    assert!(runtime.wall_clock() > wall);
    assert_eq!(Monotonic(5).since(Monotonic(9)), Duration::ZERO);
}

async fn random_numbers_differ<R: Runtime>(runtime: R, _: PathBuf) {
    let mut numbers: Vec<u64> = (0..1000).map(|_| runtime.random_u64()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000);
}
