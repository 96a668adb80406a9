//! The bytes of records: incompressible, repeatable from a seed, different from record to record, and free to make.
//!
//! A record is a slice of one pool of random bytes (SplitMix64, Steele, Lea and Flood 2014), at a place that its writer and its number
//! pick. The pool is small enough for a core's cache, so that making records does not show in what is measured.

/// Places where a record may start.
const PLACES: u64 = 1 << 20;

/// One record's origin: who wrote it, and as which of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Unique within the job.
    pub(crate) writer: u64,
    /// Counts the writer's records.
    pub(crate) number: u64,
}

/// Makes the records of one job, all of one length.
#[derive(Debug)]
pub(crate) struct Pattern {
    pool: Vec<u8>,
    record_bytes: usize,
}

impl Pattern {
    pub(crate) fn new(seed: u64, record_bytes: usize) -> Self {
        let length = PLACES as usize + record_bytes;
        let mut state = seed;
        let mut pool = Vec::with_capacity(length + 8);
        while pool.len() < length {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            pool.extend_from_slice(&mix(state).to_le_bytes());
        }
        Self { pool, record_bytes }
    }

    /// The record's bytes.
    pub(crate) fn record(&self, origin: Origin) -> &[u8] {
        let place = (mix(origin.writer.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ origin.number) % PLACES) as usize;
        &self.pool[place..place + self.record_bytes]
    }
}

/// SplitMix64's finalizer.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn origin(writer: u64, number: u64) -> Origin {
        Origin { writer, number }
    }

    #[test]
    fn records_repeat_from_the_seed_and_differ_from_each_other() {
        let (one, same, other) = (Pattern::new(7, 64), Pattern::new(7, 64), Pattern::new(8, 64));
        let mut seen = HashSet::new();
        for (writer, number) in (0..10).flat_map(|writer| (0..100).map(move |number| (writer, number))) {
            let record = one.record(origin(writer, number));
            assert_eq!(record.len(), 64);
            assert_eq!(record, same.record(origin(writer, number)));
            assert_ne!(record, other.record(origin(writer, number)));
            seen.insert(record.to_vec());
        }
        // 1,000 of 1,048,576 places: about half a pair shares one.
        assert!(seen.len() >= 990, "{} different records of 1,000", seen.len());
    }

    #[test]
    fn any_length_is_served() {
        for length in [0, 1, 7, 1 << 20] {
            assert_eq!(Pattern::new(1, length).record(origin(u64::MAX, u64::MAX)).len(), length);
        }
    }
}
