//! A client that speaks the protocol: connects, sends requests at random, loses its connection, comes back.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use log_format::ids::{Epoch, ExtentId, ExtentKind, GroupId, Key, Seq};
use log_format::wire::{AppendTarget, CommitOperation, RecordMeta, Refusal, RequestId, request};
use node_io::sim::{SimRuntime, SimWriteHalf};
use node_io::{Runtime, WriteHalf};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::World;
use super::connection::{Connection, Waiting};
use super::ledger::{Asked, Part};
use crate::payload::Payload;

pub(crate) struct WireClient {
    pub(crate) world: Rc<World>,
    pub(crate) runtime: SimRuntime,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) index: usize,
    pub(crate) address: SocketAddr,
    /// Requests sent in the round, and which one it is.
    pub(crate) sent: (u64, usize),
}

/// A request that is ready to go: its frame with the payload behind it.
struct Ready {
    id: RequestId,
    frame: Vec<u8>,
    /// Its number in the ledger, if it is a change.
    number: Option<u64>,
}

impl WireClient {
    /// Goes on for ever.
    pub(crate) async fn run(mut self) {
        loop {
            self.pause().await;
            let connection = Connection::open(&self.world, &self.runtime, self.index, self.address).await;
            let Some((connection, write)) = connection else {
                self.runtime.sleep(Duration::from_micros(self.rng.random_range(50..2_000))).await;
                continue;
            };
            self.world.count("wire: connected");
            self.use_connection(&connection, write).await;
            connection.lose();
        }
    }

    /// While the world stands still, so does the client.
    async fn pause(&self) {
        while self.world.paused.get() {
            self.world.idle.borrow_mut()[self.index] = true;
            self.world.resumed.notified().await;
        }
        self.world.idle.borrow_mut()[self.index] = false;
    }

    async fn use_connection(&mut self, connection: &Rc<Connection>, mut write: SimWriteHalf) {
        let window = self.world.plan.window;
        while connection.is_alive() {
            let wants_pause = self.world.paused.get();
            if wants_pause && connection.unanswered() == 0 {
                self.pause().await;
                continue;
            }
            if wants_pause || connection.unanswered() >= window {
                connection.changed.notified().await;
                continue;
            }
            if self.sent.0 != self.world.round.get() {
                self.sent = (self.world.round.get(), 0);
            }
            let Some(ready) = self.next_request(connection) else {
                self.runtime.sleep(Duration::from_micros(200)).await;
                continue;
            };
            if self.rng.random_ratio(1, 300) {
                self.send_half(connection, &mut write, &ready).await;
                return;
            }
            if write.write_all(&ready.frame).await.is_err() {
                return;
            }
            if self.rng.random_ratio(1, 6) {
                self.runtime.sleep(Duration::from_micros(self.rng.random_range(0..800))).await;
            }
        }
    }

    /// Sends a part of a frame and ends: it must never be carried out.
    async fn send_half(&mut self, connection: &Connection, write: &mut SimWriteHalf, ready: &Ready) {
        self.world.count("wire: half a frame sent");
        connection.forget(ready.id);
        if let Some(number) = ready.number {
            self.world.ledger.borrow_mut().not_done(number);
        }
        let half = self.rng.random_range(0..ready.frame.len());
        let _ = write.write_all(&ready.frame[..half]).await;
        let _ = write.shutdown().await;
    }

    /// None if there is none for now.
    fn next_request(&mut self, connection: &Connection) -> Option<Ready> {
        if self.sent.1 >= self.world.plan.steps {
            return None;
        }
        self.sent.1 += 1;
        self.some_request(connection)
    }

    fn some_request(&mut self, connection: &Connection) -> Option<Ready> {
        let Some(extent) = self.some_extent() else { return Some(self.create(connection)) };
        Some(match self.rng.random_range(0..100) {
            0..45 => self.append(connection, extent),
            45..65 => self.commit(connection, extent),
            65..85 => self.read(connection, extent),
            85..90 => self.describe(connection, extent),
            90..94 => self.create(connection),
            94..97 => self.trim(connection, extent),
            97 => self.append_to_be_refused(connection, extent),
            98 if self.rng.random_bool(0.5) => self.seal(connection, extent),
            99 if self.rng.random_bool(0.3) => self.delete(connection, extent),
            _ => return None,
        })
    }

