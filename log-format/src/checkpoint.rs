//! Checkpoints of a shard's extent table.
