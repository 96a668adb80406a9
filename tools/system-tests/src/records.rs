//! Records whose bytes follow from a number, so that what comes back can be checked without keeping it.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The bytes of record `number` of writer or extent `of`: mostly short, now and then empty or long, rarely over many pages.
pub fn record(of: u128, number: u64) -> Vec<u8> {
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(&of.to_le_bytes());
    seed[16..24].copy_from_slice(&number.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(seed);
    let length = match random.random_range(0..1000) {
        0..20 => 0,
        20..900 => random.random_range(1..300),
        900..990 => random.random_range(300..6000),
        990..998 => random.random_range(6000..40_000),
        _ => random.random_range(40_000..300_000),
    };
    let mut bytes = vec![0; length];
    random.fill(&mut bytes[..]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::record;

    #[test]
    fn records_follow_from_their_numbers_and_differ() {
        assert_eq!(record(1, 5), record(1, 5));
        let different: std::collections::BTreeSet<_> = (0..100).map(|of| record(of, 7)).collect();
        assert!(different.len() > 90, "{}", different.len());
    }
}
