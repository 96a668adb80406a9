//! The node's manifest.
