//! One connection: the task that reads requests and the task that writes answers.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log_format::ids::BlockNumber;
use log_format::wire::{FRAME_HEADER_SIZE, FrameHeader, Kind, PROTOCOL_VERSION, Refusal, RequestId, reply};
use node_io::{Monotonic, ReadHalf, Runtime, Stream, WriteHalf};
use tokio::sync::{Notify, Semaphore};

use super::Server;
use super::receive::{ReceiveBuffer, frame_limit};
use super::replies::Replies;
use crate::shard::Shard;

/// Bytes of answers to reads that one connection may have unwritten, or one answer of the greatest size if that is more.
const READ_ANSWERS_MAX: usize = 4 << 20;

/// What a connection's tasks share.
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) replies: Replies,
    /// Bytes of answers to reads.
    pub(crate) read_answers: Arc<Semaphore>,
    /// There may be something to write.
    wake: Rc<Notify>,
    /// Something was written.
    room: Notify,
    /// The newest gate that wakes the writer.
    watched: Cell<BlockNumber>,
    /// Nothing more is read: the connection ends when all is answered.
    ending: Cell<bool>,
    killed: Cell<bool>,
    kill: Notify,
    /// Since when the peer keeps one of the tasks waiting in the middle of something.
    write_stalled: Cell<Option<Monotonic>>,
    read_stalled: Cell<Option<Monotonic>>,
}

impl Connection {
    /// Reads no more requests, and ends when all are answered.
    pub(crate) fn end_when_answered(&self) {
        self.ending.set(true);
        self.wake.notify_one();
    }

    /// Ends at once.
    pub(crate) fn kill(&self) {
        self.killed.set(true);
        self.kill.notify_one();
        self.wake.notify_one();
        self.room.notify_one();
    }

    /// How long the peer has kept the connection from going on.
    pub(crate) fn stalled_for(&self, now: Monotonic) -> Duration {
        let since = |stalled: &Cell<Option<Monotonic>>| stalled.get().map_or(Duration::ZERO, |since| now.since(since));
        since(&self.write_stalled).max(since(&self.read_stalled))
    }

    /// Has the writer woken when what is queued may leave.
    pub(crate) fn wake_at<R: Runtime>(&self, shard: &Shard<R>, gate: BlockNumber) {
        if shard.decided(gate).is_some() {
            self.wake.notify_one();
        } else if gate > self.watched.get() {
            self.watched.set(gate);
            shard.watch(gate, &self.wake);
        }
    }

    /// Queues a refusal.
    pub(crate) fn refuse<R: Runtime>(&self, shard: &Shard<R>, request: RequestId, kind: Kind, refusal: &Refusal) {
        self.replies.push_refusal(shard, request, kind, refusal);
        self.wake_at(shard, shard.newest());
    }

    /// A read's answer is queued.
    pub(crate) fn wake_now(&self) {
        self.wake.notify_one();
    }
}

/// Starts the tasks of a connection whose Hello is still to be answered.
pub(crate) fn start<R: Runtime>(server: Rc<Server<R>>, stream: R::Stream, hello: RequestId) {
    let connection = Rc::new(Connection {
        peer: stream.peer(),
        replies: Replies::default(),
        read_answers: Arc::new(Semaphore::new(READ_ANSWERS_MAX.max(server.shard.options().op_size_max()))),
        wake: Rc::new(Notify::new()),
        room: Notify::new(),
        watched: Cell::new(BlockNumber(0)),
        ending: Cell::new(false),
        killed: Cell::new(false),
        kill: Notify::new(),
        write_stalled: Cell::new(None),
        read_stalled: Cell::new(None),
    });
    server.connections.borrow_mut().push(Rc::downgrade(&connection));
    let count = &server.shard.0.connections;
    count.set(count.get() + 1);
    greet(&server, &connection, hello);
    let (read, write) = stream.into_split();
    let runtime = server.shard.0.runtime.clone();
    let writer = write_answers(server.clone(), connection.clone(), write);
    runtime.spawn_detached(Box::pin(async move {
        read_requests(&server, &connection, read).await;
        connection.end_when_answered();
    }));
    runtime.spawn_detached(Box::pin(writer));
}

fn greet<R: Runtime>(server: &Server<R>, connection: &Connection, request: RequestId) {
    let options = server.shard.options();
    let hello = reply::Hello {
        version: PROTOCOL_VERSION,
        node: server.info.node,
        incarnation: server.info.incarnation,
        shard: server.shard.index(),
        shard_count: options.shard_count,
        max_record_size: options.record_size_max as u32,
        max_frame_size: options.op_size_max() as u32,
        max_in_flight: options.connection_in_flight as u32,
        durability: &server.info.durability,
        software: &server.info.software,
    };
    connection.replies.push(BlockNumber(0), request, Kind::Hello, |encoder, out| encoder.frame(request, &hello, out));
    connection.wake_now();
}

