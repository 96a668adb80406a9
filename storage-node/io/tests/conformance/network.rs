//! Clauses on connections.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use node_io::{Listener, ReadHalf, Runtime, Stream, WriteHalf};

use crate::clauses;

clauses! {
    an_echo_gives_back_large_writes,
    both_sides_work_at_the_same_time,
    many_connections_are_accepted,
    a_dropped_connection_ends_after_what_was_sent,
    a_shutdown_ends_the_reader_of_the_same_side,
    a_shutdown_ends_the_peer_after_what_was_sent,
    writes_after_a_shutdown_fail,
    a_handed_over_socket_loses_no_bytes,
    a_slow_reader_holds_its_writer_back,
    nobody_listening_is_refused,
    an_address_is_bound_once_and_free_again,
    an_empty_read_waits_for_nothing,
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

type Halves<R> = (<<R as Runtime>::Stream as Stream>::Read, <<R as Runtime>::Stream as Stream>::Write);

/// The two ends of a connection: who connected, who accepted.
async fn pair<R: Runtime>(runtime: &R) -> (Halves<R>, Halves<R>) {
    let listener = runtime.listen(any_port()).await.unwrap();
    let client = runtime.connect(listener.local_address()).await.unwrap();
    let server = listener.accept().await.unwrap();
    assert_eq!(client.peer(), listener.local_address());
    assert_ne!(server.peer().port(), 0);
    (client.into_split(), server.into_split())
}

/// Bytes that show where they belong.
fn pattern(start: usize, length: usize) -> Vec<u8> {
    (start..start + length).map(|place| (place % 251) as u8 ^ (place >> 12) as u8).collect()
}

async fn read_exactly(reader: &mut impl ReadHalf, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let count = reader.read(&mut bytes[filled..]).await.unwrap();
        assert_ne!(count, 0, "the stream ended after {filled} of {length} bytes");
        filled += count;
    }
    bytes
}

async fn read_to_end(reader: &mut impl ReadHalf) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buf = vec![0; 10_000];
    loop {
        match reader.read(&mut buf).await? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(&buf[..count]),
        }
    }
}

async fn an_echo_gives_back_large_writes<R: Runtime>(runtime: R, _: PathBuf) {
    const CHUNK: usize = 1 << 20;
    let listener = runtime.listen(any_port()).await.unwrap();
    let address = listener.local_address();
    let echo = runtime.spawn(async move {
        let (mut read, mut write) = listener.accept().await.unwrap().into_split();
        let mut buf = vec![0; 256 * 1024];
        loop {
            match read.read(&mut buf).await.unwrap() {
                0 => return,
                count => write.write_all(&buf[..count]).await.unwrap(),
            }
        }
    });
    let (mut read, mut write) = runtime.connect(address).await.unwrap().into_split();
    let writer = runtime.spawn(async move {
        for chunk in 0..4 {
            write.write_all(&pattern(chunk * CHUNK, CHUNK)).await.unwrap();
        }
        write
    });
    assert!(read_exactly(&mut read, 4 * CHUNK).await == pattern(0, 4 * CHUNK), "bytes were lost or changed");
    writer.await.shutdown().await.unwrap();
    echo.await;
}

async fn both_sides_work_at_the_same_time<R: Runtime>(runtime: R, _: PathBuf) {
    const LENGTH: usize = 1_500_000;
    let ((mut client_read, mut client_write), (mut server_read, mut server_write)) = pair(&runtime).await;
    let sent = runtime.spawn(async move {
        client_write.write_all(&pattern(0, LENGTH)).await.unwrap();
        client_write
    });
    let answered = runtime.spawn(async move {
        server_write.write_all(&pattern(7, LENGTH)).await.unwrap();
        server_write
    });
    let received = runtime.spawn(async move { read_exactly(&mut server_read, LENGTH).await });
    assert!(read_exactly(&mut client_read, LENGTH).await == pattern(7, LENGTH));
    assert!(received.await == pattern(0, LENGTH));
    drop((sent.await, answered.await));
}

async fn many_connections_are_accepted<R: Runtime>(runtime: R, _: PathBuf) {
    const COUNT: u8 = 100;
    let listener = runtime.listen(any_port()).await.unwrap();
    let address = listener.local_address();
    let clients: Vec<_> = (0..COUNT)
        .map(|number| {
            let inner = runtime.clone();
            runtime.spawn(async move {
                let (mut read, mut write) = inner.connect(address).await.unwrap().into_split();
                write.write_all(&[number]).await.unwrap();
                assert_eq!(read_exactly(&mut read, 1).await, [number]);
            })
        })
        .collect();
    for _ in 0..COUNT {
        let (mut read, mut write) = listener.accept().await.unwrap().into_split();
        runtime.spawn_detached(Box::pin(async move {
            let byte = read_exactly(&mut read, 1).await;
            write.write_all(&byte).await.unwrap();
            // Only closed after the client: bytes must not be cut off.
            assert_eq!(read.read(&mut [0; 1]).await.unwrap(), 0);
        }));
    }
    for client in clients {
        client.await;
    }
}

async fn a_dropped_connection_ends_after_what_was_sent<R: Runtime>(runtime: R, _: PathBuf) {
    let ((mut client_read, client_write), (server_read, mut server_write)) = pair(&runtime).await;
    server_write.write_all(&pattern(0, 40_000)).await.unwrap();
    drop((server_read, server_write));
    assert!(read_to_end(&mut client_read).await.unwrap() == pattern(0, 40_000));
    drop(client_write);
}

