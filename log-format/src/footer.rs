//! Footers of closed segments.
