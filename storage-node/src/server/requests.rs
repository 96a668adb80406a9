//! Carries out one request of a connection.

use std::rc::Rc;
use std::time::Duration;

use log_format::ids::{Key, Seq, Timestamp};
use log_format::wire::request::{self, Commit};
use log_format::wire::{FrameHeader, LIST_MAX, READ_RECORDS_MAX, ReadHead, RecordIter, Refusal, Request, RequestId, reply};
use node_io::Runtime;

use super::Server;
use super::connection::Connection;
use super::replies::AnswerPermit;
use crate::changes::{Gated, Operation};
use crate::read::{ReadBatch, ReadRequest};

/// Reads of one connection that wait or are under way.
const READS_MAX: usize = 64;
/// What a read gives when it does not say how much it wants, in payload bytes.
const READ_BYTES_DEFAULT: u32 = 1 << 20;
/// The longest wait of a long poll.
const WAIT_MAX_MS: u32 = 60_000;
/// When to come again when the node has too much to do.
const RETRY_AFTER_MS: u32 = 100;

/// Carries out the request of a whole frame: `frame` is its body and payload. False if the connection must end.
pub(crate) async fn carry_out<R: Runtime>(
    server: &Rc<Server<R>>,
    connection: &Rc<Connection>,
    header: &FrameHeader,
    frame: &[u8],
) -> bool {
    let shard = &server.shard;
    let (body, payload) = frame.split_at(header.body_length as usize);
    if let Err(error) = header.check_body(body) {
        // What follows can't be trusted to be a frame.
        connection.refuse(shard, header.request_id, header.kind, &Refusal::BadRequest { why: error.to_string() });
        return false;
    }
    let request = match Request::decode(header, body) {
        Ok(request) => request,
        Err(error) => {
            connection.refuse(shard, header.request_id, header.kind, &Refusal::BadRequest { why: error.to_string() });
            return true;
        }
    };
    let id = header.request_id;
    let result = match request {
        Request::Append(append) => do_append(server, connection, id, &append, payload).await,
        Request::Commit(commit) => do_commit(server, connection, id, &commit, payload).await,
        Request::Read(read) => start_read(server, connection, id, &read),
        Request::SeqAtTime(at) => do_seq_at_time(server, connection, id, &at).await,
        Request::Hello(_) => Err(Refusal::BadRequest { why: "the connection has said Hello already".to_owned() }),
        Request::Unserved(kind) => Err(Refusal::Unsupported { what: format!("{kind:?}") }),
        Request::CreateExtent(_) | Request::Trim(_) | Request::Seal(_) | Request::Delete(_) => {
            do_change(server, connection, id, &request).await
        }
        Request::Describe(_) | Request::List(_) => do_describe(server, connection, id, &request),
    };
    if let Err(refusal) = result {
        connection.refuse(shard, id, header.kind, &refusal);
    }
    true
}

async fn do_append<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    id: RequestId,
    append: &request::Append<'_>,
    payload: &[u8],
) -> Result<(), Refusal> {
    refuse_delivery_times(append.records.has_delivery_times())?;
    let records = append.records.iter(payload).map_err(|error| Refusal::BadRequest { why: error.to_string() })?;
    let appended = server.shard.append(append.extent, append.epoch, append.expected_seq, records).await?;
    let ack = reply::AppendAck {
        request_id: id,
        first_seq: appended.value.first_seq,
        op: appended.value.op,
        count: appended.value.count,
        durability: reply::Durability::Device,
    };
    connection.replies.push_ack(appended.gate, ack);
    connection.wake_at(&server.shard, appended.gate);
    Ok(())
}

fn refuse_delivery_times(given: bool) -> Result<(), Refusal> {
    if given {
        let why = "records of a sequence extent have no delivery times".to_owned();
        return Err(Refusal::BadRequest { why });
    }
    Ok(())
}

