//! Runs jobs: groups one after the other, the jobs of a group at the same time, each on its own load threads.

use crate::engine::{Engine, Gate, Loaded, NodeEngine, Plan, Verification};
use crate::failure::Failure;
use crate::job::{EngineKind, Job};
use crate::measure::{Measured, ThreadCpu, Window, pin};
use crate::node_status::{self, NodeStatus};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// What became of a job.
#[derive(Debug)]
pub(crate) struct JobResult {
    pub(crate) job: Job,
    /// What it ran against, for people.
    pub(crate) target: Vec<(&'static str, String)>,
    pub(crate) measured: Measured,
    pub(crate) threads: Vec<ThreadCpu>,
    pub(crate) node: Option<node_status::Delta>,
    pub(crate) verification: Option<Verification>,
}

/// Runs all jobs. A failure ends the run behind the group it is in; what was measured until then is given all the same.
pub(crate) fn run(jobs: Vec<Job>) -> (Vec<JobResult>, Option<Failure>) {
    let mut results = Vec::new();
    for group in groups(jobs) {
        let mut failure = None;
        for result in run_group(group) {
            match result {
                Ok(result) => results.push(result),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        if failure.is_some() {
            return (results, failure);
        }
    }
    (results, None)
}

/// Cuts the jobs before each one that waits for those above it.
fn groups(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut groups: Vec<Vec<Job>> = Vec::new();
    for job in jobs {
        match groups.last_mut() {
            Some(group) if !job.stonewall => group.push(job),
            _ => groups.push(vec![job]),
        }
    }
    groups
}

fn run_group(jobs: Vec<Job>) -> Vec<Result<JobResult, Failure>> {
    // All jobs of a group start together, once each is ready or has failed to be.
    let start = Barrier::new(jobs.len());
    thread::scope(|scope| {
        let start = &start;
        let running: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                scope.spawn(move || match job.engine {
                    EngineKind::Node => run_job::<NodeEngine>(job, start),
                })
            })
            .collect();
        running.into_iter().map(join).collect()
    })
}

fn run_job<E: Engine>(job: Job, start: &Barrier) -> Result<JobResult, Failure> {
    let plan = Plan::new(job);
    let engine = match E::prepare(&plan) {
        Ok(engine) => engine,
        Err(failure) => {
            start.wait();
            return Err(failure);
        }
    };
    let loaded = load(&plan.job, &engine, start);
    let target = engine.target();
    let Loads { loads, elapsed, node } = match loaded {
        Ok(loads) => loads,
        Err(failure) => {
            // What was made is removed if that is possible; what went wrong first is what matters.
            drop(engine.finish(Vec::new()));
            return Err(failure);
        }
    };
    let (mut recorders, mut threads, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for load in loads {
        recorders.push(load.recorder);
        threads.push(load.cpu);
        kept.push(load.kept);
    }
    let verification = engine.finish(kept)?;
    let measured = Measured::sum(&recorders, elapsed);
    if measured.records == 0 {
        return Err(Failure::new(format!("measure job {:?}", plan.job.name), "nothing ended within the measured time")
            .hint("the size was used up during ramp_time, or the runtime is too short"));
    }
    let job = Job::clone(&plan.job);
    Ok(JobResult { job, target, measured, threads, node, verification })
}

struct Loads<Kept> {
    loads: Vec<Loaded<Kept>>,
    elapsed: Duration,
    node: Option<node_status::Delta>,
}

fn load<E: Engine>(job: &Job, engine: &E, start: &Barrier) -> Result<Loads<E::Kept>, Failure> {
    thread::scope(|scope| {
        let (ready, are_ready) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let mut gates = Vec::new();
        let running: Vec<_> = (0..job.threads)
            .map(|index| {
                let (open, window) = mpsc::channel();
                gates.push(open);
                let (gate, ended) = (Gate { ready: ready.clone(), window }, ended.clone());
                scope.spawn(move || {
                    let result = on_core(job, index).and_then(|()| engine.load(index, gate));
                    // Nobody listens any more if another thread has failed.
                    let _ = ended.send(Instant::now());
                    result
                })
            })
            .collect();
        drop((ready, ended));
        let is_ready = (0..job.threads).all(|_| are_ready.recv().is_ok());
        start.wait();
        if !is_ready {
            drop(gates);
            let failures = running.into_iter().map(join).filter_map(Result::err).collect::<Vec<_>>();
            return Err(cause(failures));
        }
        let window = Window::starting_now(job.ramp, job.runtime);
        // A thread that has gone meanwhile says why when it is joined.
        for gate in &gates {
            let _ = gate.send(window);
        }
        let observed = observe(job, &window, &has_ended);
        let (mut loads, mut failures) = (Vec::new(), Vec::new());
        for result in running.into_iter().map(join) {
            match result {
                Ok(load) => loads.push(load),
                Err(failure) => failures.push(failure),
            }
        }
        if !failures.is_empty() {
            return Err(cause(failures));
        }
        let (ended, node) = observed?;
        Ok(Loads { loads, elapsed: window.measured(ended), node })
    })
}

/// The first failure that is one of its own and not another thread's.
fn cause(mut failures: Vec<Failure>) -> Failure {
    let own = failures.iter().position(|failure| !failure.is_consequence()).unwrap_or(0);
    failures.swap_remove(own)
}

/// Waits until the load has ended, and asks the node about itself at both ends of the window.
fn observe(
    job: &Job,
    window: &Window,
    has_ended: &mpsc::Receiver<Instant>,
) -> Result<(Instant, Option<node_status::Delta>), Failure> {
    let ask = |job: &Job| job.admin.as_deref().map(NodeStatus::ask).transpose();
    thread::sleep(window.counts_from.saturating_duration_since(Instant::now()));
    let before = ask(job)?;
    let mut last = window.counts_from;
    let mut is_over = false;
    while !is_over {
        let wait = window.stops.map_or(Duration::MAX, |stops| stops.saturating_duration_since(Instant::now()));
        match has_ended.recv_timeout(wait) {
            Ok(ended) => last = last.max(ended),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                last = Instant::now();
                is_over = true;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => is_over = true,
        }
    }
    let after = ask(job)?;
    Ok((last, before.zip(after).map(|(before, after)| after.since(&before))))
}

/// Pins the calling thread where the job wants it.
fn on_core(job: &Job, thread: usize) -> Result<(), Failure> {
    if job.cores.is_empty() {
        return Ok(());
    }
    let core = job.cores[thread % job.cores.len()];
    pin(core).map_err(|error| {
        Failure::new(format!("pin a load thread to core {core}"), error)
            .hint("cpus_allowed names cores that this process may use")
    })
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stonewall_cuts_the_jobs_into_groups() {
        let text = "[global]\nruntime=1\n[a]\n[b]\n[c]\nstonewall\n[d]\n[e]\nstonewall\n";
        let jobs = crate::job::parse("a.ini", text, &[]).unwrap();
        let names: Vec<Vec<String>> =
            groups(jobs).into_iter().map(|group| group.into_iter().map(|job| job.name).collect()).collect();
        assert_eq!(names, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    }
}
