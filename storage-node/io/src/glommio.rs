//! The glommio backend.
