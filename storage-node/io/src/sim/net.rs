//! The network between simulated nodes: connections of two byte pipes, with latency, bounded buffers and cuts.
//!
//! Bytes arrive in order and in whole; reads give any part of what has arrived. A connection whose node crashed is reset
//! at its peer, with or without the bytes that were on their way. Closing with bytes unread resets too, as TCP does.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rand::RngExt;

use super::core::{Core, Owner, Shared, Slot};
use super::faults::FaultKind;
use crate::{Listener, ReadHalf, Stream, WriteHalf};

/// Bytes that a direction of a connection holds, on the way and unread.
const PIPE_BYTES: usize = 64 * 1024;
const BACKLOG: usize = 128;
const FIRST_EPHEMERAL_PORT: u16 = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionId(u64);

/// The bytes that flow to one end.
#[derive(Default)]
struct Pipe {
    arrived: VecDeque<u8>,
    in_flight: usize,
    last_arrival: u64,
    /// The writer has ended; nothing more is taken.
    ended: bool,
    /// The end has arrived.
    finished: bool,
    /// The reader has stopped: what arrives is dropped, writers fail.
    abandoned: bool,
    /// What was on its way when the writer crashed is lost.
    lost: bool,
    reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wake_all(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn held(&self) -> usize {
        self.in_flight + self.arrived.len()
    }
}

struct Connection {
    owners: [Option<Owner>; 2],
    addresses: [SocketAddr; 2],
    /// `pipes[end]` flows to `end`.
    pipes: [Pipe; 2],
    open_ends: u8,
}

struct ListenerState {
    owner: Owner,
    waiting: VecDeque<ConnectionId>,
    acceptors: Vec<Waker>,
}

#[derive(Default)]
pub(super) struct Network {
    connections: BTreeMap<ConnectionId, Connection>,
    listeners: BTreeMap<SocketAddr, ListenerState>,
    connection_count: u64,
    port_count: u16,
}

impl Network {
    fn next_port(&mut self) -> u16 {
        self.port_count = (self.port_count + 1) % 20_000;
        FIRST_EPHEMERAL_PORT + self.port_count
    }

    fn pipe(&mut self, id: ConnectionId, end: usize) -> Option<&mut Pipe> {
        self.connections.get_mut(&id).map(|connection| &mut connection.pipes[end])
    }

    fn listener_of(&self, address: SocketAddr) -> Option<SocketAddr> {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
        [address, any].into_iter().find(|address| self.listeners.contains_key(address))
    }
}

/// The life of connections.
impl Core {
    fn network_latency(&mut self, owner: Option<Owner>) -> u64 {
        let range = owner.and_then(|owner| self.machines.get(&owner.node)).map(|machine| machine.faults.network_latency);
        range.map_or(0, |range| self.latency(range))
    }

    /// Something from the other end arrives at `end` after all that was sent before it.
    fn arrive(&mut self, id: ConnectionId, end: usize, action: impl FnOnce(&mut Pipe) + 'static) {
        let Some(connection) = self.network.connections.get(&id) else { return };
        let sender = connection.owners[1 - end];
        let latency = self.network_latency(sender);
        let now = self.now;
        let Some(pipe) = self.network.pipe(id, end) else { return };
        pipe.last_arrival = pipe.last_arrival.max(now + latency);
        let delay = pipe.last_arrival - now;
        self.after(delay, None, move |core| {
            if let Some(pipe) = core.network.pipe(id, end) {
                action(pipe);
            }
        });
    }

