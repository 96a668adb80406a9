//! An in-memory node that speaks the protocol over a real socket, on a thread of its own, and misbehaves on demand.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it")]

use log_format::ids::{
    DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Incarnation, Key, NodeId, Op, Seq, ShardIndex, Timestamp, shard_of,
};
use log_format::wire::reply::{AppendAck, Durability, ExtentInfo, ExtentState, OperationResult, ReadEntry};
use log_format::wire::request::Operation;
use log_format::wire::{
    Direction, Encoder, FRAME_HEADER_SIZE, FrameHeader, Kind, READ_RECORDS_MAX, ReadHead, RecordMeta, Records, Refusal, Request,
    RequestId, reply,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// A request that came, in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) connection: usize,
    pub(crate) shard: u32,
    pub(crate) kind: Kind,
    pub(crate) request_id: u64,
    pub(crate) records: usize,
}

/// What the node does with a request.
pub(crate) enum Reaction {
    Serve,
    Refuse(Refusal),
    /// Closes the connection; the request is not done.
    Cut,
    /// Does the request and closes the connection instead of answering.
    ServeAndCut,
    /// Answers nothing and goes on.
    Ignore,
    /// Sends these bytes instead of an answer.
    Raw(Vec<u8>),
    /// Refuses with this request id instead of the request's.
    RefuseAs(u64, Refusal),
    /// Does the request, changes the answer's bytes.
    Change(fn(&mut Vec<u8>)),
}

type Hook = Box<dyn FnMut(&Seen) -> Reaction + Send>;

pub(crate) struct Extent {
    pub(crate) group: GroupId,
    pub(crate) records: Vec<(Vec<u8>, u64)>,
    pub(crate) first_seq: u64,
    pub(crate) is_sealed: bool,
}

pub(crate) struct State {
    pub(crate) extents: BTreeMap<ExtentId, Extent>,
    pub(crate) seen: Vec<Seen>,
    pub(crate) connections: usize,
    pub(crate) max_record_size: u32,
    hook: Hook,
    op: u64,
}

pub(crate) struct FakeNode {
    pub(crate) address: String,
    pub(crate) state: Arc<Mutex<State>>,
    stop: Option<watch::Sender<bool>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FakeNode {
    pub(crate) fn start(shard_count: u32) -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap(), shard_count)
    }

    pub(crate) fn start_on(address: SocketAddr, shard_count: u32) -> Self {
        let state = Arc::new(Mutex::new(State {
            extents: BTreeMap::new(),
            seen: Vec::new(),
            connections: 0,
            max_record_size: 1 << 20,
            hook: Box::new(|_| Reaction::Serve),
            op: 0,
        }));
        let (stop, stopped) = watch::channel(false);
        let (ready, address_of) = std::sync::mpsc::channel();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(listen(address, shard_count, shared, stopped, ready));
        });
        let address: SocketAddr = address_of.recv().unwrap();
        Self { address: address.to_string(), state, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn hook(&self, hook: impl FnMut(&Seen) -> Reaction + Send + 'static) {
        self.state.lock().unwrap().hook = Box::new(hook);
    }

    pub(crate) fn seen(&self, kind: Kind) -> Vec<Seen> {
        self.state.lock().unwrap().seen.iter().filter(|seen| seen.kind == kind).cloned().collect()
    }

    pub(crate) fn records(&self, extent: ExtentId) -> Vec<Vec<u8>> {
        self.state.lock().unwrap().extents[&extent].records.iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    /// Closes all connections and the listener; gives the address, to start again on.
    pub(crate) fn stop(mut self) -> SocketAddr {
        self.end();
        self.address.parse().unwrap()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the node's thread panicked");
        }
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.end();
    }
}

async fn listen(
    address: SocketAddr,
    shard_count: u32,
    state: Arc<Mutex<State>>,
    mut stopped: watch::Receiver<bool>,
    ready: std::sync::mpsc::Sender<SocketAddr>,
) {
    let listener = TcpListener::bind(address).await.unwrap();
    ready.send(listener.local_addr().unwrap()).unwrap();
    let (changed, _) = watch::channel(0u64);
    let changed = Arc::new(changed);
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            accepted = listener.accept() => {
                let (stream, _) = accepted.unwrap();
                stream.set_nodelay(true).unwrap();
                let number = {
                    let mut state = state.lock().unwrap();
                    state.connections += 1;
                    state.connections
                };
                let connection = Connection {
                    state: Arc::clone(&state),
                    changed: Arc::clone(&changed),
                    shard_count,
                    shard: 0,
                    number,
                    encoder: Encoder::new(),
                };
                tasks.spawn(connection.run(stream));
            }
        }
    }
    tasks.shutdown().await;
}

