//! Newtypes for all that is numbered or named. Never a bare integer across a module border.

use std::fmt;
use std::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The next one.
            ///
            /// # Panics
            /// If the number space is used up.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect(concat!(stringify!($name), " space is used up")))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

number! {
    /// A record's place in its extent: 1, 2, 3, … without gaps. 0 means none.
    Seq(u64)
}
number! {
    /// The number of an atomic change of a group: 1, 2, 3, … 0 means none.
    Op(u64)
}
number! {
    /// Orders the primaries of a group.
    Epoch(u64)
}
number! {
    /// A segment of a shard's log; greater than all before it.
    SegmentId(u64)
}
number! {
    /// A block of a shard's log: 1, 2, 3, … over all segments. 0 means none.
    BlockNumber(u64)
}
number! {
    /// A shard's own short number for an extent, never used again.
    ExtentNumber(u32)
}
number! {
    /// Raised whenever a node's data is known to be new or replaced.
    Incarnation(u64)
}
number! {
    /// One of a node's partitions.
    ShardIndex(u32)
}
number! {
    /// Nanoseconds since the Unix epoch.
    Timestamp(u64)
}
number! {
    /// When a timer record falls due: nanoseconds since the Unix epoch. 0 in sequence extents.
    DeliverAt(u64)
}

/// A record's key: (deliver_at, seq) in timer extents; deliver_at is 0 in sequence extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The high part.
    pub deliver_at: DeliverAt,
    /// The low part, which makes it unique.
    pub seq: Seq,
}

/// The text is no UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID: {0:?} (32 hex digits, with or without dashes)")]
pub struct ParseIdError(String);

fn parse_uuid(text: &str) -> Result<u128, ParseIdError> {
    let error = || ParseIdError(text.to_owned());
    let bytes = text.as_bytes();
    let dashed = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|&place| bytes[place] == b'-');
    if !dashed && bytes.len() != 32 {
        return Err(error());
    }
    let mut value: u128 = 0;
    for (place, &byte) in bytes.iter().enumerate() {
        if dashed && [8, 13, 18, 23].contains(&place) {
            continue;
        }
        let digit = (byte as char).to_digit(16).ok_or_else(error)?;
        value = value << 4 | u128::from(digit);
    }
    Ok(value)
}

macro_rules! uuid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// The 16 bytes as they lie on disk: a UUID's textual order.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// From the 16 bytes as they lie on disk.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.0;
                write!(
                    formatter,
                    "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    (value >> 96) as u32,
                    (value >> 80) as u16,
                    (value >> 64) as u16,
                    (value >> 48) as u16,
                    value as u64 & 0xffff_ffff_ffff
                )
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_uuid(text).map(Self)
            }
        }
    };
}

uuid! {
    /// An extent's 128-bit id. Zero is no id.
    ExtentId
}
uuid! {
    /// A group's 128-bit id. An extent alone is a group with the extent's own id.
    GroupId
}
uuid! {
    /// A node's 128-bit id.
    NodeId
}

impl From<ExtentId> for GroupId {
    fn from(extent: ExtentId) -> Self {
        GroupId(extent.0)
    }
}

/// Whether an extent is read by seq alone or also by delivery time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExtentKind {
    /// Read in the order of seqs.
    Sequence = 1,
    /// Read in the order of (deliver_at, seq), when due.
    Timer = 2,
}

impl ExtentKind {
    /// From its byte on disk and on the wire.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Sequence),
            2 => Some(Self::Timer),
            _ => None,
        }
    }
}

/// The shard that owns a group on a node of `shard_count` shards: the two halves of the id folded by xor, spread by Knuth's
/// multiplicative (Fibonacci) hash, and scaled to the count by Lemire's multiply-shift.
///
/// # Panics
/// If `shard_count` is 0.
pub fn shard_of(group: GroupId, shard_count: u32) -> ShardIndex {
    assert!(shard_count > 0, "a node has at least one shard");
    let folded = (group.0 >> 64) as u64 ^ group.0 as u64;
    let spread = folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    ShardIndex(((spread * u64::from(shard_count)) >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse_as_uuids() {
        let id = ExtentId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string(), "01234567-89ab-cdef-0011-223344556677");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("0123456789ABCDEF0011223344556677".parse(), Ok(id));
        for bad in
            ["", "01234567-89ab-cdef-0011-22334455667", "0123456789abcdef001122334455667g", "é1234567-89ab-cdef-0011-22334455667"]
        {
            assert!(bad.parse::<ExtentId>().is_err(), "{bad:?}");
        }
        assert_eq!(ExtentId::from_bytes(id.to_bytes()), id);
    }

    #[test]
    fn groups_spread_evenly_over_shards() {
        for shards in [1, 2, 3, 7, 64] {
            let mut counts = vec![0u32; shards as usize];
            for id in 0..10_000u128 {
                counts[shard_of(GroupId((id << 64) | (id * 0x1_0001)), shards).0 as usize] += 1;
            }
            let mean = 10_000 / shards;
            assert!(counts.iter().all(|&count| count > mean / 2 && count < mean * 2), "{shards}: {counts:?}");
        }
    }
}
