//! Fixed layouts at fixed offsets.