    fn some_extent(&mut self) -> Option<ExtentId> {
        let ledger = self.world.ledger.borrow();
        let usable = ledger.extents.iter().filter(|(_, facts)| facts.created && !facts.deleted && facts.sealed_at.is_none());
        let usable: Vec<ExtentId> = usable.map(|(id, _)| *id).collect();
        (!usable.is_empty()).then(|| usable[self.rng.random_range(0..usable.len())])
    }

    fn payloads(&mut self) -> Vec<Payload> {
        let plan = &self.world.plan;
        let count = if self.rng.random_bool(0.6) { 1 } else { self.rng.random_range(1..=plan.batch) };
        (0..count).map(|_| self.world.new_payload(8 + self.rng.random_range(0..=plan.payload))).collect()
    }

    fn expected(&mut self, extent: ExtentId) -> Option<u64> {
        let last = self.world.ledger.borrow_mut().facts(extent).last;
        match self.rng.random_range(0..10) {
            0..=2 => Some(last + 1 + self.rng.random_range(0..3)),
            _ => None,
        }
    }

    fn ask(&self, connection: &Connection, asked: Asked) -> (RequestId, u64) {
        let number = self.world.ledger.borrow_mut().send(connection.number, asked);
        (connection.expect_answer(Waiting::Change(number)), number)
    }

    fn append(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let (payloads, expected) = (self.payloads(), self.expected(extent));
        let bytes: Vec<Vec<u8>> = payloads.iter().map(|payload| payload.bytes()).collect();
        let metas: Vec<RecordMeta> = bytes.iter().map(|bytes| RecordMeta::of(bytes)).collect();
        let parts = vec![Part { extent, expected, payloads }];
        let (id, number) = self.ask(connection, Asked::Records { parts, trims: Vec::new() });
        let target = AppendTarget { extent, epoch: Epoch(0), expected_seq: expected.map(Seq) };
        let mut frame = Vec::new();
        connection.encode(|encoder| encoder.append(id, &target, &metas, &[], &mut frame));
        bytes.iter().for_each(|bytes| frame.extend_from_slice(bytes));
        Ready { id, frame, number: Some(number) }
    }

    /// Damages a record on its way, or sends one that is too large.
    fn append_to_be_refused(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let limit = self.world.plan.options.record_size_max;
        let (bytes, damaged, refusal) = if self.rng.random_bool(0.5) {
            (vec![1; limit + 1], false, Refusal::TooLarge { limit_bytes: limit as u64 })
        } else {
            (vec![1; 30], true, Refusal::BadChecksum { index: 0 })
        };
        let too_large_a_frame = bytes.len() > self.world.plan.options.op_size_max();
        assert!(!too_large_a_frame || self.world.plan.options.op_size_max() == limit, "both limits are one then");
        let id = connection.expect_answer(Waiting::MustBeRefused(refusal));
        let target = AppendTarget { extent, epoch: Epoch(0), expected_seq: None };
        let mut frame = Vec::new();
        connection.encode(|encoder| encoder.append(id, &target, &[RecordMeta::of(&bytes)], &[], &mut frame));
        frame.extend_from_slice(&bytes);
        if damaged {
            *frame.last_mut().expect("there is a payload") ^= 4;
        }
        Ready { id, frame, number: None }
    }

