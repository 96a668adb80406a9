//! One connection of a simulated client: frames out, answers in, each answer held against the ledger.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use log_format::ids::{ExtentId, Seq};
use log_format::wire::reply::{Durability, ExtentState};
use log_format::wire::{Encoder, FRAME_HEADER_SIZE, FrameHeader, Kind, Refusal, Reply, RequestId, reply, request};
use node_io::sim::{SimReadHalf, SimRuntime, SimStream, SimWriteHalf};
use node_io::{ReadHalf, Runtime, Stream, WriteHalf};
use tokio::sync::Notify;

use super::World;
use super::ledger::RequestNumber;

/// What a request waits for.
#[derive(Clone, Debug)]
pub(crate) enum Waiting {
    Hello,
    /// A change that the ledger has.
    Change(RequestNumber),
    /// A change that must be refused with this.
    MustBeRefused(Refusal),
    Read {
        extent: ExtentId,
        from: u64,
        follower: bool,
    },
    Describe {
        extent: ExtentId,
    },
}

/// What both tasks of a connection share.
pub(crate) struct Connection {
    world: Rc<World>,
    /// Tells connections apart, over all clients.
    pub(crate) number: u64,
    client: usize,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    next_request: Cell<u64>,
    alive: Cell<bool>,
    /// Something was answered, or the connection is lost.
    pub(crate) changed: Notify,
    /// The last answered request that was no read: they are answered in order.
    answered: Cell<u64>,
    encoder: RefCell<Encoder>,
}

impl Connection {
    /// Connects and says Hello. None if nobody is there.
    pub(crate) async fn open(
        world: &Rc<World>,
        runtime: &SimRuntime,
        client: usize,
        address: SocketAddr,
    ) -> Option<(Rc<Self>, SimWriteHalf)> {
        let stream: SimStream = runtime.connect(address).await.ok()?;
        let (read, mut write) = stream.into_split();
        let connection = Rc::new(Self {
            world: world.clone(),
            number: world.next_connection(),
            client,
            waiting: RefCell::default(),
            next_request: Cell::new(0),
            alive: Cell::new(true),
            changed: Notify::new(),
            answered: Cell::new(0),
            encoder: RefCell::new(Encoder::new()),
        });
        let hello = request::Hello { min_version: 1, max_version: 1, shard: None, auth: &[], client: "simulator" };
        let mut frame = Vec::new();
        let id = connection.expect_answer(Waiting::Hello);
        connection.encode(|encoder| encoder.frame(id, &hello, &mut frame));
        write.write_all(&frame).await.ok()?;
        runtime.spawn_detached(Box::pin(connection.clone().receive(read)));
        while connection.is_alive() && connection.unanswered() > 0 {
            connection.changed.notified().await;
        }
        connection.is_alive().then_some((connection, write))
    }

