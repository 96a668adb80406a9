//! One connection to one shard: a queue of requests, a task that writes them, a task that reads the answers.
//!
//! Contract: requests leave in the order in which they were queued. What waits for the socket is sent together, so
//! that requests grow with the load and nothing ever waits for a timer. When the connection ends, all requests in flight
//! end with one error and later ones are refused with it; it is never used again.

mod queue;
mod reader;
mod writer;

use crate::answer::{Answer, Committed};
use crate::error::ClientError;
use crate::options::ClientOptions;
use crate::outcome::{AppendFuture, BatchFuture};
use log_format::ids::{Epoch, ExtentId, GroupId, Incarnation, NodeId, ShardIndex};
use log_format::wire::{
    AppendTarget, Body, CommitOperation, Encoder, FRAME_HEADER_SIZE, FrameHeader, Kind, PROTOCOL_VERSION, RECORDS_MAX,
    RecordMeta, Refusal, Reply, RequestId, reply, request,
};
use queue::{Queue, Refused, Unordered};
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

/// The longest payload that the client makes room for, whatever the node says.
const FRAME_PAYLOAD_MAX: u32 = 64 * 1024 * 1024;

/// What a node said about itself when the connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node.
    pub node: NodeId,
    /// The life of the node's data.
    pub incarnation: Incarnation,
    /// The shard at the other end of this connection.
    pub shard: ShardIndex,
    /// How many shards the node has.
    pub shard_count: u32,
    /// The longest record that it takes, in bytes.
    pub max_record_size: u32,
    /// The longest payload of a request or an answer, in bytes.
    pub max_frame_size: u32,
    /// How an ack becomes durable there, for people.
    pub durability: String,
    /// Its name and version, for people.
    pub software: String,
}

#[derive(Debug)]
struct Shared {
    address: Arc<str>,
    node: NodeInfo,
    options: ClientOptions,
    queue: Mutex<Queue>,
    writer_wake: Notify,
    /// Wakes those who wait for the window, and at the end those who would wait.
    room: Notify,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics under this lock")
    }

    fn fail(&self, error: &ClientError) {
        let refused = {
            let mut queue = self.queue();
            if queue.failure.is_some() {
                return;
            }
            queue.fail(error)
        };
        refused.into_iter().for_each(Refused::tell);
        self.writer_wake.notify_one();
        self.room.notify_waiters();
    }
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.fail(&ClientError::disconnected(&self.shared.address, "the client was dropped"));
    }
}

/// A connection. Clones are the same; when the last is dropped it is closed.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Handle>);

/// A request under way: its answer comes whether or not it is polled.
pub(crate) type Pending<T> = oneshot::Receiver<Result<T, ClientError>>;

