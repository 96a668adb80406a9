//! Segment headers.
