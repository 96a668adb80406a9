//! Roost's on-disk format (docs/format.md) and wire protocol (docs/protocol.md): layouts, encoding, decoding, checksums, versions.
//!
//! Pure: no I/O, no async, no clock. Every decoder is total: any bytes give a value or an error, never a panic, never an allocation
//! larger than the input justifies. The daemon, the client and the offline tools share this crate, so that there is one
//! reading of each byte. The only unsafe code is what `flatc` generates from `schema/`.

#[allow(
    unsafe_code,
    missing_docs,
    unused_imports,
    unreachable_pub,
    rust_2018_idioms,
    clippy::all,
    clippy::unwrap_used
)]
#[rustfmt::skip]
mod generated;

pub mod ids;
pub mod wire;

pub mod block;
pub mod checkpoint;
mod codec;
pub mod footer;
pub mod manifest;
pub mod segment;
pub mod state;

/// Bytes in a page, the unit of alignment of everything on disk.
pub const PAGE_SIZE: usize = 4096;
/// The version of the on-disk format that this crate writes.
pub const FORMAT_VERSION: u16 = 1;
/// The greatest payload of one record, in bytes.
pub const RECORD_SIZE_MAX: usize = 16 * 1024 * 1024;
/// The greatest block, in bytes.
pub const BLOCK_SIZE_MAX: usize = 32 * 1024 * 1024;

/// The crc32c of a record's bytes: computed once, by the client, and carried to the disk and back.
pub fn payload_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