impl Connection {
    /// Connects, says hello, and starts the tasks on the current tokio runtime.
    pub(crate) async fn open(
        address: &Arc<str>,
        shard: Option<ShardIndex>,
        options: &ClientOptions,
    ) -> Result<Self, ClientError> {
        let connecting = async {
            let mut stream = TcpStream::connect(&**address).await?;
            stream.set_nodelay(true)?;
            let hello = say_hello(&mut stream, address, shard, options).await?;
            Ok::<_, Failed>((stream, hello))
        };
        let (stream, node) = match tokio::time::timeout(options.connect_timeout, connecting).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(Failed::Client(error))) => return Err(error),
            Ok(Err(Failed::Io(source))) => {
                return Err(ClientError::Connect { address: Arc::clone(address), source: Arc::new(source) });
            }
            Err(_) => {
                let source = Arc::new(io::Error::from(io::ErrorKind::TimedOut));
                return Err(ClientError::Connect { address: Arc::clone(address), source });
            }
        };
        if shard.is_some_and(|shard| shard != node.shard) {
            return Err(ClientError::protocol(address, format!("asked for shard {shard:?}, got {}", node.shard)));
        }
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            address: Arc::clone(address),
            node,
            options: options.clone(),
            queue: Mutex::new(Queue::new()),
            writer_wake: Notify::new(),
            room: Notify::new(),
        });
        let reading = tokio::spawn(reader::run(Arc::clone(&shared), read));
        let writing = tokio::spawn(writer::run(Arc::clone(&shared), write));
        Ok(Self(Arc::new(Handle { shared, tasks: [reading.abort_handle(), writing.abort_handle()] })))
    }

    fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn node(&self) -> &NodeInfo {
        &self.shared().node
    }

    /// Whether it is of no further use.
    pub(crate) fn is_lost(&self) -> bool {
        self.shared().queue().failure.is_some()
    }

    fn wake_writer(&self, queue: &mut Queue) {
        if std::mem::take(&mut queue.is_writer_idle) {
            self.shared().writer_wake.notify_one();
        }
    }

    fn check_size(&self, longest: usize, payload: usize, records: usize) -> Result<(), ClientError> {
        let node = self.node();
        for (size, limit) in [(longest, node.max_record_size), (payload, node.max_frame_size)] {
            if size > limit as usize {
                return Err(Refusal::TooLarge { limit_bytes: u64::from(limit) }.into());
            }
        }
        if records > RECORDS_MAX {
            return Err(Refusal::BadRequest { why: format!("{records} records in one request; at most {RECORDS_MAX}") }.into());
        }
        Ok(())
    }

    /// Queues something that takes part of the window; `None` while there is no room.
    fn try_queue<T>(
        &self,
        records: usize,
        bytes: usize,
        push: impl FnOnce(&mut Queue, &ClientOptions) -> T,
    ) -> Result<Option<T>, ClientError> {
        let options = &self.shared().options;
        let mut queue = self.shared().queue();
        if let Some(failure) = &queue.failure {
            return Err(failure.clone());
        }
        if !queue.has_room(records, bytes, options.window_records, options.window_bytes) {
            return Ok(None);
        }
        let pushed = push(&mut queue, options);
        self.wake_writer(&mut queue);
        Ok(Some(pushed))
    }

    async fn queue<T>(
        &self,
        records: usize,
        bytes: usize,
        mut push: impl FnMut(&mut Queue, &ClientOptions) -> T,
    ) -> Result<T, ClientError> {
        loop {
            if let Some(pushed) = self.try_queue(records, bytes, &mut push)? {
                return Ok(pushed);
            }
            let room = self.shared().room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if let Some(pushed) = self.try_queue(records, bytes, &mut push)? {
                return Ok(pushed);
            }
            room.await;
        }
    }

    /// Queues one record if the window has room.
    pub(crate) fn try_append(&self, extent: ExtentId, epoch: Epoch, bytes: &[u8]) -> Result<Option<AppendFuture>, ClientError> {
        self.check_size(bytes.len(), 0, 1)?;
        let meta = RecordMeta::of(bytes);
        self.try_queue(1, bytes.len(), |queue, options| queue.append(extent, epoch, meta, bytes, options.batch_bytes))
    }

    /// Queues one record, once the window has room.
    pub(crate) async fn append(&self, extent: ExtentId, epoch: Epoch, bytes: &[u8]) -> Result<AppendFuture, ClientError> {
        self.check_size(bytes.len(), 0, 1)?;
        let meta = RecordMeta::of(bytes);
        self.queue(1, bytes.len(), |queue, options| queue.append(extent, epoch, meta, bytes, options.batch_bytes)).await
    }

    /// Queues records as one request of their own, once the window has room.
    pub(crate) async fn append_batch<T: AsRef<[u8]>>(
        &self,
        target: AppendTarget,
        records: &[T],
    ) -> Result<BatchFuture, ClientError> {
        let longest = records.iter().map(|record| record.as_ref().len()).max().unwrap_or_default();
        let bytes = records.iter().map(|record| record.as_ref().len()).sum();
        self.check_size(longest, bytes, records.len())?;
        if records.is_empty() {
            return Err(Refusal::BadRequest { why: "a batch without records".to_owned() }.into());
        }
        let mut buffers =
            Some(records.iter().fold((Vec::new(), Vec::with_capacity(bytes)), |(mut metas, mut payload), record| {
                metas.push(RecordMeta::of(record.as_ref()));
                payload.extend_from_slice(record.as_ref());
                (metas, payload)
            }));
        let push = |queue: &mut Queue, _: &ClientOptions| {
            let (metas, payload) = buffers.take().expect("a request is queued once");
            queue.append_batch(target, metas, payload)
        };
        self.queue(records.len(), bytes, push).await
    }

    /// Queues a Commit, once the window has room.
    pub(crate) async fn commit(
        &self,
        group: GroupId,
        epoch: Epoch,
        operations: &[CommitOperation<'_>],
        payload: &[u8],
    ) -> Result<Pending<Committed>, ClientError> {
        let lengths = operations.iter().flat_map(|operation| match operation {
            CommitOperation::Append { records, .. } => *records,
            _ => &[],
        });
        let records = lengths.clone().count();
        self.check_size(lengths.map(|meta| meta.length as usize).max().unwrap_or_default(), payload.len(), records)?;
        self.queue(records, payload.len(), |queue, _| {
            let (sender, receiver) = oneshot::channel();
            queue.commit(records, payload.to_vec(), sender, |request_id| {
                let mut head = Vec::new();
                Encoder::new().commit(request_id, group, epoch, operations, &mut head);
                head
            });
            receiver
        })
        .await
    }

    /// Queues any other request.
    pub(crate) fn request<B: Body>(&self, body: &B, reads: Option<ExtentId>) -> Result<Pending<Answer>, ClientError> {
        let mut queue = self.shared().queue();
        if let Some(failure) = &queue.failure {
            return Err(failure.clone());
        }
        let (sender, receiver) = oneshot::channel();
        queue.request(Unordered { kind: B::KIND, extent: reads, sender }, |request_id| {
            let mut head = Vec::new();
            Encoder::new().frame(request_id, body, &mut head);
            head
        });
        self.wake_writer(&mut queue);
        Ok(receiver)
    }
}