struct Connection {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
    shard_count: u32,
    shard: u32,
    number: usize,
    encoder: Encoder,
}

/// Whether the connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Cut,
}

impl Connection {
    async fn run(mut self, stream: TcpStream) {
        let (mut read, mut write) = stream.into_split();
        let (sender, mut receiver) = mpsc::unbounded_channel::<Vec<u8>>();
        let writer = tokio::spawn(async move {
            while let Some(bytes) = receiver.recv().await {
                if write.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let mut buffer = Vec::new();
        'connection: loop {
            let mut out = Vec::new();
            let mut acks = Vec::new();
            while let Some(header) = buffer.first_chunk::<FRAME_HEADER_SIZE>() {
                let header = FrameHeader::decode(header).unwrap();
                if buffer.len() < header.frame_length() {
                    break;
                }
                let frame: Vec<u8> = buffer.drain(..header.frame_length()).collect();
                if self.frame(&header, &frame, &mut acks, &mut out, &sender) == Next::Cut {
                    self.flush(&mut acks, &mut out);
                    let _ = sender.send(out);
                    break 'connection;
                }
            }
            self.flush(&mut acks, &mut out);
            if !out.is_empty() && sender.send(out).is_err() {
                break;
            }
            match read.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        drop(sender);
        // Long polls hold senders too: they end with the connection.
        let _ = tokio::time::timeout(Duration::from_millis(100), writer).await;
    }

    fn flush(&mut self, acks: &mut Vec<AppendAck>, out: &mut Vec<u8>) {
        if !acks.is_empty() {
            self.encoder.append_reply(acks, out);
            acks.clear();
        }
    }

    fn frame(
        &mut self,
        header: &FrameHeader,
        frame: &[u8],
        acks: &mut Vec<AppendAck>,
        out: &mut Vec<u8>,
        sender: &mpsc::UnboundedSender<Vec<u8>>,
    ) -> Next {
        let body = &frame[FRAME_HEADER_SIZE..header.payload_offset()];
        header.check_body(body).unwrap();
        assert_eq!(header.direction, Direction::Request);
        let request = Request::decode(header, body).unwrap();
        let payload = &frame[header.payload_offset()..];
        let records = match &request {
            Request::Append(append) => append.records.count(),
            Request::Commit(commit) => commit.count(),
            _ => 0,
        };
        let id = header.request_id;
        let reaction = {
            let mut state = self.state.lock().unwrap();
            let seen = Seen { connection: self.number, shard: self.shard, kind: header.kind, request_id: id.0, records };
            state.seen.push(seen.clone());
            (state.hook)(&seen)
        };
        if header.kind != Kind::Append || !matches!(reaction, Reaction::Serve) {
            self.flush(acks, out);
        }
        match reaction {
            Reaction::Serve => {
                self.serve(id, &request, payload, acks, out, sender);
                Next::GoOn
            }
            Reaction::Refuse(refusal) => {
                self.encoder.refusal(id, header.kind, &refusal, out);
                Next::GoOn
            }
            Reaction::RefuseAs(id, refusal) => {
                self.encoder.refusal(RequestId(id), header.kind, &refusal, out);
                Next::GoOn
            }
            Reaction::Cut => Next::Cut,
            Reaction::ServeAndCut => {
                self.serve(id, &request, payload, &mut Vec::new(), &mut Vec::new(), sender);
                Next::Cut
            }
            Reaction::Ignore => Next::GoOn,
            Reaction::Raw(bytes) => {
                out.extend_from_slice(&bytes);
                Next::GoOn
            }
            Reaction::Change(change) => {
                let mut answer = Vec::new();
                self.serve(id, &request, payload, acks, &mut answer, sender);
                self.flush(acks, &mut answer);
                change(&mut answer);
                out.extend_from_slice(&answer);
                Next::GoOn
            }
        }
    }

    fn serve(
        &mut self,
        id: RequestId,
        request: &Request<'_>,
        payload: &[u8],
        acks: &mut Vec<AppendAck>,
        out: &mut Vec<u8>,
        sender: &mpsc::UnboundedSender<Vec<u8>>,
    ) {
        let state = Arc::clone(&self.state);
        let mut state = state.lock().unwrap();
        let result = self.change(id, request, payload, acks, out, sender, &mut state);
        drop(state);
        if let Err((kind, refusal)) = result {
            self.flush(acks, out);
            self.encoder.refusal(id, kind, &refusal, out);
        }
        self.changed.send_modify(|version| *version += 1);
    }

    #[allow(clippy::too_many_arguments)]
    fn change(
        &mut self,
        id: RequestId,
        request: &Request<'_>,
        payload: &[u8],
        acks: &mut Vec<AppendAck>,
        out: &mut Vec<u8>,
        sender: &mpsc::UnboundedSender<Vec<u8>>,
        state: &mut State,
    ) -> Result<(), (Kind, Refusal)> {
        match request {
            Request::Hello(hello) => {
                self.shard = hello.shard.map_or(self.shard_count - 1, |shard| shard.0);
                let reply = reply::Hello {
                    version: 1,
                    node: NodeId(0xfa4e),
                    incarnation: Incarnation(1),
                    shard: ShardIndex(self.shard),
                    shard_count: self.shard_count,
                    max_record_size: state.max_record_size,
                    max_frame_size: 4 << 20,
                    max_in_flight: 16_384,
                    durability: "fake",
                    software: "fake node",
                };
                self.encoder.frame(id, &reply, out);
            }
            Request::CreateExtent(create) => {
                self.check_shard(create.group).map_err(|refusal| (Kind::CreateExtent, refusal))?;
                if create.kind == ExtentKind::Timer {
                    return Err((Kind::CreateExtent, Refusal::Unsupported { what: "timer extents".to_owned() }));
                }
                let created = match state.extents.get(&create.extent) {
                    Some(extent) if extent.group == create.group => false,
                    Some(_) => return Err((Kind::CreateExtent, Refusal::AlreadyExists)),
                    None => true,
                };
                if created {
                    let extent = Extent { group: create.group, records: Vec::new(), first_seq: 1, is_sealed: false };
                    state.extents.insert(create.extent, extent);
                }
                self.encoder.frame(id, &reply::CreateExtent { extent: create.extent, group: create.group, created }, out);
            }
            Request::Append(append) => {
                let refuse = |refusal| (Kind::Append, refusal);
                let limit = state.max_record_size;
                let extent = self.extent(state, append.extent).map_err(refuse)?;
                check_append(extent, append.expected_seq, &append.records, payload, limit).map_err(refuse)?;
                let first_seq = push(extent, &append.records, payload);
                state.op += 1;
                let count = append.records.count() as u32;
                acks.push(AppendAck { request_id: id, first_seq, op: Op(state.op), count, durability: Durability::Device });
            }
            Request::Commit(commit) => {
                let refuse = |refusal| (Kind::Commit, refusal);
                let limit = state.max_record_size;
                self.check_shard(commit.group).map_err(refuse)?;
                for operation in commit.operations() {
                    match operation {
                        Operation::Append { extent, expected_seq, records } => {
                            let extent = self.extent(state, extent).map_err(refuse)?;
                            check_append(extent, expected_seq, &records, payload, limit).map_err(refuse)?;
                        }
                        Operation::Trim { extent, .. } => drop(self.extent(state, extent).map_err(refuse)?),
                        _ => return Err(refuse(Refusal::Unsupported { what: "discard and cancel".to_owned() })),
                    }
                }
                let mut results = Vec::new();
                for operation in commit.operations() {
                    results.push(match operation {
                        Operation::Append { extent, records, .. } => {
                            let first_seq = push(state.extents.get_mut(&extent).unwrap(), &records, payload);
                            OperationResult { first_seq, count: records.count() as u32 }
                        }
                        Operation::Trim { extent, to } => {
                            trim(state.extents.get_mut(&extent).unwrap(), to.seq);
                            OperationResult::default()
                        }
                        _ => unreachable!(),
                    });
                }
                state.op += 1;
                self.encoder.commit_reply(id, Op(state.op), Durability::Device, &results, out);
            }
            Request::Read(read) => {
                let extent = self.extent(state, read.extent).map_err(|refusal| (Kind::Read, refusal))?;
                if read.from_seq.0 < extent.first_seq {
                    return Err((Kind::Read, Refusal::Trimmed { floor: Seq(extent.first_seq) }));
                }
                if read.wait_ms > 0 && !extent.is_sealed && read.from_seq.0 > extent.records.len() as u64 {
                    tokio::spawn(long_poll(id, *read, Arc::clone(&self.state), self.changed.subscribe(), sender.clone()));
                } else {
                    read_now(&mut self.encoder, id, read, extent, out);
                }
            }
            Request::SeqAtTime(at) => {
                let extent = self.extent(state, at.extent).map_err(|refusal| (Kind::SeqAtTime, refusal))?;
                let found = extent.records.iter().position(|(_, time)| *time >= at.time.0);
                let reply = match found {
                    Some(index) => {
                        reply::SeqAtTime { seq: Seq(index as u64 + 1), append_time: Timestamp(extent.records[index].1) }
                    }
                    None => reply::SeqAtTime { seq: Seq(extent.records.len() as u64 + 1), append_time: Timestamp(0) },
                };
                self.encoder.frame(id, &reply, out);
            }
            Request::Trim(request) => {
                let extent = self.extent(state, request.extent).map_err(|refusal| (Kind::Trim, refusal))?;
                if request.to.seq.0 > extent.records.len() as u64 {
                    return Err((Kind::Trim, Refusal::BadRequest { why: "a trim behind the last record".to_owned() }));
                }
                trim(extent, request.to.seq);
                let floor = Key { deliver_at: DeliverAt(0), seq: Seq(extent.first_seq - 1) };
                self.encoder.frame(id, &reply::Trim { op: Op(1), floor }, out);
            }
            Request::Seal(seal) => {
                let extent = self.extent(state, seal.extent).map_err(|refusal| (Kind::Seal, refusal))?;
                extent.is_sealed = true;
                self.encoder.frame(id, &reply::Seal { op: Op(1), last_seq: Seq(extent.records.len() as u64) }, out);
            }
            Request::Delete(delete) => {
                self.extent(state, delete.extent).map_err(|refusal| (Kind::Delete, refusal))?;
                state.extents.remove(&delete.extent);
                self.encoder.frame(id, &reply::Delete { op: Op(1) }, out);
            }
            Request::Describe(describe) => {
                self.extent(state, describe.extent).map_err(|refusal| (Kind::Describe, refusal))?;
                let extent = self.info(describe.extent, &state.extents[&describe.extent]);
                self.encoder.frame(id, &reply::Describe { extent }, out);
            }
            Request::List(list) => {
                let own = state.extents.iter().filter(|(_, extent)| shard_of(extent.group, self.shard_count).0 == self.shard);
                let mut extents: Vec<_> = own
                    .filter(|(id, _)| list.after.is_none_or(|after| **id > after))
                    .map(|(id, extent)| self.info(*id, extent))
                    .take(4)
                    .collect();
                let more = extents.len() == 4;
                extents.truncate(3);
                self.encoder.frame(id, &reply::List { extents, more }, out);
            }
            Request::Unserved(kind) => return Err((*kind, Refusal::Unsupported { what: format!("{kind:?}") })),
        }
        Ok(())
    }

    fn check_shard(&self, group: GroupId) -> Result<(), Refusal> {
        let shard = shard_of(group, self.shard_count);
        if shard.0 == self.shard { Ok(()) } else { Err(Refusal::WrongShard { shard }) }
    }

    /// An extent of another shard is unknown here, as on a real node.
    fn extent<'s>(&self, state: &'s mut State, id: ExtentId) -> Result<&'s mut Extent, Refusal> {
        let (count, own) = (self.shard_count, self.shard);
        state.extents.get_mut(&id).filter(|extent| shard_of(extent.group, count).0 == own).ok_or(Refusal::NotFound)
    }

    fn info(&self, id: ExtentId, extent: &Extent) -> ExtentInfo {
        let live = &extent.records[extent.first_seq as usize - 1..];
        ExtentInfo {
            extent: id,
            group: extent.group,
            shard: shard_of(extent.group, self.shard_count),
            kind: ExtentKind::Sequence,
            state: if extent.is_sealed { ExtentState::Sealed } else { ExtentState::Open },
            epoch: Epoch(0),
            first_seq: Seq(extent.first_seq),
            last_seq: Seq(extent.records.len() as u64),
            committed_op: Op(0),
            records: live.len() as u64,
            payload_bytes: live.iter().map(|(bytes, _)| bytes.len() as u64).sum(),
        }
    }
}

fn check_append(
    extent: &Extent,
    expected: Option<Seq>,
    records: &Records<'_>,
    payload: &[u8],
    limit: u32,
) -> Result<(), Refusal> {
    let next = Seq(extent.records.len() as u64 + 1);
    if extent.is_sealed {
        return Err(Refusal::Sealed { last: Seq(next.0 - 1) });
    }
    if records.lengths().any(|length| length > limit) {
        return Err(Refusal::TooLarge { limit_bytes: u64::from(limit) });
    }
    if expected.is_some_and(|expected| expected != next) {
        return Err(Refusal::SeqMismatch { next });
    }
    for (index, record) in records.iter(payload).unwrap().enumerate() {
        if log_format::payload_checksum(record.payload) != record.checksum {
            return Err(Refusal::BadChecksum { index: index as u32 });
        }
    }
    Ok(())
}

fn push(extent: &mut Extent, records: &Records<'_>, payload: &[u8]) -> Seq {
    let first_seq = Seq(extent.records.len() as u64 + 1);
    for record in records.iter(payload).unwrap() {
        let time = 1_000_000_000 * (extent.records.len() as u64 + 1);
        extent.records.push((record.payload.to_vec(), time));
    }
    first_seq
}

fn trim(extent: &mut Extent, to: Seq) {
    extent.first_seq = extent.first_seq.max((to.0 + 1).min(extent.records.len() as u64 + 1));
}

fn read_now(encoder: &mut Encoder, id: RequestId, read: &log_format::wire::request::Read, extent: &Extent, out: &mut Vec<u8>) {
    let max_records = if read.max_records == 0 { 1_000 } else { (read.max_records as usize).min(READ_RECORDS_MAX) };
    let start = (read.from_seq.0 as usize - 1).min(extent.records.len());
    let mut entries = Vec::new();
    let mut payload = Vec::new();
    for (index, (bytes, time)) in extent.records.iter().enumerate().skip(start).take(max_records) {
        if !entries.is_empty() && payload.len() + bytes.len() > read.max_bytes as usize {
            break;
        }
        let meta = RecordMeta::of(bytes);
        entries.push(ReadEntry {
            seq: Seq(index as u64 + 1),
            append_time: Timestamp(*time),
            deliver_at: DeliverAt(0),
            length: meta.length,
            checksum: meta.checksum,
        });
        payload.extend_from_slice(bytes);
    }
    let head = ReadHead {
        next_seq: Seq(read.from_seq.0 + entries.len() as u64),
        committed_seq: Seq(extent.records.len() as u64),
        state: if extent.is_sealed { ExtentState::Sealed } else { ExtentState::Open },
        next_due: DeliverAt(0),
    };
    encoder.read_reply(id, &head, &entries, out);
    out.extend_from_slice(&payload);
}

async fn long_poll(
    id: RequestId,
    read: log_format::wire::request::Read,
    state: Arc<Mutex<State>>,
    mut changed: watch::Receiver<u64>,
    sender: mpsc::UnboundedSender<Vec<u8>>,
) {
    let deadline = tokio::time::Instant::now() + Duration::from_millis(u64::from(read.wait_ms));
    loop {
        changed.borrow_and_update();
        let is_late = tokio::time::Instant::now() >= deadline;
        {
            let state = state.lock().unwrap();
            let mut out = Vec::new();
            match state.extents.get(&read.extent) {
                None => Encoder::new().refusal(id, Kind::Read, &Refusal::NotFound, &mut out),
                Some(extent) if is_late || extent.is_sealed || read.from_seq.0 <= extent.records.len() as u64 => {
                    read_now(&mut Encoder::new(), id, &read, extent, &mut out);
                }
                Some(_) => {}
            }
            if !out.is_empty() {
                let _ = sender.send(out);
                return;
            }
        }
        tokio::select! {
            biased;
            () = sender.closed() => return,
            _ = changed.changed() => {}
            () = tokio::time::sleep_until(deadline) => {}
        }
    }
}
