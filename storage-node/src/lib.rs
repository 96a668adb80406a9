//! The storage engine of a Roost node: shards, their logs and indexes, and the server in front of them.
//!
//! Everything is generic over [`node_io::Runtime`], so that all of it runs unmodified in simulation. docs/ARCHITECTURE.md is the map.

mod changes;
mod commit;
mod data_dir;
mod extents;
mod footers;
mod index;
mod inventory;
mod moving_on;
mod options;
mod pending;
mod prepare;
mod read;
mod recovery;
mod replay;
mod roll;
mod scan;
mod segment;
pub mod server;
mod shard;
pub mod status;
mod tail_cache;

pub use changes::{Appended, Gated, Operation, OperationDone};
pub use data_dir::{DataDir, DataDirError};
pub use options::ShardOptions;
pub use read::{ReadBatch, ReadRequest};
pub use recovery::{Damage, RecoveryError};
pub use server::Server;
pub use shard::Shard;