fn engine_operation<'a>(operation: request::Operation<'a>, payload: &'a [u8]) -> Result<Operation<RecordIter<'a>>, Refusal> {
    match operation {
        request::Operation::Append { extent, expected_seq, records } => {
            refuse_delivery_times(records.has_delivery_times())?;
            let records = records.iter(payload).map_err(|error| Refusal::BadRequest { why: error.to_string() })?;
            Ok(Operation::Append { extent, expected: expected_seq, records })
        }
        request::Operation::Trim { extent, to } => Ok(Operation::Trim { extent, to: sequence_key(to)? }),
        request::Operation::Discard { .. } => Err(Refusal::Unsupported { what: "Discard in a Commit".to_owned() }),
        request::Operation::Cancel { .. } => Err(Refusal::Unsupported { what: "Cancel in a Commit".to_owned() }),
    }
}

fn sequence_key(key: Key) -> Result<Seq, Refusal> {
    if key.deliver_at.0 != 0 {
        return Err(Refusal::BadRequest { why: "a key of a sequence extent has no delivery time".to_owned() });
    }
    Ok(key.seq)
}

async fn do_commit<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    id: RequestId,
    commit: &Commit<'_>,
    payload: &[u8],
) -> Result<(), Refusal> {
    let operations: Result<Vec<_>, _> = commit.operations().map(|operation| engine_operation(operation, payload)).collect();
    let operations = operations?;
    let done = server.shard.commit(commit.group, commit.epoch, &operations).await?;
    let results: Vec<_> = done
        .value
        .iter()
        .zip(&operations)
        .map(|(done, operation)| match operation {
            Operation::Append { .. } => reply::OperationResult { first_seq: done.first_seq, count: done.count },
            Operation::Trim { .. } => reply::OperationResult::default(),
        })
        .collect();
    let op = done.value.first().map(|done| done.op).unwrap_or_default();
    connection.replies.push(done.gate, id, log_format::wire::Kind::Commit, |encoder, out| {
        encoder.commit_reply(id, op, reply::Durability::Device, &results, out);
    });
    connection.wake_at(&server.shard, done.gate);
    Ok(())
}

/// Queues an answer of a fixed form.
fn answer<R: Runtime, B: log_format::wire::Body>(server: &Server<R>, connection: &Connection, id: RequestId, body: &Gated<B>) {
    connection.replies.push(body.gate, id, B::KIND, |encoder, out| encoder.frame(id, &body.value, out));
    connection.wake_at(&server.shard, body.gate);
}

async fn do_change<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    id: RequestId,
    request: &Request<'_>,
) -> Result<(), Refusal> {
    let shard = &server.shard;
    match request {
        Request::CreateExtent(create) => {
            let done = shard.create(create.extent, create.group, create.kind, create.epoch).await?;
            let value = reply::CreateExtent { extent: create.extent, group: create.group, created: done.value };
            answer(server, connection, id, &Gated { value, gate: done.gate });
        }
        Request::Trim(trim) => {
            let done = shard.trim(trim.extent, trim.epoch, sequence_key(trim.to)?).await?;
            let floor = Key { seq: done.value.1, ..Key::default() };
            answer(server, connection, id, &Gated { value: reply::Trim { op: done.value.0, floor }, gate: done.gate });
        }
        Request::Seal(seal) => {
            let done = shard.seal(seal.extent, seal.epoch).await?;
            let value = reply::Seal { op: done.value.0, last_seq: done.value.1 };
            answer(server, connection, id, &Gated { value, gate: done.gate });
        }
        Request::Delete(delete) => {
            let done = shard.delete(delete.extent, delete.epoch).await?;
            answer(server, connection, id, &Gated { value: reply::Delete { op: done.value.0 }, gate: done.gate });
        }
        _ => unreachable!("only changes of state come here"),
    }
    Ok(())
}

