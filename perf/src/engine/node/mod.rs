//! Engine `node`: a node over TCP, through the client, as a frontend would use it.
//!
//! A connection is a client of its own. Connection c uses the extents c, c + connections, …; where there are fewer
//! extents than connections, several share one. Extents are new ones, spread evenly over the node's shards.

mod append;
mod extents;
mod read;
mod verify;

use super::{Engine, Gate, Loaded, Plan, Verification};
use crate::failure::Failure;
use crate::job::{Job, Workload};
use crate::measure::{Recorder, ThreadCpu, Window};
use client::{Client, ClientError, ClientOptions, ExtentId};
use std::future::Future;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use verify::Acked;

/// A node with the job's extents.
pub(crate) struct NodeEngine {
    plan: Plan,
    extents: Vec<ExtentId>,
    target: Vec<(&'static str, String)>,
}

impl Engine for NodeEngine {
    type Kept = Vec<Acked>;

    fn prepare(plan: &Plan) -> Result<Self, Failure> {
        runtime()?.block_on(async {
            let client = connect(&plan.job).await?;
            let extents = extents::create(&client, plan.job.extents).await?;
            let info = client.node();
            let target = vec![
                ("address", plan.job.address.clone()),
                ("software", info.software.clone()),
                ("durability", info.durability.clone()),
                ("shards", info.shard_count.to_string()),
            ];
            if plan.job.workload == Workload::Read {
                read::fill(&client, plan, &extents).await?;
            }
            Ok(Self { plan: plan.clone(), extents, target })
        })
    }

    fn load(&self, thread: usize, gate: Gate) -> Result<Loaded<Vec<Acked>>, Failure> {
        let job = &self.plan.job;
        runtime()?.block_on(async {
            let mut connections = Vec::new();
            for index in (thread..job.connections).step_by(job.threads) {
                connections.push(Connection { index, client: connect(job).await?, extents: self.extents_of(index) });
            }
            match job.workload {
                Workload::Append => {
                    let mut writers = Vec::new();
                    for connection in connections {
                        writers.push(append::Writer::new(&self.plan, connection).await?);
                    }
                    let window = gate.wait()?;
                    let budget = append::Budget::of_thread(job, thread);
                    measure(window, |recorder| {
                        writers.into_iter().map(move |writer| writer.run(window, recorder.clone(), budget.clone()))
                    })
                    .await
                }
                Workload::Read => {
                    let readers: Vec<_> =
                        connections.into_iter().map(|connection| Arc::new(read::Reader::new(&self.plan, connection))).collect();
                    let window = gate.wait()?;
                    measure(window, |recorder| {
                        readers.into_iter().flat_map(move |reader| {
                            let recorder = recorder.clone();
                            (0..reader.depth()).map(move |_| reader.clone().run(window, recorder.clone()))
                        })
                    })
                    .await
                }
            }
        })
    }

    fn finish(self, kept: Vec<Vec<Acked>>) -> Result<Option<Verification>, Failure> {
        let job = &self.plan.job;
        runtime()?.block_on(async {
            let client = connect(job).await?;
            let mut verification = None;
            if job.verify {
                let mut of_extents: Vec<Acked> = self.extents.iter().map(|_| Acked::default()).collect();
                let filled = (job.workload == Workload::Read).then(|| read::filled(&self.plan, self.extents.len()));
                for acked in kept.into_iter().flatten().chain(filled.into_iter().flatten()) {
                    of_extents[acked.extent].merge(acked);
                }
                let mut sum = Verification::default();
                for (extent, acked) in self.extents.iter().zip(of_extents) {
                    sum.add(verify::read_back(&client, &self.plan, *extent, acked).await?);
                }
                verification = Some(sum);
            }
            if job.unlink {
                extents::delete(&client, &self.extents).await?;
            }
            Ok(verification)
        })
    }

    fn target(&self) -> Vec<(&'static str, String)> {
        self.target.clone()
    }
}

impl NodeEngine {
    /// The extents of a connection, with their places in the job's list.
    fn extents_of(&self, connection: usize) -> Vec<(usize, ExtentId)> {
        let (connections, count) = (self.plan.job.connections, self.extents.len());
        let places: Vec<usize> =
            if count < connections { vec![connection % count] } else { (connection..count).step_by(connections).collect() };
        places.into_iter().map(|place| (place, self.extents[place])).collect()
    }
}

/// A client and what it works on.
struct Connection {
    /// Counts all connections of the job.
    index: usize,
    client: Client,
    /// Places in the job's list, and ids.
    extents: Vec<(usize, ExtentId)>,
}

/// Where the tasks of a thread count. The lock is never contended: a thread's tasks run one at a time.
type SharedRecorder = Arc<Mutex<Recorder>>;

fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("start a runtime for the load", error))
}

async fn connect(job: &Job) -> Result<Client, Failure> {
    let default = ClientOptions::default();
    let options = ClientOptions {
        name: concat!("roost-perf/", env!("CARGO_PKG_VERSION")).to_owned(),
        window_records: default.window_records.max(job.depth),
        window_bytes: default.window_bytes.max(job.depth.saturating_mul(job.record_bytes)),
        batch_bytes: job.batch_bytes.unwrap_or(default.batch_bytes),
        reconnect_for: std::time::Duration::from_secs(2),
        ..default
    };
    let connected = Client::connect(&job.address, options).await;
    connected.map_err(|error| of_client("connect", &error).hint("is roostd running there? The key `address` names the node"))
}

fn of_client(what: impl Into<String>, error: &ClientError) -> Failure {
    Failure::new(what, error)
}

/// Runs a thread's tasks through the window.
async fn measure<T, Tasks>(window: Window, tasks: impl FnOnce(SharedRecorder) -> Tasks) -> Result<Loaded<Vec<Acked>>, Failure>
where
    T: Future<Output = Result<Vec<Acked>, Failure>> + Send + 'static,
    Tasks: Iterator<Item = T>,
{
    let recorder = Arc::new(Mutex::new(Recorder::new(window)));
    let mut running: JoinSet<Result<Vec<Acked>, Failure>> = JoinSet::new();
    for task in tasks(Arc::clone(&recorder)) {
        running.spawn(task);
    }
    tokio::time::sleep_until(window.counts_from.into()).await;
    let measure_cpu = ThreadCpu::start();
    let mut kept = Vec::new();
    if let Some(stops) = window.stops {
        // What is left when the window is over is seen to below.
        tokio::time::timeout_at(stops.into(), join_all(&mut running, &mut kept)).await.unwrap_or(Ok(()))?;
    } else {
        join_all(&mut running, &mut kept).await?;
    }
    let cpu = measure_cpu();
    join_all(&mut running, &mut kept).await?;
    let recorder = recorder.lock().expect("nothing panics under this lock").clone();
    Ok(Loaded { recorder, cpu, kept })
}

/// Waits for the tasks; the first failure ends all of them.
async fn join_all(running: &mut JoinSet<Result<Vec<Acked>, Failure>>, kept: &mut Vec<Acked>) -> Result<(), Failure> {
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(result) => kept.append(&mut result?),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => return Err(Failure::new("run the load", error)),
        }
    }
    Ok(())
}
