//! Roost's Rust client.
//!
//! A [`Client`] keeps one connection a shard of a node, made when it is needed and made again when it was lost. Any number
//! of requests may be in flight; records that wait for the socket travel together, so that nothing has to be tuned
//! and nothing waits for a timer. Every record read is checked against its checksum, which was computed once, by the appending client.
//!
//! What an ack means, and what may be done after a lost one, is in the protocol's documentation: in short, an
//! [`Appended`] record is durable; a [`Refusal`] means that nothing was done; [`ClientError::Disconnected`] means that nobody knows, and an append with the
//! expected seq finds out.
//!
//! ```no_run
//! use roost_client::{Client, ClientOptions, NewExtent, ReaderOptions, Seq};
//!
//! # async fn example() -> Result<(), roost_client::ClientError> {
//! let client = Client::connect("127.0.0.1:7440", ClientOptions::default()).await?;
//! let extent = client.create_extent(NewExtent::new()).await?.extent;
//!
//! // One record, durable when the answer is there.
//! let appended = client.append(extent, "first").await?;
//! assert_eq!(appended.seq, Seq(1));
//!
//! // Many in flight.
//! let mut appender = client.appender(extent).await?;
//! let mut acks = Vec::new();
//! for number in 0..1000 {
//!     acks.push(appender.send(format!("record {number}")).await?);
//! }
//! for ack in acks {
//!     ack.await?;
//! }
//!
//! // Back, in order, up to the tail.
//! let mut reader = client.reader(extent, Seq(1), ReaderOptions { follow: false, ..Default::default() });
//! while let Some(record) = reader.next().await? {
//!     println!("{} {:?}", record.seq, record.data);
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
mod appender;
mod client;
mod commit;
mod connection;
mod error;
mod options;
mod outcome;
mod reader;
mod shards;

pub use answer::{Committed, Page, Record};
pub use appender::Appender;
pub use client::{Client, NewExtent};
pub use commit::Commit;
pub use connection::NodeInfo;
pub use error::ClientError;
pub use log_format::ids::{Epoch, ExtentId, ExtentKind, GroupId, Op, Seq, ShardIndex, Timestamp};
pub use log_format::wire::Refusal;
pub use log_format::wire::reply::{CreateExtent, Durability, ExtentInfo, ExtentState, OperationResult, Seal, SeqAtTime};
pub use log_format::wire::request::Read;
pub use options::{ClientOptions, ReaderOptions};
pub use outcome::{AppendFuture, Appended, AppendedBatch, BatchFuture};
pub use reader::Reader;