    fn send(&mut self, id: ConnectionId, end: usize, bytes: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let Some(pipe) = self.network.pipe(id, 1 - end) else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        if pipe.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if pipe.ended || pipe.abandoned {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = PIPE_BYTES.saturating_sub(pipe.held());
        if room == 0 {
            pipe.writer = Some(waker.clone());
            self.reach_at(id, end, FaultKind::BackPressure);
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        pipe.in_flight += count;
        let sent = bytes[..count].to_vec();
        self.arrive(id, 1 - end, move |pipe| {
            pipe.in_flight -= sent.len();
            if !pipe.lost && !pipe.abandoned {
                pipe.arrived.extend(sent);
                pipe.wake_all();
            }
        });
        Poll::Ready(Ok(count))
    }

    fn receive(&mut self, id: ConnectionId, end: usize, into: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let Some(pipe) = self.network.pipe(id, end) else { return Poll::Ready(Ok(0)) };
        let there = pipe.arrived.len().min(into.len());
        if there > 0 && !pipe.abandoned {
            let whole = self.rng.random_bool(0.5);
            let count = if whole { there } else { self.rng.random_range(1..=there) };
            if count < there {
                self.reach_at(id, end, FaultKind::ReadSegmented);
            }
            let pipe = self.network.pipe(id, end).expect("it was there just now");
            let (front, back) = pipe.arrived.as_slices();
            let from_front = front.len().min(count);
            into[..from_front].copy_from_slice(&front[..from_front]);
            into[from_front..count].copy_from_slice(&back[..count - from_front]);
            pipe.arrived.drain(..count);
            if let Some(writer) = pipe.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Ok(count));
        }
        if pipe.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if pipe.abandoned || pipe.finished || into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        pipe.reader = Some(waker.clone());
        Poll::Pending
    }

    fn reach_at(&mut self, id: ConnectionId, end: usize, kind: FaultKind) {
        let owner = self.network.connections.get(&id).and_then(|connection| connection.owners[end]);
        if let Some(machine) = owner.and_then(|owner| self.machine(owner)) {
            machine.reach(kind);
        }
    }

    /// One end stops reading and writing. The other reads to the end of what was sent.
    fn end_both(&mut self, id: ConnectionId, end: usize) {
        let Some(mine) = self.network.pipe(id, end) else { return };
        mine.abandoned = true;
        mine.arrived.clear();
        mine.wake_all();
        let Some(theirs) = self.network.pipe(id, 1 - end) else { return };
        if !std::mem::replace(&mut theirs.ended, true) {
            theirs.wake_all();
            self.arrive(id, 1 - end, |pipe| {
                pipe.finished = true;
                pipe.wake_all();
            });
        }
    }

    /// `end` finds the connection broken, some time later, with or without what was on its way to it.
    fn break_at(&mut self, id: ConnectionId, end: usize) {
        let lost = self.rng.random_bool(0.5);
        if let Some(pipe) = self.network.pipe(id, end) {
            pipe.lost |= lost;
            pipe.ended = true;
        }
        self.arrive(id, end, |pipe| {
            pipe.reset = true;
            pipe.wake_all();
        });
    }

    /// `end` is gone: its peer finds the connection broken, and nobody reads what it writes.
    fn reset_peer(&mut self, id: ConnectionId, end: usize) {
        self.break_at(id, 1 - end);
        if let Some(mine) = self.network.pipe(id, end) {
            mine.abandoned = true;
            mine.arrived.clear();
            mine.wake_all();
        }
    }

    fn close_end(&mut self, id: ConnectionId, end: usize) {
        let Some(pipe) = self.network.pipe(id, end) else { return };
        if pipe.arrived.is_empty() || pipe.abandoned {
            self.end_both(id, end);
        } else {
            self.reset_peer(id, end);
        }
        // A later crash of the node does not close it again, and with it the end of the peer.
        if let Some(connection) = self.network.connections.get_mut(&id) {
            connection.owners[end] = None;
        }
        self.forget_end(id);
    }

    fn forget_end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.network.connections.get_mut(&id) {
            connection.open_ends -= 1;
            if connection.open_ends == 0 {
                self.network.connections.remove(&id);
            }
        }
    }

    /// A node is gone: its listeners vanish, the peers of its connections find them broken.
    pub(super) fn cut_network(&mut self, owner: Owner) -> u64 {
        let dead: Vec<SocketAddr> =
            self.network.listeners.iter().filter(|(_, listener)| listener.owner == owner).map(|(&address, _)| address).collect();
        for address in dead {
            self.close_listener(address);
        }
        self.cut_connections(owner, true)
    }

    /// Breaks the connections of a node, which finds them broken too unless it is gone. Gives their count.
    pub(super) fn cut_connections(&mut self, owner: Owner, gone: bool) -> u64 {
        let ends: Vec<(ConnectionId, usize)> = self
            .network
            .connections
            .iter()
            .flat_map(|(&id, connection)| [0, 1].map(|end| (id, end, connection.owners[end])))
            .filter(|(_, _, end_owner)| *end_owner == Some(owner))
            .map(|(id, end, _)| (id, end))
            .collect();
        for &(id, end) in &ends {
            if gone {
                self.reset_peer(id, end);
                self.network.connections.get_mut(&id).expect("it was found just now").owners[end] = None;
                self.forget_end(id);
            } else {
                self.break_at(id, end);
                self.break_at(id, 1 - end);
            }
        }
        ends.len() as u64
    }

    fn close_listener(&mut self, address: SocketAddr) {
        let Some(listener) = self.network.listeners.remove(&address) else { return };
        for id in listener.waiting {
            self.reset_peer(id, 1);
            if let Some(connection) = self.network.connections.get_mut(&id) {
                connection.owners[1] = None;
            }
            self.forget_end(id);
        }
    }

    /// A request to connect arrives.
    fn connection_arrives(&mut self, from: Owner, to: SocketAddr) -> io::Result<(ConnectionId, SocketAddr)> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let address = self.network.listener_of(to).ok_or_else(refused)?;
        let port = self.network.next_port();
        let client = SocketAddr::from(([127, 0, (from.node >> 8) as u8, from.node as u8], port));
        self.network.connection_count += 1;
        let id = ConnectionId(self.network.connection_count);
        let listener = self.network.listeners.get_mut(&address).expect("it was found just now");
        if listener.waiting.len() >= BACKLOG {
            return Err(refused());
        }
        listener.waiting.push_back(id);
        for waker in listener.acceptors.drain(..) {
            waker.wake();
        }
        let connection = Connection {
            owners: [Some(from), Some(listener.owner)],
            addresses: [client, to],
            pipes: Default::default(),
            open_ends: 2,
        };
        self.network.connections.insert(id, connection);
        Ok((id, to))
    }
}

