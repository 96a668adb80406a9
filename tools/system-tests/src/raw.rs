//! A connection that speaks the protocol frame by frame, and can break it.

use log_format::ids::{Epoch, ExtentId, ExtentKind, GroupId, ShardIndex};
use log_format::wire::{
    AppendTarget, Body, Encoder, FRAME_HEADER_SIZE, FrameHeader, Kind, PROTOCOL_VERSION, RecordMeta, Refusal, Reply, RequestId,
    request,
};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take: far above any good one, far below the node's own limits for silent peers.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its header.
    pub header: FrameHeader,
    /// Its body, checked against the frame's checksum.
    pub body: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Answer {
    /// What it says.
    ///
    /// # Panics
    /// If that is nothing.
    pub fn reply(&self) -> Reply<'_> {
        Reply::decode(&self.header, &self.body).unwrap()
    }

    /// The refusal that it is.
    ///
    /// # Panics
    /// If it is another answer.
    pub fn refusal(&self) -> Refusal {
        match self.reply() {
            Reply::Refused(refusal) => refusal,
            other => panic!("no refusal: {other:?}"),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct RawConnection {
    /// The socket, to send anything by.
    pub stream: TcpStream,
}

impl RawConnection {
    /// Connects and says nothing.
    ///
    /// # Panics
    /// If nobody listens.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        stream.set_write_timeout(Some(ANSWER_MAX)).unwrap();
        Self { stream }
    }

    /// Connects and says Hello to a shard.
    ///
    /// # Panics
    /// If the node refuses.
    pub fn greeted(address: SocketAddr, shard: Option<u32>) -> Self {
        let mut connection = Self::connect(address);
        connection.send(&hello(shard));
        let answer = connection.answer();
        assert!(matches!(answer.reply(), Reply::Hello(_)), "{answer:?}");
        connection
    }

    /// Sends bytes.
    ///
    /// # Panics
    /// If they can't be sent.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Ends the sending side.
    ///
    /// # Panics
    /// If the connection is gone.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// The next answer; none where the node has ended the connection.
    ///
    /// # Errors
    /// It broke, or nothing came in time.
    pub fn receive(&mut self) -> io::Result<Option<Answer>> {
        let mut head = [0; FRAME_HEADER_SIZE];
        match self.stream.read(&mut head) {
            Ok(0) => return Ok(None),
            Ok(count) => self.stream.read_exact(&mut head[count..])?,
            Err(error) => return Err(error),
        }
        let header = FrameHeader::decode(&head).map_err(io::Error::other)?;
        let mut body = vec![0; header.body_length as usize];
        self.stream.read_exact(&mut body)?;
        header.check_body(&body).map_err(io::Error::other)?;
        let mut payload = vec![0; header.payload_length as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Some(Answer { header, body, payload }))
    }

    /// The next answer, which must come.
    ///
    /// # Panics
    /// If it does not.
    pub fn answer(&mut self) -> Answer {
        self.receive().unwrap().expect("the node answers before it ends the connection")
    }

    /// Sends a frame and waits for its answer.
    ///
    /// # Panics
    /// If none comes.
    pub fn ask(&mut self, frame: &[u8]) -> Answer {
        self.send(frame);
        self.answer()
    }

    /// Waits until the node has ended the connection, discarding what still comes.
    ///
    /// # Panics
    /// If it does not end it.
    pub fn expect_end(&mut self) {
        loop {
            match self.receive() {
                Ok(Some(_)) => {}
                Ok(None) => return,
                // Bytes that the node did not read turn its close into a reset.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the node does not end the connection: {error}"),
            }
        }
    }

    /// Makes an extent that is a group of its own.
    ///
    /// # Panics
    /// If the node refuses.
    pub fn create(&mut self, extent: ExtentId) {
        let body = request::CreateExtent { extent, group: GroupId::from(extent), kind: ExtentKind::Sequence, epoch: Epoch(0) };
        let answer = self.ask(&frame(1, &body));
        assert!(matches!(answer.reply(), Reply::CreateExtent(_)), "{answer:?}");
    }
}

/// The frame of a request without payload.
pub fn frame<B: Body>(request_id: u64, body: &B) -> Vec<u8> {
    let mut out = Vec::new();
    Encoder::new().frame(RequestId(request_id), body, &mut out);
    out
}

/// The frame of an Append with its payload.
pub fn append<T: AsRef<[u8]>>(request_id: u64, extent: ExtentId, records: &[T]) -> Vec<u8> {
    let metas: Vec<RecordMeta> = records.iter().map(|record| RecordMeta::of(record.as_ref())).collect();
    let target = AppendTarget { extent, epoch: Epoch(0), expected_seq: None };
    let mut out = Vec::new();
    Encoder::new().append(RequestId(request_id), &target, &metas, &[], &mut out);
    records.iter().for_each(|record| out.extend_from_slice(record.as_ref()));
    out
}

/// A Hello.
pub fn hello(shard: Option<u32>) -> Vec<u8> {
    let body = request::Hello {
        min_version: PROTOCOL_VERSION,
        max_version: PROTOCOL_VERSION,
        shard: shard.map(ShardIndex),
        auth: &[],
        client: "system-tests",
    };
    frame(0, &body)
}

/// Whether an answer is of this kind and no refusal.
pub fn is_kind(answer: &Answer, kind: Kind) -> bool {
    answer.header.kind == kind && answer.header.direction == log_format::wire::Direction::Reply
}
