//! What the tests of the whole system share: a node to start and kill, a directory that is gone afterwards, a bound in time, records that can be
//! checked, a raw connection.
//!
//! The tests around it run real processes on the real machine. Nothing here is of use elsewhere.

// A test's helper fails the test.
#![allow(clippy::unwrap_used)]

mod binaries;
mod bound;
pub mod load;
mod node;
pub mod raw;
mod records;
mod roostctl;
mod scratch;

pub use binaries::{binary, roostctl_path, roostd_path};
pub use bound::Bound;
pub use node::{Node, NodeOptions, read_lines};
pub use raw::{Answer, RawConnection};
pub use records::record;
pub use roostctl::{Finished, Roostctl};
pub use scratch::Scratch;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::hash::BuildHasher as _;
use std::io::Write as _;

/// Says why a test was left out. Where nothing may be left out (`ROOST_TESTS_MUST_RUN=1`, as in CI) the test fails instead.
///
/// # Panics
/// If nothing may be left out.
pub fn skipped(why: &str) {
    assert!(std::env::var_os("ROOST_TESTS_MUST_RUN").is_none_or(|value| value != "1"), "must not be skipped: {why}");
    // Past the test harness, which shows only what failed tests print.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// A seed and its generator: from `ROOST_SEED`, else another one each time. Printed, so that a failure can be run again.
///
/// # Panics
/// If `ROOST_SEED` is no number.
pub fn seeded(test: &str) -> ChaCha8Rng {
    let seed = match std::env::var("ROOST_SEED") {
        Ok(text) => text.parse().expect("ROOST_SEED is a number"),
        // The standard library's seeds for its hash maps are random.
        Err(_) => std::hash::RandomState::new().hash_one(test),
    };
    println!("{test}: to repeat, ROOST_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Whether the long variants of the tests are wanted: `ROOST_LONG=1`.
pub fn is_long() -> bool {
    std::env::var_os("ROOST_LONG").is_some_and(|value| value == "1")
}

/// A directory of this test under `CARGO_TARGET_TMPDIR`.
#[macro_export]
macro_rules! scratch {
    ($name:expr) => {
        $crate::Scratch::new(env!("CARGO_TARGET_TMPDIR"), $name)
    };
}
