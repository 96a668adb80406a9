//! The storage engine of a Roost node.

pub mod status;
