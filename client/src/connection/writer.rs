//! The task that writes a connection's requests: takes whatever waits, sends it in one large write, takes what came meanwhile.

use super::Shared;
use super::queue::{Buffers, Outgoing};
use crate::error::ClientError;
use log_format::wire::Encoder;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;

/// About how many bytes go into one write.
const WRITE_BYTES: usize = 512 * 1024;
/// Payloads up to this many bytes are copied behind their headers; longer ones are written from where they are.
const COPY_BYTES: usize = 4 * 1024;
/// Pieces of one call to the kernel.
const SLICES_MAX: usize = 64;
/// How long the reading side may take to see for itself that a connection which can't be written any more has ended.
const END_GRACE: Duration = Duration::from_secs(1);

/// A stretch of the write: up to `head_end` in the heads, then a payload of its own.
struct Piece {
    head_end: usize,
    payload: Buffers,
}

#[derive(Default)]
struct Write {
    heads: Vec<u8>,
    pieces: Vec<Piece>,
}

pub(super) async fn run(shared: Arc<Shared>, mut socket: OwnedWriteHalf) {
    let mut encoder = Encoder::new();
    let mut taken = Vec::new();
    let mut write = Write::default();
    let capacity_max = shared.options.batch_bytes.saturating_mul(2);
    loop {
        {
            let mut queue = shared.queue();
            if queue.failure.is_some() {
                return;
            }
            write.pieces.drain(..).for_each(|piece| queue.recycle(piece.payload, capacity_max));
            queue.take(WRITE_BYTES, &mut taken);
            queue.is_writer_idle = taken.is_empty();
        }
        if taken.is_empty() {
            shared.writer_wake.notified().await;
            continue;
        }
        write.fill(&mut taken, &mut encoder);
        if let Err(error) = write.send(&mut socket).await {
            // Answers that came before the end are still to be read: the reading side ends the connection when it is through.
            tokio::time::sleep(END_GRACE).await;
            shared.fail(&ClientError::disconnected(&shared.address, error.to_string()));
            return;
        }
    }
}

impl Write {
    fn fill(&mut self, taken: &mut Vec<Outgoing>, encoder: &mut Encoder) {
        self.heads.clear();
        for outgoing in taken.drain(..) {
            let mut buffers = match outgoing {
                Outgoing::Append(batch) => {
                    encoder.append(batch.request_id, &batch.target, &batch.buffers.metas, &[], &mut self.heads);
                    batch.buffers
                }
                Outgoing::Encoded { head, payload, .. } => {
                    self.heads.extend_from_slice(&head);
                    Buffers { metas: Vec::new(), payload }
                }
            };
            if buffers.payload.len() <= COPY_BYTES {
                self.heads.extend_from_slice(&buffers.payload);
                buffers.payload.clear();
            }
            self.pieces.push(Piece { head_end: self.heads.len(), payload: buffers });
        }
    }

    async fn send(&self, socket: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut slices = Vec::with_capacity(SLICES_MAX);
        let mut start = 0;
        let mut pieces = self.pieces.iter().peekable();
        while let Some(piece) = pieces.next() {
            let is_last = pieces.peek().is_none();
            if !piece.payload.payload.is_empty() || is_last {
                slices.push(IoSlice::new(&self.heads[start..piece.head_end]));
                slices.push(IoSlice::new(&piece.payload.payload));
                start = piece.head_end;
            }
            if slices.len() + 2 > SLICES_MAX || is_last {
                write_all(socket, &mut slices).await?;
                slices.clear();
            }
        }
        Ok(())
    }
}

async fn write_all(socket: &mut OwnedWriteHalf, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = socket.write_vectored(slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}