    fn commit(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let (group, members) = {
            let ledger = self.world.ledger.borrow();
            let group = ledger.extents[&extent].group;
            let members = ledger.extents.iter().filter(|(_, facts)| facts.group == group && facts.created);
            (group, members.map(|(id, facts)| (*id, facts.last)).collect::<Vec<_>>())
        };
        let mut parts = Vec::new();
        let mut trims = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let (extent, last) = members[self.rng.random_range(0..members.len())];
            // One append an extent, so that the seqs of each part are known by its own answer.
            if parts.iter().all(|part: &Part| part.extent != extent) {
                let expected = self.expected(extent);
                parts.push(Part { extent, expected, payloads: self.payloads() });
            } else if last > 0 && self.rng.random_bool(0.2) {
                trims.push((extent, self.rng.random_range(1..=last)));
            }
        }
        let bytes: Vec<Vec<u8>> = parts.iter().flat_map(|part| &part.payloads).map(|payload| payload.bytes()).collect();
        let metas: Vec<Vec<RecordMeta>> =
            parts.iter().map(|part| part.payloads.iter().map(|payload| RecordMeta::of(&payload.bytes())).collect()).collect();
        let appends = parts.iter().zip(&metas).map(|(part, metas)| CommitOperation::Append {
            extent: part.extent,
            expected_seq: part.expected.map(Seq),
            records: metas,
            deliver_at: &[],
        });
        let trimming =
            trims.iter().map(|&(extent, to)| CommitOperation::Trim { extent, to: Key { seq: Seq(to), ..Key::default() } });
        let operations: Vec<_> = appends.chain(trimming).collect();
        let mut frame = Vec::new();
        let (id, number) = self.ask(connection, Asked::Records { parts: parts.clone(), trims: trims.clone() });
        connection.encode(|encoder| encoder.commit(id, group, Epoch(0), &operations, &mut frame));
        bytes.iter().for_each(|bytes| frame.extend_from_slice(bytes));
        Ready { id, frame, number: Some(number) }
    }

    fn small<B: log_format::wire::Body>(&self, connection: &Connection, id: RequestId, number: Option<u64>, body: &B) -> Ready {
        let mut frame = Vec::new();
        connection.encode(|encoder| encoder.frame(id, body, &mut frame));
        Ready { id, frame, number }
    }

    fn create(&mut self, connection: &Connection) -> Ready {
        // An id is never used again: what is found under it can be only one extent.
        let extent = ExtentId(u128::from(self.world.new_payload(0).id));
        let group = GroupId(1_000_000 + u128::from(self.rng.random_range(0..self.world.plan.groups)));
        let (id, number) = self.ask(connection, Asked::Create { extent, group });
        let body = request::CreateExtent { extent, group, kind: ExtentKind::Sequence, epoch: Epoch(0) };
        self.small(connection, id, Some(number), &body)
    }

    fn trim(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let to = self.world.ledger.borrow_mut().facts(extent).last * self.rng.random_range(0..=100) / 100;
        let (id, number) = self.ask(connection, Asked::Records { parts: Vec::new(), trims: vec![(extent, to)] });
        let body = request::Trim { extent, epoch: Epoch(0), to: Key { seq: Seq(to), ..Key::default() } };
        self.small(connection, id, Some(number), &body)
    }

    fn seal(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let (id, number) = self.ask(connection, Asked::Seal { extent });
        self.small(connection, id, Some(number), &request::Seal { extent, epoch: Epoch(0) })
    }

    fn delete(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let (id, number) = self.ask(connection, Asked::Delete { extent });
        self.small(connection, id, Some(number), &request::Delete { extent, epoch: Epoch(0) })
    }

    fn describe(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let id = connection.expect_answer(Waiting::Describe { extent });
        self.small(connection, id, None, &request::Describe { extent })
    }

    /// Goes on where the client stood, or reads anywhere.
    fn read(&mut self, connection: &Connection, extent: ExtentId) -> Ready {
        let (mut at, mut from) = self.world.positions.borrow()[self.index];
        let follower = self.rng.random_bool(0.7);
        if at == ExtentId(0) {
            (at, from) = (extent, 1);
        }
        if !follower {
            let last = self.world.ledger.borrow_mut().facts(extent).last;
            (at, from) = (extent, self.rng.random_range(1..=last + 1));
        }
        let id = connection.expect_answer(Waiting::Read { extent: at, from, follower });
        let wait_ms = if self.rng.random_bool(0.3) { self.rng.random_range(1..300) } else { 0 };
        let body = request::Read {
            extent: at,
            from_seq: Seq(from),
            max_bytes: self.rng.random_range(0..20_000),
            max_records: self.rng.random_range(0..50),
            wait_ms,
        };
        self.small(connection, id, None, &body)
    }
}