/// What reading a frame came to.
enum Next {
    /// A whole frame is at the front of the buffer.
    Frame(FrameHeader),
    /// So many bytes are needed at the front; 0: more than there are.
    Needs(usize),
    /// A frame that is too large: its bytes are passed over.
    Skip(FrameHeader),
    /// The bytes are no frame.
    Broken,
}

fn next_frame(received: &[u8], payload_limit: u32) -> Next {
    let Some(head) = received.first_chunk::<FRAME_HEADER_SIZE>() else { return Next::Needs(0) };
    let Ok(header) = FrameHeader::decode(head) else { return Next::Broken };
    if header.check_payload_limit(payload_limit).is_err() {
        return Next::Skip(header);
    }
    if received.len() >= header.frame_length() { Next::Frame(header) } else { Next::Needs(header.frame_length()) }
}

/// Reads requests and carries them out, in order, until the peer ends, a frame is broken or the connection is killed.
async fn read_requests<R: Runtime>(server: &Rc<Server<R>>, connection: &Rc<Connection>, mut read: <R::Stream as Stream>::Read) {
    let shard = &server.shard;
    let counted = shard.clone();
    let mut buffer = ReceiveBuffer::new(Rc::new(move |change| {
        let bytes = &counted.0.receive_bytes;
        bytes.set(bytes.get().saturating_add_signed(change));
    }));
    let payload_limit = shard.options().op_size_max() as u32;
    debug_assert!(frame_limit(shard.options()) <= u32::MAX as usize);
    let mut skip: usize = 0;
    loop {
        let passed_over = skip.min(buffer.received().len());
        buffer.consume(passed_over);
        skip -= passed_over;
        let needs = match next_frame(buffer.received(), payload_limit) {
            _ if skip > 0 => 0,
            Next::Frame(header) => {
                if !in_flight_allows(server, connection).await {
                    return;
                }
                let length = header.frame_length();
                let frame = &buffer.received()[FRAME_HEADER_SIZE..length];
                if !super::requests::carry_out(server, connection, &header, frame).await {
                    return;
                }
                buffer.consume(length);
                continue;
            }
            Next::Skip(header) => {
                let refusal = Refusal::TooLarge { limit_bytes: u64::from(payload_limit) };
                connection.refuse(shard, header.request_id, header.kind, &refusal);
                skip = header.frame_length();
                continue;
            }
            Next::Broken => {
                tracing::debug!(peer = %connection.peer, "closed: what it sends is no frame of the protocol");
                return;
            }
            Next::Needs(length) => length,
        };
        // Only a peer that stops inside a frame is stalled; one that is silent between frames is idle.
        let inside = !buffer.received().is_empty() || skip > 0;
        connection.read_stalled.set(inside.then(|| shard.0.runtime.monotonic()));
        buffer.make_room(needs, &server.large_requests).await;
        if connection.killed.get() || connection.ending.get() {
            return;
        }
        match read.read(buffer.free()).await {
            Ok(0) | Err(_) => return,
            Ok(count) => buffer.fill(count),
        }
        connection.read_stalled.set(None);
    }
}

/// Waits until the connection may have one request more without an answer. False if it ends.
async fn in_flight_allows<R: Runtime>(server: &Server<R>, connection: &Connection) -> bool {
    while connection.replies.unanswered() >= server.shard.options().connection_in_flight {
        if connection.killed.get() {
            return false;
        }
        connection.room.notified().await;
    }
    !connection.killed.get()
}

/// Writes answers as they may leave, until the connection ends.
async fn write_answers<R: Runtime>(server: Rc<Server<R>>, connection: Rc<Connection>, mut write: <R::Stream as Stream>::Write) {
    if let Err(error) = write_until_end(&server, &connection, &mut write).await {
        tracing::debug!(peer = %connection.peer, %error, "the connection ended");
    }
    connection.kill();
    // The reader's pending read returns with this.
    let _ = write.shutdown().await;
    let count = &server.shard.0.connections;
    count.set(count.get() - 1);
    server.ended.notify_one();
}

async fn write_until_end<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    write: &mut <R::Stream as Stream>::Write,
) -> io::Result<()> {
    let mut out = Vec::new();
    loop {
        connection.wake.notified().await;
        loop {
            if connection.killed.get() {
                return Ok(());
            }
            out.clear();
            connection.replies.take(&server.shard, &mut out);
            if out.is_empty() {
                break;
            }
            connection.write_stalled.set(Some(server.shard.0.runtime.monotonic()));
            tokio::select! {
                biased;
                written = write.write_all(&out) => written?,
                () = connection.kill.notified() => return Err(io::ErrorKind::TimedOut.into()),
            }
            connection.write_stalled.set(None);
            connection.room.notify_one();
        }
        if let Some(gate) = connection.replies.next_gate() {
            connection.wake_at(&server.shard, gate);
        } else if connection.ending.get() && connection.replies.unanswered() == 0 {
            return Ok(());
        }
    }
}