/// One end of a connection; closed when dropped.
struct End {
    core: Shared,
    id: ConnectionId,
    end: usize,
    peer: SocketAddr,
    owner: Cell<Owner>,
}

impl Drop for End {
    fn drop(&mut self) {
        let core = &mut *self.core.borrow_mut();
        // A crash has closed it already.
        if core.machine(self.owner.get()).is_some() {
            core.close_end(self.id, self.end);
        }
    }
}

impl End {
    fn node(&self) -> u32 {
        self.owner.get().node
    }
}

/// A connection between simulated nodes.
pub struct SimStream(Rc<End>);

/// The reading side of a [`SimStream`].
pub struct SimReadHalf(Rc<End>);

/// The writing side of a [`SimStream`].
pub struct SimWriteHalf(Rc<End>);

/// A connection on its way to another shard.
pub struct SimSocket(Rc<End>);

impl Stream for SimStream {
    type Read = SimReadHalf;
    type Write = SimWriteHalf;
    type Socket = SimSocket;

    fn into_split(self) -> (SimReadHalf, SimWriteHalf) {
        (SimReadHalf(self.0.clone()), SimWriteHalf(self.0))
    }

    /// # Panics
    /// If they are sides of different connections.
    fn reunite(read: SimReadHalf, write: SimWriteHalf) -> Self {
        assert!(Rc::ptr_eq(&read.0, &write.0), "these are sides of different connections");
        Self(read.0)
    }

    fn into_socket(self) -> SimSocket {
        SimSocket(self.0)
    }

    fn peer(&self) -> SocketAddr {
        self.0.peer
    }
}

pub(super) fn adopt(core: &Shared, owner: Owner, socket: SimSocket) -> SimStream {
    let end = &socket.0;
    end.owner.set(owner);
    if let Some(connection) = core.borrow_mut().network.connections.get_mut(&end.id) {
        connection.owners[end.end] = Some(owner);
    }
    SimStream(socket.0)
}

impl ReadHalf for SimReadHalf {
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let end = &self.0;
        let count = poll_fn(|context| end.core.borrow_mut().receive(end.id, end.end, buf, context.waker())).await?;
        end.core.borrow_mut().record("receive", end.node(), end.id.0, count as u64);
        Ok(count)
    }
}

impl WriteHalf for SimWriteHalf {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = &self.0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = poll_fn(|context| end.core.borrow_mut().send(end.id, end.end, rest, context.waker())).await?;
            end.core.borrow_mut().record("send", end.node(), end.id.0, count as u64);
            rest = &rest[count..];
        }
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.0.core.borrow_mut().end_both(self.0.id, self.0.end);
        Ok(())
    }
}

/// Waits for connections on a simulated node.
pub struct SimListener {
    core: Shared,
    owner: Owner,
    address: SocketAddr,
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let core = &mut *self.core.borrow_mut();
        if core.machine(self.owner).is_some() {
            core.close_listener(self.address);
        }
    }
}

impl SimListener {
    fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<SimStream>> {
        let core = &mut *self.core.borrow_mut();
        let Some(listener) = core.network.listeners.get_mut(&self.address) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let Some(id) = listener.waiting.pop_front() else {
            listener.acceptors.push(context.waker().clone());
            return Poll::Pending;
        };
        core.record("accept", self.owner.node, id.0, 0);
        let peer = core.network.connections.get(&id).map(|connection| connection.addresses[0]);
        let peer = peer.expect("a connection lives until both ends are closed");
        Poll::Ready(Ok(SimStream(Rc::new(End { core: self.core.clone(), id, end: 1, peer, owner: Cell::new(self.owner) }))))
    }
}

impl Listener for SimListener {
    type Stream = SimStream;

    async fn accept(&self) -> io::Result<SimStream> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }
}

pub(super) fn listen(core: &Shared, owner: Owner, mut address: SocketAddr) -> io::Result<SimListener> {
    let state = &mut *core.borrow_mut();
    if address.port() == 0 {
        address.set_port(state.network.next_port());
    }
    if state.network.listeners.contains_key(&address) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    state.network.listeners.insert(address, ListenerState { owner, waiting: VecDeque::new(), acceptors: Vec::new() });
    Ok(SimListener { core: core.clone(), owner, address })
}

pub(super) async fn connect(core: &Shared, owner: Owner, to: SocketAddr) -> io::Result<SimStream> {
    let slot = Slot::new();
    {
        let core = &mut *core.borrow_mut();
        let delay = core.network_latency(Some(owner));
        let filled = slot.clone();
        core.after(delay, Some(owner), move |core| {
            let result = core.connection_arrives(owner, to);
            core.record("connect", owner.node, u64::from(result.is_ok()), 0);
            filled.fill(result);
        });
    }
    let (id, peer) = slot.await?;
    Ok(SimStream(Rc::new(End { core: core.clone(), id, end: 0, peer, owner: Cell::new(owner) })))
}
