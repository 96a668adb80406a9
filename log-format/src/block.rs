//! Blocks: the unit of group commit.
