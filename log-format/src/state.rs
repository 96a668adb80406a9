//! State records.
