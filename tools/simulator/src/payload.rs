//! Payloads that follow from a record's id, so that the model holds ids and no bytes.

/// What a record holds: its id decides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) id: u64,
    pub(crate) length: u32,
}

impl Payload {
    /// The bytes: the id, as far as there is room, and what follows from it.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let length = self.length as usize;
        let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
        bytes.extend_from_slice(&self.id.to_le_bytes());
        let mut word = self.id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        while bytes.len() < length {
            bytes.extend_from_slice(&word.to_le_bytes());
            word = (word ^ (word >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9).rotate_left(17);
        }
        bytes.truncate(length);
        bytes
    }

    /// The payload that these bytes seem to be: the caller compares. None if they are too short to say.
    pub(crate) fn claimed_by(bytes: &[u8]) -> Option<Self> {
        let id = u64::from_le_bytes(*bytes.first_chunk()?);
        Some(Self { id, length: bytes.len() as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_different_ids_differ() {
        let bytes = |id, length| Payload { id, length }.bytes();
        assert_eq!(bytes(7, 1000), bytes(7, 1000));
        assert_eq!(bytes(7, 9).len(), 9);
        assert!(bytes(7, 0).is_empty());
        assert_eq!(Payload::claimed_by(&bytes(7, 9)), Some(Payload { id: 7, length: 9 }));
        let firsts: std::collections::BTreeSet<Vec<u8>> = (0..1000).map(|id| bytes(id, 8)).collect();
        assert_eq!(firsts.len(), 1000);
    }
}
