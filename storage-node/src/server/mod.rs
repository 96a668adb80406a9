//! The server in front of a shard: connections, requests, answers.
//!
//! A connection is two tasks. One reads frames from the socket into one buffer and carries them out in order; the other writes
//! the answers as their gates become durable, many in one socket write. Memory is bounded a connection and a shard: what
//! goes over it waits in the socket. The protocol is docs/protocol.md.

mod acceptor;
mod connection;
mod receive;
mod replies;
mod requests;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use log_format::ids::{Incarnation, NodeId};
use log_format::wire::RequestId;
use node_io::{Runtime, SocketOf};
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::shard::Shard;
use connection::Connection;

pub use acceptor::accept;

/// A peer that takes no byte for so long is cut off, as is one that stops in the middle of a frame.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// How often stalled connections are looked for.
const STALL_CHECK: Duration = Duration::from_secs(5);
/// Connections of one shard.
const CONNECTIONS_MAX: u64 = 20_000;
/// How long the last answers may take to leave when the shard ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// What the node says of itself to those who connect.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Its id.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// How an ack becomes durable, for people.
    pub durability: String,
    /// Its software and version, for people.
    pub software: String,
}

/// A connection on its way to the shard that it asked for.
pub struct Handover<R: Runtime> {
    pub(crate) socket: SocketOf<R>,
    /// The Hello that is still to be answered.
    pub(crate) hello: RequestId,
}

/// A shard and its connections.
pub struct Server<R: Runtime> {
    shard: Shard<R>,
    info: NodeInfo,
    /// Bytes of requests larger than a connection's own buffer.
    large_requests: Arc<Semaphore>,
    /// Bytes of answers to reads.
    read_answers: Arc<Semaphore>,
    connections: RefCell<Vec<Weak<Connection>>>,
    ended: Notify,
}

impl<R: Runtime> Server<R> {
    /// A server without connections.
    pub fn new(shard: Shard<R>, info: NodeInfo) -> Rc<Self> {
        // The budget is cut in halves, one a direction. A request or an answer of the greatest size always fits.
        let half = shard.options().receive_budget_bytes / 2;
        let permits = half.max(2 * receive::frame_limit(shard.options())).min(Semaphore::MAX_PERMITS);
        Rc::new(Self {
            shard,
            info,
            large_requests: Arc::new(Semaphore::new(permits)),
            read_answers: Arc::new(Semaphore::new(permits)),
            connections: RefCell::new(Vec::new()),
            ended: Notify::new(),
        })
    }

    /// Serves the connections that come by `handovers`, until the channel is closed.
    pub async fn serve(self: Rc<Self>, mut handovers: mpsc::Receiver<Handover<R>>) {
        let runtime = self.shard.0.runtime.clone();
        let janitor = self.clone();
        runtime.spawn_detached(Box::pin(async move { janitor.cut_stalled().await }));
        while let Some(handover) = handovers.recv().await {
            if self.shard.0.connections.get() >= CONNECTIONS_MAX {
                tracing::warn!(shard = self.shard.index().0, "too many connections: one was closed");
                continue;
            }
            match runtime.adopt(handover.socket) {
                Ok(stream) => connection::start(self.clone(), stream, handover.hello),
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
        }
    }

    /// Drains the shard, then sends the last answers and ends the connections.
    pub async fn drain(&self) {
        self.shard.drain().await;
        let runtime = &self.shard.0.runtime;
        for connection in self.living() {
            connection.end_when_answered();
        }
        let deadline = runtime.monotonic().0 + FLUSH_LIMIT.as_nanos() as u64;
        while self.shard.0.connections.get() > 0 {
            let left = deadline.saturating_sub(runtime.monotonic().0);
            if left == 0 {
                break;
            }
            tokio::select! {
                biased;
                () = self.ended.notified() => {}
                () = runtime.sleep(Duration::from_nanos(left)) => {}
            }
        }
        self.living().iter().for_each(|connection| connection.kill());
    }

    fn living(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends connections whose peer neither takes answers nor finishes what it began to send.
    async fn cut_stalled(&self) {
        let runtime = &self.shard.0.runtime;
        loop {
            runtime.sleep(STALL_CHECK).await;
            self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
            let now = runtime.monotonic();
            for connection in self.living() {
                if connection.stalled_for(now) >= STALL_LIMIT {
                    tracing::info!(peer = %connection.peer, "cut off: no progress for {} s", STALL_LIMIT.as_secs());
                    connection.kill();
                }
            }
        }
    }
}
