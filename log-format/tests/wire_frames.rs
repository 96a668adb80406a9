//! Decoders of the wire protocol take any bytes: a value or an error, never a panic; and no damaged header or body passes.
//! `golden/wire/` pins the protocol byte for byte: one frame of each kind and each refusal. A change there is a change of the
//! protocol: it needs a version step and an ADR. `ROOST_REGENERATE_GOLDEN=1` writes the files anew.
#![allow(clippy::unwrap_used)]

mod wire_samples;

use std::path::Path;

use log_format::wire::{BodyError, Direction, FRAME_HEADER_SIZE, FrameError, FrameHeader, Kind, Refusal, Request, encode_frame};
use proptest::prelude::*;
use wire_samples::{Problem, frames, refusals, walk, with_body};

#[test]
fn frames_are_those_of_version_1() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/wire");
    let frames = frames();
    if std::env::var_os("ROOST_REGENERATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&directory).unwrap();
        for (name, frame) in &frames {
            std::fs::write(directory.join(format!("{name}.bin")), frame).unwrap();
        }
    }
    for (name, frame) in &frames {
        let path = directory.join(format!("{name}.bin"));
        let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(&golden, frame, "{name} is not written as in version 1");
        assert!(walk(&golden).is_ok(), "{name} does not read");
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), frames.len(), "a golden frame that no sample makes");
}

#[test]
fn every_sample_reads_back() {
    let frames = frames();
    for kind in 1..=18 {
        assert!(frames.iter().any(|(name, _)| *name == format!("refusal_{kind:02}")), "no sample of refusal {kind}");
    }
    for (name, frame) in &frames {
        assert!(walk(frame).is_ok(), "{name}: {:?}", walk(frame));
    }
}

#[test]
fn every_bit_flip_in_header_or_body_is_seen() {
    for (name, frame) in frames() {
        let header = FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
        for bit in 0..header.payload_offset() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(walk(&damaged).is_err(), "{name}: bit {bit} flipped unseen");
        }
    }
}

#[test]
fn every_truncation_is_seen() {
    for (name, frame) in frames() {
        for length in 0..frame.len() {
            assert!(walk(&frame[..length]).is_err(), "{name}: cut to {length} unseen");
        }
    }
}

/// A peer that lies with a valid checksum: every byte of the body takes several values.
#[test]
fn lying_bodies_never_panic() {
    let mut accepted = 0;
    for (_, frame) in frames() {
        let header = FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
        let body = &frame[FRAME_HEADER_SIZE..header.payload_offset()];
        for at in 0..body.len() {
            for value in [0, 1, 2, 4, 0x7f, 0x80, 0xff, body[at] ^ 1, body[at].wrapping_add(4), body[at].wrapping_sub(4)] {
                let mut lie = body.to_vec();
                lie[at] = value;
                accepted += u32::from(walk(&with_body(&frame, &lie)).is_ok());
            }
        }
        for length in 0..body.len() {
            accepted += u32::from(walk(&with_body(&frame, &body[..length])).is_ok());
        }
    }
    assert!(accepted > 0, "changed numbers in a body are still a body");
}

#[test]
fn header_errors_are_exact() {
    let (_, frame) = frames().into_iter().find(|(name, _)| name == "request_append").unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        walk(&frame).unwrap_err()
    };
    assert_eq!(with(0, b"HTTP"), Problem::Frame(FrameError::Magic { found: u32::from_le_bytes(*b"HTTP") }));
    assert_eq!(with(4, &[2, 0]), Problem::Frame(FrameError::Version { found: 2 }));
    assert_eq!(with(6, &[0]), Problem::Frame(FrameError::Kind { found: 0 }));
    assert_eq!(with(6, &[17]), Problem::Frame(FrameError::Kind { found: 17 }));
    assert_eq!(with(7, &[2]), Problem::Frame(FrameError::Flags { found: 2 }));
    assert_eq!(with(7, &[4]), Problem::Frame(FrameError::Flags { found: 4 }));
    assert_eq!(with(16, &[1, 0, 16, 0]), Problem::Frame(FrameError::BodyTooLong { length: (1 << 20) + 1 }));
    assert_eq!(with(20, &[1, 0, 0, 1]), Problem::Frame(FrameError::PayloadTooLong { length: (16 << 20) + 1, limit: 16 << 20 }));
    assert_eq!(with(24, &[1]), Problem::Frame(FrameError::Reserved));
    assert!(matches!(with(8, &[0]), Problem::Frame(FrameError::Checksum { .. })));
}

/// Many tables that share one place unfold to far more than the body's bytes; the reader gives up in time.
#[test]
fn a_body_that_unfolds_without_end_is_refused() {
    let (_, frame) = frames().into_iter().find(|(name, _)| name == "reply_list").unwrap();
    // A root table whose one field is a vector of offsets to one (empty) table.
    let body = |count: u32| {
        let mut body = Vec::new();
        body.extend_from_slice(&16u32.to_le_bytes()); // root at 16
        body.extend_from_slice(&[6, 0, 8, 0, 4, 0, 0, 0]); // vtable at 4: 6 bytes, table of 8, field 0 at 4
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&12i32.to_le_bytes()); // table at 16: vtable 12 before
        body.extend_from_slice(&4u32.to_le_bytes()); // field at 20: the vector at 24
        body.extend_from_slice(&count.to_le_bytes());
        let end = 28 + count * 4;
        for index in 0..count {
            body.extend_from_slice(&(end + 4 - (28 + index * 4)).to_le_bytes());
        }
        body.extend_from_slice(&[4, 0, 4, 0]); // a vtable without fields
        body.extend_from_slice(&4i32.to_le_bytes());
        with_body(&frame, &body)
    };
    assert_eq!(walk(&body(10)), Err(Problem::Body(BodyError::Missing("the extent's id"))));
    assert_eq!(walk(&body(200_000)), Err(Problem::Body(BodyError::Malformed)));
}

#[test]
fn kinds_that_are_not_served_are_known() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_byte(kind as u8), Some(kind));
    }
    let mut frame = Vec::new();
    encode_frame(Kind::Replicate, Direction::Request, Default::default(), 0, &[], &mut frame);
    let header = FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
    assert!(matches!(Request::decode(&header, &[]), Ok(Request::Unserved(Kind::Replicate))));
}

#[test]
fn refusal_codes_and_names_are_distinct() {
    let mut codes: Vec<_> = refusals().iter().map(Refusal::code).collect();
    codes.dedup();
    assert_eq!(codes, (1..=18).collect::<Vec<_>>());
    let mut names: Vec<_> = refusals().iter().map(Refusal::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 18);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = walk(&bytes);
    }

    #[test]
    fn random_changes_of_bodies_never_panic(
        sample in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let frames = frames();
        let (_, frame) = sample.get(&frames);
        let header = FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
        let mut body = frame[FRAME_HEADER_SIZE..header.payload_offset()].to_vec();
        for (at, value) in &changes {
            let at = at.index(body.len());
            body[at] = *value;
        }
        let _ = walk(&with_body(frame, &body));
    }
}
