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

    pub(crate) fn id(&mut self) -> Option<[u8; 16]> {
        self.array()
    }
}
