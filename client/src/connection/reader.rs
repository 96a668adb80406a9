//! The task that reads a connection's answers and hands them to those who wait.
//!
//! Every frame is checked: its checksum, its schema, that it answers a request which waits, and the bytes of every record
//! read. Whatever does not fit ends the connection.

use super::Shared;
use super::queue::Mismatch;
use crate::answer::{Answer, Committed, Page, Record};
use crate::error::ClientError;
use bytes::{Buf, Bytes, BytesMut};
use log_format::ids::ExtentId;
use log_format::wire::{BodyError, Direction, FRAME_HEADER_SIZE, FrameError, FrameHeader, Kind, Refusal, Reply, reply};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

/// About how many bytes one read asks for.
const READ_BYTES: usize = 256 * 1024;

/// Why the connection is of no further use.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the node closed it")]
    Closed,
    #[error("the node gave no answer in time")]
    Silent,
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A refusal that names no request is about the connection.
    #[error("the node closed it: {0}")]
    Refused(Refusal),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

pub(super) async fn run(shared: Arc<Shared>, mut socket: OwnedReadHalf) {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let end = loop {
        let wanted = match shared.take_frames(&mut buffer) {
            Ok(wanted) => wanted,
            Err(end) => break end,
        };
        buffer.reserve(wanted.saturating_sub(buffer.len()).max(READ_BYTES / 2));
        match shared.read(&mut socket, &mut buffer).await {
            Ok(()) => {}
            Err(end) => break end,
        }
    };
    let error = match end {
        End::Closed | End::Silent | End::Io(_) | End::Refused(_) => ClientError::disconnected(&shared.address, end.to_string()),
        End::Frame(_) | End::Body(_) | End::Mismatch(_) => ClientError::protocol(&shared.address, end.to_string()),
    };
    shared.fail(&error);
}

impl Shared {
    async fn read(&self, socket: &mut OwnedReadHalf, buffer: &mut BytesMut) -> Result<(), End> {
        loop {
            match tokio::time::timeout(self.options.response_timeout, socket.read_buf(buffer)).await {
                Ok(Ok(0)) => return Err(End::Closed),
                Ok(read) => return read.map(drop).map_err(End::Io),
                Err(_) if self.queue().is_waiting() => return Err(End::Silent),
                Err(_) => {}
            }
        }
    }

    /// Takes all whole frames off the buffer. Gives the length of the frame that is not whole yet, if it is known.
    fn take_frames(&self, buffer: &mut BytesMut) -> Result<usize, End> {
        let mut is_acked = false;
        let wanted = loop {
            let Some(header) = buffer.first_chunk::<FRAME_HEADER_SIZE>() else { break FRAME_HEADER_SIZE };
            let header = FrameHeader::decode(header)?;
            header.check_payload_limit(self.node.max_frame_size)?;
            if buffer.len() < header.frame_length() {
                break header.frame_length();
            }
            let body = &buffer[FRAME_HEADER_SIZE..header.payload_offset()];
            header.check_body(body)?;
            if (header.kind, header.direction) == (Kind::Append, Direction::Reply) {
                let Reply::Append(append) = Reply::decode(&header, body)? else { unreachable!("the header says what it is") };
                self.acks(&append)?;
                is_acked = true;
                buffer.advance(header.frame_length());
            } else {
                let frame = buffer.split_to(header.frame_length()).freeze();
                is_acked |= self.answered(&header, &frame)?;
            }
        };
        if is_acked {
            self.room.notify_waiters();
        }
        Ok(wanted)
    }

    fn acks(&self, append: &reply::Append<'_>) -> Result<(), End> {
        let mut done = Vec::with_capacity(append.acks().len());
        let result = {
            let mut queue = self.queue();
            append.acks().try_for_each(|ack| queue.acked(&ack).map(|acked| done.push(acked)))
        };
        done.into_iter().for_each(|(outcome, batch)| outcome.complete(Ok(batch)));
        result.map_err(End::Mismatch)
    }

    /// Whether the answer may have made room in the window.
    fn answered(&self, header: &FrameHeader, frame: &Bytes) -> Result<bool, End> {
        let id = header.request_id;
        let body = &frame[FRAME_HEADER_SIZE..header.payload_offset()];
        let answer = match Reply::decode(header, body)? {
            Reply::Refused(refusal) => {
                if id.0 == 0 {
                    return Err(End::Refused(refusal));
                }
                let refused = self.queue().refused(id, ClientError::Refused(refusal))?;
                refused.tell();
                return Ok(true);
            }
            Reply::Commit(commit) => {
                let sender = self.queue().committed(id)?;
                let results = commit.results().collect();
                drop(sender.send(Ok(Committed { op: commit.op, durability: commit.durability, results })));
                return Ok(true);
            }
            Reply::Hello(_) | Reply::Append(_) => return Err(Mismatch::Kind(id).into()),
            Reply::Read(read) => {
                let waiting = self.queue().answered(id, Kind::Read)?;
                let extent = waiting.extent.expect("a Read names its extent");
                drop(waiting.sender.send(page(&read, extent, &frame.slice(header.payload_offset()..)).map(Answer::Read)));
                return Ok(false);
            }
            Reply::CreateExtent(reply) => Answer::CreateExtent(reply),
            Reply::SeqAtTime(reply) => Answer::SeqAtTime(reply),
            Reply::Trim(reply) => Answer::Trim(reply),
            Reply::Seal(reply) => Answer::Seal(reply),
            Reply::Delete(reply) => Answer::Delete(reply),
            Reply::Describe(reply) => Answer::Describe(reply),
            Reply::List(reply) => Answer::List(reply),
        };
        let waiting = self.queue().answered(id, header.kind)?;
        drop(waiting.sender.send(Ok(answer)));
        Ok(false)
    }
}

/// `payload` is as long as the entries together: the frame's decoder has seen to it.
fn page(read: &reply::Read<'_>, extent: ExtentId, payload: &Bytes) -> Result<Page, ClientError> {
    let mut records = Vec::with_capacity(read.count());
    let mut at = 0;
    for entry in read.entries() {
        let data = payload.slice(at..at + entry.length as usize);
        at += data.len();
        if log_format::payload_checksum(&data) != entry.checksum {
            return Err(ClientError::Damaged { extent, seq: entry.seq });
        }
        records.push(Record { seq: entry.seq, append_time: entry.append_time, data });
    }
    Ok(Page { records, next_seq: read.next_seq, committed_seq: read.committed_seq, state: read.state })
}