fn do_describe<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    id: RequestId,
    request: &Request<'_>,
) -> Result<(), Refusal> {
    let shard = &server.shard;
    match request {
        Request::Describe(describe) => {
            let info = shard.describe(describe.extent)?;
            answer(server, connection, id, &Gated { value: reply::Describe { extent: info.value }, gate: info.gate });
        }
        Request::List(list) => {
            let limit = if list.limit == 0 { LIST_MAX } else { LIST_MAX.min(list.limit as usize) };
            let found = shard.list(list.after, limit);
            let (extents, more) = found.value;
            answer(server, connection, id, &Gated { value: reply::List { extents, more }, gate: found.gate });
        }
        _ => unreachable!("only descriptions come here"),
    }
    Ok(())
}

async fn do_seq_at_time<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    id: RequestId,
    at: &request::SeqAtTime,
) -> Result<(), Refusal> {
    let found = server.shard.seq_at_time(at.extent, at.time).await?;
    let info = server.shard.describe(at.extent)?;
    let (seq, append_time) = found.unwrap_or((info.value.last_seq.next(), Timestamp(0)));
    answer(server, connection, id, &Gated { value: reply::SeqAtTime { seq, append_time }, gate: info.gate });
    Ok(())
}

/// Starts a read: it waits and reads in a task of its own, so that requests behind it go on.
fn start_read<R: Runtime>(
    server: &Rc<Server<R>>,
    connection: &Rc<Connection>,
    id: RequestId,
    read: &request::Read,
) -> Result<(), Refusal> {
    if read.from_seq == Seq(0) {
        return Err(Refusal::BadRequest { why: "seqs start at 1".to_owned() });
    }
    let under_way = &connection.replies.reads_under_way;
    if under_way.get() >= READS_MAX {
        return Err(Refusal::Overloaded { retry_after_ms: RETRY_AFTER_MS });
    }
    under_way.set(under_way.get() + 1);
    let (server, connection, read) = (server.clone(), connection.clone(), *read);
    let runtime = server.shard.0.runtime.clone();
    runtime.spawn_detached(Box::pin(async move {
        let result = do_read(&server, &connection, &read).await;
        let under_way = &connection.replies.reads_under_way;
        under_way.set(under_way.get() - 1);
        match result {
            Ok((batch, permit)) => push_batch(&connection, id, batch, permit),
            Err(refusal) => connection.refuse(&server.shard, id, log_format::wire::Kind::Read, &refusal),
        }
    }));
    Ok(())
}

async fn do_read<R: Runtime>(
    server: &Server<R>,
    connection: &Connection,
    read: &request::Read,
) -> Result<(ReadBatch, Option<AnswerPermit>), Refusal> {
    let or_default = |value: u32, default: u32| if value == 0 { default } else { value };
    let options = server.shard.options();
    let max_bytes = or_default(read.max_bytes, READ_BYTES_DEFAULT).min(options.op_size_max() as u32);
    let request = ReadRequest {
        extent: read.extent,
        from: read.from_seq,
        max_bytes: max_bytes as usize,
        max_records: or_default(read.max_records, u32::MAX).min(READ_RECORDS_MAX as u32) as usize,
    };
    server.shard.wait_readable(&request, Duration::from_millis(read.wait_ms.min(WAIT_MAX_MS).into())).await?;
    // One record may be larger than what is asked for.
    let budget = max_bytes.max(options.record_size_max as u32);
    let mut permit = AnswerPermit::acquire(&connection.read_answers, &server.read_answers, budget).await;
    let batch = server.shard.read(&request, Duration::ZERO).await?;
    if let Some(permit) = &mut permit {
        permit.shrink(batch.payload.len());
    }
    Ok((batch, permit))
}

fn push_batch(connection: &Connection, id: RequestId, batch: ReadBatch, permit: Option<AnswerPermit>) {
    let state = if batch.sealed { reply::ExtentState::Sealed } else { reply::ExtentState::Open };
    let head = ReadHead { next_seq: batch.next, committed_seq: batch.committed, state, next_due: Default::default() };
    connection.replies.push_read(|encoder, out| encoder.read_reply(id, &head, &batch.entries, out), batch.payload, permit);
    connection.wake_now();
}