async fn a_shutdown_ends_the_reader_of_the_same_side<R: Runtime>(runtime: R, _: PathBuf) {
    let ((mut client_read, mut client_write), server) = pair(&runtime).await;
    let reading = Rc::new(Cell::new(false));
    let started = reading.clone();
    let reader = runtime.spawn(async move {
        started.set(true);
        client_read.read(&mut [0; 100]).await
    });
    while !reading.get() {
        runtime.yield_now().await;
    }
    client_write.shutdown().await.unwrap();
    assert_eq!(reader.await.unwrap(), 0);
    drop(server);
}

async fn a_shutdown_ends_the_peer_after_what_was_sent<R: Runtime>(runtime: R, _: PathBuf) {
    let ((_client_read, mut client_write), (mut server_read, _server_write)) = pair(&runtime).await;
    client_write.write_all(&pattern(0, 50_000)).await.unwrap();
    client_write.shutdown().await.unwrap();
    assert!(read_to_end(&mut server_read).await.unwrap() == pattern(0, 50_000));
    assert_eq!(server_read.read(&mut [0; 8]).await.unwrap(), 0, "the end came once only");
}

async fn writes_after_a_shutdown_fail<R: Runtime>(runtime: R, _: PathBuf) {
    let ((_client_read, mut client_write), (mut server_read, mut server_write)) = pair(&runtime).await;
    client_write.shutdown().await.unwrap();
    assert!(client_write.write_all(b"late").await.is_err());
    assert_eq!(server_read.read(&mut [0; 8]).await.unwrap(), 0);
    // The peer learns of it with its next writes at the latest.
    let chunk = pattern(0, 64 * 1024);
    let mut failed = false;
    for _ in 0..1000 {
        failed = server_write.write_all(&chunk).await.is_err();
        if failed {
            break;
        }
    }
    assert!(failed, "the peer's writes go nowhere, unnoticed");
}

async fn a_handed_over_socket_loses_no_bytes<R: Runtime>(runtime: R, _: PathBuf) {
    const LENGTH: usize = 2_000_000;
    const GREETING: usize = 100;
    let listener = runtime.listen(any_port()).await.unwrap();
    let address = listener.local_address();
    let inner = runtime.clone();
    let client = runtime.spawn(async move {
        let (mut read, mut write) = inner.connect(address).await.unwrap().into_split();
        write.write_all(&pattern(0, LENGTH)).await.unwrap();
        read_exactly(&mut read, 3).await
    });
    let mut stream = listener.accept().await.unwrap();
    let peer = stream.peer();
    // Several times, with reads between.
    for hand_over in 0..3 {
        let (mut read, write) = stream.into_split();
        assert!(read_exactly(&mut read, GREETING).await == pattern(hand_over * GREETING, GREETING));
        let socket = <R::Stream as Stream>::reunite(read, write).into_socket();
        stream = runtime.adopt(socket).unwrap();
        assert_eq!(stream.peer(), peer);
    }
    let (mut read, mut write) = stream.into_split();
    assert!(read_exactly(&mut read, LENGTH - 3 * GREETING).await == pattern(3 * GREETING, LENGTH - 3 * GREETING));
    write.write_all(b"end").await.unwrap();
    assert_eq!(client.await, b"end");
}

async fn a_slow_reader_holds_its_writer_back<R: Runtime>(runtime: R, _: PathBuf) {
    const CHUNK: usize = 1 << 20;
    const CHUNKS: usize = 24;
    let ((client_read, mut client_write), (mut server_read, server_write)) = pair(&runtime).await;
    let chunk: Rc<[u8]> = pattern(0, CHUNK).into();
    let (written, sent) = (Rc::new(Cell::new(0)), chunk.clone());
    let counter = written.clone();
    let writer = runtime.spawn(async move {
        for number in 1..=CHUNKS {
            client_write.write_all(&sent).await.unwrap();
            counter.set(number);
        }
        client_write
    });
    // It has stopped, or never will, when it makes no progress for long.
    let mut before = usize::MAX;
    while before != written.get() {
        before = written.get();
        runtime.sleep(Duration::from_millis(100)).await;
    }
    assert!(written.get() < CHUNKS, "{CHUNKS} MiB were taken with nobody reading");
    for _ in 0..CHUNKS {
        assert!(read_exactly(&mut server_read, CHUNK).await == *chunk, "bytes were lost or changed");
    }
    drop((writer.await, client_read, server_write));
}

async fn nobody_listening_is_refused<R: Runtime>(runtime: R, _: PathBuf) {
    let listener = runtime.listen(any_port()).await.unwrap();
    let address = listener.local_address();
    drop(listener);
    let error = runtime.connect(address).await.err().expect("nobody listens");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

async fn an_address_is_bound_once_and_free_again<R: Runtime>(runtime: R, _: PathBuf) {
    let listener = runtime.listen(any_port()).await.unwrap();
    let address = listener.local_address();
    let error = runtime.listen(address).await.err().expect("it is bound");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    let client = runtime.connect(address).await.unwrap();
    let server = listener.accept().await.unwrap();
    drop((listener, server, client));
    // Also while old connections linger.
    runtime.listen(address).await.unwrap();
}

async fn an_empty_read_waits_for_nothing<R: Runtime>(runtime: R, _: PathBuf) {
    let ((mut client_read, client_write), server) = pair(&runtime).await;
    assert_eq!(client_read.read(&mut []).await.unwrap(), 0);
    drop((client_write, server));
}
