//! What a caller may choose.

use std::time::Duration;

/// How a [`Client`](crate::Client) behaves. The default fits most.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name and version of the program, for the node's logs.
    pub name: String,
    /// The most records that one connection has appended and not seen acked; past that, appends wait. At least 1.
    pub window_records: usize,
    /// The most bytes of such records. A record larger than this waits until nothing is in flight.
    pub window_bytes: usize,
    /// Records to one extent that wait for the socket share a request until it has this many bytes. A request's records
    /// are durable or lost together, and lie in one block of the node: far less than a block, so that few of its bytes stay unused.
    pub batch_bytes: usize,
    /// The longest that one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long a lost connection is tried again, with growing pauses, before a request that needs it fails.
    pub reconnect_for: Duration,
    /// A connection with requests unanswered and nothing coming for this long is taken for lost.
    pub response_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            name: concat!("roost-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            window_records: 16_384,
            window_bytes: 64 * 1024 * 1024,
            batch_bytes: 16 * 1024,
            connect_timeout: Duration::from_secs(5),
            reconnect_for: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
        }
    }
}

/// How a [`Reader`](crate::Reader) reads.
#[derive(Clone, Copy, Debug)]
pub struct ReaderOptions {
    /// The most bytes of one request; a record that is larger comes all the same, alone.
    pub max_bytes: u32,
    /// The most records of one request; 0: as many as the node gives.
    pub max_records: u32,
    /// Whether to wait at the tail for records to come. If not, the reader ends there.
    pub follow: bool,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self { max_bytes: 1024 * 1024, max_records: 0, follow: true }
    }
}