/// The answer to a request under way.
pub(crate) async fn answer<T>(
    pending: impl Future<Output = Result<Result<T, ClientError>, RecvError>>,
) -> Result<T, ClientError> {
    pending.await.expect("every request is answered: at the latest when its connection fails")
}

enum Failed {
    Io(io::Error),
    Client(ClientError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

async fn say_hello(
    stream: &mut TcpStream,
    address: &Arc<str>,
    shard: Option<ShardIndex>,
    options: &ClientOptions,
) -> Result<NodeInfo, Failed> {
    let hello =
        request::Hello { min_version: PROTOCOL_VERSION, max_version: PROTOCOL_VERSION, shard, auth: &[], client: &options.name };
    let mut frame = Vec::new();
    Encoder::new().frame(RequestId(0), &hello, &mut frame);
    stream.write_all(&frame).await?;
    let mut bytes = [0; FRAME_HEADER_SIZE];
    stream.read_exact(&mut bytes).await?;
    let header = FrameHeader::decode(&bytes).map_err(|error| ClientError::frame(address, &error))?;
    header.check_payload_limit(0).map_err(|error| ClientError::frame(address, &error))?;
    let mut body = vec![0; header.body_length as usize];
    stream.read_exact(&mut body).await?;
    header.check_body(&body).map_err(|error| ClientError::frame(address, &error))?;
    match Reply::decode(&header, &body).map_err(|error| ClientError::body(address, &error))? {
        Reply::Hello(reply) if header.kind == Kind::Hello && reply.version == PROTOCOL_VERSION => Ok(node_info(&reply)),
        Reply::Refused(refusal) => Err(ClientError::Refused(refusal).into()),
        _ => Err(ClientError::protocol(address, "the answer to Hello is none").into()),
    }
}

fn node_info(hello: &reply::Hello<'_>) -> NodeInfo {
    NodeInfo {
        node: hello.node,
        incarnation: hello.incarnation,
        shard: hello.shard,
        shard_count: hello.shard_count,
        max_record_size: hello.max_record_size,
        max_frame_size: hello.max_frame_size.min(FRAME_PAYLOAD_MAX),
        durability: hello.durability.to_owned(),
        software: hello.software.to_owned(),
    }
}