    pub(crate) fn encode(&self, encode: impl FnOnce(&mut Encoder)) {
        encode(&mut self.encoder.borrow_mut());
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.get()
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// The id for a request that is about to be sent.
    pub(crate) fn expect_answer(&self, waiting: Waiting) -> RequestId {
        self.next_request.set(self.next_request.get() + 1);
        self.waiting.borrow_mut().insert(self.next_request.get(), waiting);
        RequestId(self.next_request.get())
    }

    /// A request that was never whole on the wire is not waited for.
    pub(crate) fn forget(&self, id: RequestId) {
        self.waiting.borrow_mut().remove(&id.0);
    }

    /// The connection is of no use any more: what is not answered is in doubt.
    pub(crate) fn lose(&self) {
        self.alive.set(false);
        self.waiting.borrow_mut().clear();
        self.changed.notify_waiters();
    }

    async fn receive(self: Rc<Self>, mut read: SimReadHalf) {
        let mut received = Vec::new();
        let mut chunk = vec![0; 16 << 10];
        while let Ok(count @ 1..) = read.read(&mut chunk).await {
            if !self.is_alive() {
                return;
            }
            received.extend_from_slice(&chunk[..count]);
            let mut taken = 0;
            while let Some(length) = self.take_frame(&received[taken..]) {
                taken += length;
            }
            received.drain(..taken);
            self.changed.notify_waiters();
        }
        self.lose();
    }

    /// Takes a whole frame off the front; gives its length.
    fn take_frame(&self, bytes: &[u8]) -> Option<usize> {
        let header = FrameHeader::decode(bytes.first_chunk::<FRAME_HEADER_SIZE>()?).expect("the server sends frames");
        let frame = bytes.get(..header.frame_length())?;
        let (body, payload) = frame[FRAME_HEADER_SIZE..].split_at(header.body_length as usize);
        header.check_body(body).expect("the server's frames fit their checksums");
        let reply = Reply::decode(&header, body).expect("the server's answers are of their kinds' schemas");
        if let Reply::Append(append) = &reply {
            for ack in append.acks() {
                self.world.count("wire: append acked");
                assert_eq!(ack.durability, Durability::Device);
                let waiting = self.take_waiting(ack.request_id, Kind::Append);
                self.change_done(&waiting, &[(ack.first_seq.0, ack.count)], 0);
            }
        } else {
            let waiting = self.take_waiting(header.request_id, header.kind);
            self.take_reply(&waiting, &reply, payload);
        }
        Some(frame.len())
    }

    fn take_waiting(&self, id: RequestId, kind: Kind) -> Waiting {
        if kind != Kind::Read {
            assert!(id.0 > self.answered.get(), "request {} is answered behind request {}", id.0, self.answered.get());
            self.answered.set(id.0);
        }
        self.waiting.borrow_mut().remove(&id.0).unwrap_or_else(|| panic!("request {} is answered, which does not wait", id.0))
    }

    fn change_done(&self, waiting: &Waiting, firsts: &[(u64, u32)], value: u64) {
        let Waiting::Change(request) = waiting else { panic!("{waiting:?} was answered as a change that was made") };
        self.world.ledger.borrow_mut().done(*request, firsts, value);
    }

    fn take_reply(&self, waiting: &Waiting, reply: &Reply<'_>, payload: &[u8]) {
        match (reply, waiting) {
            (Reply::Hello(_), Waiting::Hello) => {}
            (Reply::CreateExtent(_) | Reply::Delete(_) | Reply::Trim(_), _) => self.change_done(waiting, &[], 0),
            (Reply::Seal(seal), _) => {
                self.world.count("wire: sealed");
                self.change_done(waiting, &[], seal.last_seq.0);
            }
            (Reply::Commit(commit), _) => {
                self.world.count("wire: commit acked");
                let appends = commit.results().filter(|result| result.count > 0);
                let firsts: Vec<(u64, u32)> = appends.map(|result| (result.first_seq.0, result.count)).collect();
                self.change_done(waiting, &firsts, 0);
            }
            (Reply::Read(read), Waiting::Read { extent, from, follower }) => {
                self.take_read(*extent, *from, *follower, read, payload)
            }
            (Reply::Describe(reply::Describe { extent: info }), Waiting::Describe { extent }) => {
                assert_eq!(info.extent, *extent);
                let mut ledger = self.world.ledger.borrow_mut();
                ledger.know_last(*extent, info.last_seq.0);
                ledger.know_floor(*extent, info.first_seq.0 - 1);
                if info.state == ExtentState::Sealed {
                    ledger.know_sealed(*extent, info.last_seq.0);
                }
            }
            (Reply::Refused(refusal), _) => self.take_refusal(waiting, refusal),
            (reply, waiting) => panic!("{waiting:?} was answered with {reply:?}"),
        }
    }

    fn take_read(&self, extent: ExtentId, from: u64, follower: bool, read: &reply::Read<'_>, payload: &[u8]) {
        self.world.count("wire: read");
        let mut ledger = self.world.ledger.borrow_mut();
        let mut rest = payload;
        let mut next = from;
        for entry in read.entries() {
            assert_eq!(entry.seq, Seq(next), "{extent}: seqs are contiguous from what was asked for on");
            let (bytes, behind) = rest.split_at(entry.length as usize);
            assert_eq!(entry.checksum, log_format::payload_checksum(bytes), "{extent}: record {next} fits its checksum");
            ledger.saw(extent, next, bytes);
            (rest, next) = (behind, next + 1);
        }
        assert_eq!(read.next_seq, Seq(next), "{extent}: the next read goes on behind the last record");
        ledger.know_last(extent, read.committed_seq.0);
        if read.state == ExtentState::Sealed {
            ledger.know_sealed(extent, read.committed_seq.0);
        }
        if follower {
            self.world.positions.borrow_mut()[self.client] = (extent, next);
        }
    }

    fn take_refusal(&self, waiting: &Waiting, refusal: &Refusal) {
        self.world.count(&format!("wire: refused with {}", refusal.name()));
        let mut ledger = self.world.ledger.borrow_mut();
        match waiting {
            Waiting::MustBeRefused(must_be) => {
                let node = matches!(refusal, Refusal::ReadOnly { .. } | Refusal::ShuttingDown | Refusal::UnknownOutcome);
                assert!(node || refusal == must_be, "refused with {refusal:?}, not with {must_be:?}");
            }
            Waiting::Change(request) if *refusal == Refusal::UnknownOutcome => ledger.unknown(*request),
            Waiting::Change(request) => {
                assert!(
                    !matches!(refusal, Refusal::TooLarge { .. } | Refusal::BadChecksum { .. } | Refusal::Corrupt { .. }),
                    "{refusal:?}"
                );
                ledger.not_done(*request);
            }
            Waiting::Read { extent, from, follower } => match refusal {
                Refusal::NotFound => {
                    let facts = ledger.facts(*extent);
                    assert!(facts.delete_sent || !facts.created, "{extent} was there and is not found");
                    facts.deleted |= facts.created;
                    if *follower {
                        self.world.positions.borrow_mut()[self.client] = (ExtentId(0), 0);
                    }
                }
                Refusal::Trimmed { floor } => {
                    assert!(floor.0 > *from, "{extent}: {from} is refused as trimmed, though {floor} is the first");
                    ledger.know_floor(*extent, floor.0 - 1);
                    if *follower {
                        self.world.positions.borrow_mut()[self.client] = (*extent, floor.0);
                    }
                }
                Refusal::Overloaded { .. } | Refusal::UnknownOutcome => {}
                other => panic!("a read of {extent} was refused with {other:?}"),
            },
            Waiting::Describe { extent } => match refusal {
                Refusal::NotFound => {
                    let facts = ledger.facts(*extent);
                    assert!(facts.delete_sent || !facts.created, "{extent} was there and is not found");
                    facts.deleted |= facts.created;
                }
                Refusal::UnknownOutcome => {}
                other => panic!("a description of {extent} was refused with {other:?}"),
            },
            Waiting::Hello => panic!("a Hello was refused with {refusal:?}"),
        }
    }
}
