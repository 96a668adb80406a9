//! Replication as state machines: pure, no I/O, no clock.
//!
//! The unit is the group: one primary, one epoch, one order of ops. This crate decides which ops a group may take and
//! which of them are committed; the storage node carries out what it decides.

mod group;

pub use group::{Group, GroupError, Replica};
