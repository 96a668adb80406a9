//! Integers at fixed places of byte slices, and a cursor over bytes that may end too early.
//!
//! The `get_*` and `put_*` functions panic when the place is outside the slice: they are for layouts whose length has been
//! checked. [`Cursor`] never panics: it gives `None` when the bytes end.

use crate::PAGE_SIZE;

macro_rules! fixed {
    ($get:ident, $put:ident, $inner:ty) => {
        pub(crate) fn $get(bytes: &[u8], at: usize) -> $inner {
            let mut raw = [0; size_of::<$inner>()];
            raw.copy_from_slice(&bytes[at..at + size_of::<$inner>()]);
            <$inner>::from_le_bytes(raw)
        }

        pub(crate) fn $put(bytes: &mut [u8], at: usize, value: $inner) {
            bytes[at..at + size_of::<$inner>()].copy_from_slice(&value.to_le_bytes());
        }
    };
}

fixed!(get_u16, put_u16, u16);
fixed!(get_u32, put_u32, u32);
fixed!(get_u64, put_u64, u64);

/// The 16 bytes of an id at `at`.
pub(crate) fn get_id(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut raw = [0; 16];
    raw.copy_from_slice(&bytes[at..at + 16]);
    raw
}

/// Puts the 16 bytes of an id at `at`.
pub(crate) fn put_id(bytes: &mut [u8], at: usize, id: [u8; 16]) {
    bytes[at..at + 16].copy_from_slice(&id);
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Whether `length` is a whole number of pages.
pub(crate) const fn is_page_multiple(length: u64) -> bool {
    length.is_multiple_of(PAGE_SIZE as u64)
}

/// Maps small differences in both directions to small numbers.
pub(crate) const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// The most bytes of a varint of so many bits.
pub(crate) const fn varint_size_max(bits: u32) -> usize {
    bits.div_ceil(7) as usize
}

/// Puts an unsigned LEB128 varint behind what is in `out`.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads values off the front of a slice.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 varint. `None`, too, if it is longer than it needs to be or does not fit 64 bits.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if (shift > 0 && byte == 0) || bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn id(&mut self) -> Option<[u8; 16]> {
        self.array()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn varints_and_zigzags_come_back(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut out = vec![0xaa];
            put_varint(&mut out, value);
            prop_assert!(out.len() - 1 <= varint_size_max(64 - value.leading_zeros()).max(1));
            let mut cursor = Cursor::new(&out[1..]);
            prop_assert_eq!(cursor.varint(), Some(value));
            prop_assert!(cursor.is_empty());
            prop_assert_eq!(zigzag(unzigzag(value)), value);
            prop_assert_eq!(unzigzag(zigzag(value as i64)), value as i64);
        }
    }

    #[test]
    fn a_varint_has_one_form_only() {
        let decode = |bytes: &[u8]| Cursor::new(bytes).varint();
        assert_eq!(decode(&[0]), Some(0));
        assert_eq!(decode(&[0x80, 0x01]), Some(128));
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), Some(u64::MAX));
        for bad in [&[][..], &[0x80], &[0x80, 0x00], &[0xff, 0x80, 0x00]] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), None, "65 bits");
        assert_eq!(decode(&[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01]), None, "11 bytes");
    }
}
