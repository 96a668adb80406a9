//! Accepts connections, reads the Hello of each, and hands the socket to the shard that it asks for.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log_format::ids::ShardIndex;
use log_format::wire::{Direction, Encoder, FRAME_HEADER_SIZE, FrameHeader, Kind, PROTOCOL_VERSION, Refusal, Request};
use node_io::{Listener, ReadHalf, Runtime, Stream, WriteHalf};
use tokio::sync::{Semaphore, mpsc};

use super::Handover;

/// How long a Hello may take.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// A Hello's greatest body, in bytes.
const HELLO_SIZE_MAX: usize = 16 << 10;
/// Connections whose Hello is not there yet.
const WAITING_MAX: usize = 4096;
/// How long to wait when the system refuses to accept: it is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections for the shards behind `shards`, in their order, until all of them are gone.
pub async fn accept<R: Runtime>(runtime: R, listener: R::Listener, shards: Vec<mpsc::Sender<Handover<R>>>) {
    let shards = Rc::new(shards);
    let waiting = Arc::new(Semaphore::new(WAITING_MAX));
    let mut turn = 0;
    while shards.iter().any(|shard| !shard.is_closed()) {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                runtime.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = waiting.clone().try_acquire_owned() else {
            tracing::warn!(peer = %stream.peer(), "closed: too many connections have not said Hello");
            continue;
        };
        turn = (turn + 1) % shards.len();
        let (runtime_of_task, shards, any) = (runtime.clone(), shards.clone(), turn);
        runtime.spawn_detached(Box::pin(async move {
            let peer = stream.peer();
            let hello = greet::<R>(stream, shards.len(), any);
            let greeted = tokio::select! {
                biased;
                greeted = hello => greeted,
                () = runtime_of_task.sleep(HELLO_LIMIT) => Err(io::ErrorKind::TimedOut.into()),
            };
            drop(permit);
            match greeted {
                Ok(Some((shard, handover))) => {
                    // An error means that the shard has ended: the connection is closed with it.
                    let _ = shards[shard].send(handover).await;
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%peer, %error, "a connection ended before its Hello"),
            }
        }));
    }
}

/// Reads the Hello. None if it was refused.
async fn greet<R: Runtime>(stream: R::Stream, shard_count: usize, any: usize) -> io::Result<Option<(usize, Handover<R>)>> {
    let (mut read, mut write) = stream.into_split();
    let mut head = [0; FRAME_HEADER_SIZE];
    read_exact(&mut read, &mut head).await?;
    let header = FrameHeader::decode(&head).map_err(io::Error::other)?;
    if header.kind != Kind::Hello || header.direction != Direction::Request || header.payload_length > 0 {
        let why = "the first frame of a connection must be a Hello without payload".to_owned();
        refuse(&mut write, &header, &Refusal::BadRequest { why }).await?;
        return Ok(None);
    }
    if header.body_length as usize > HELLO_SIZE_MAX {
        refuse(&mut write, &header, &Refusal::TooLarge { limit_bytes: HELLO_SIZE_MAX as u64 }).await?;
        return Ok(None);
    }
    let mut body = vec![0; header.body_length as usize];
    read_exact(&mut read, &mut body).await?;
    let shard = header
        .check_body(&body)
        .map_err(|error| Refusal::BadRequest { why: error.to_string() })
        .and_then(|()| wanted_shard(&header, &body, shard_count));
    match shard {
        Ok(shard) => {
            let shard = shard.map_or(any, |shard| shard.0 as usize);
            let socket = R::Stream::reunite(read, write).into_socket();
            Ok(Some((shard, Handover { socket, hello: header.request_id })))
        }
        Err(refusal) => {
            refuse(&mut write, &header, &refusal).await?;
            Ok(None)
        }
    }
}

fn wanted_shard(header: &FrameHeader, body: &[u8], shard_count: usize) -> Result<Option<ShardIndex>, Refusal> {
    let request = Request::decode(header, body).map_err(|error| Refusal::BadRequest { why: error.to_string() })?;
    let Request::Hello(hello) = request else { unreachable!("a frame of kind Hello is decoded as one") };
    if !(hello.min_version..=hello.max_version).contains(&PROTOCOL_VERSION) {
        return Err(Refusal::VersionMismatch { min: PROTOCOL_VERSION, max: PROTOCOL_VERSION });
    }
    match hello.shard {
        Some(shard) if shard.0 as usize >= shard_count => Err(Refusal::WrongShard { shard: ShardIndex(shard_count as u32 - 1) }),
        shard => Ok(shard),
    }
}

async fn refuse(write: &mut impl WriteHalf, header: &FrameHeader, refusal: &Refusal) -> io::Result<()> {
    let mut out = Vec::new();
    Encoder::new().refusal(header.request_id, header.kind, refusal, &mut out);
    write.write_all(&out).await?;
    write.shutdown().await
}

async fn read_exact(read: &mut impl ReadHalf, bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read.read(&mut bytes[filled..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(())
}
