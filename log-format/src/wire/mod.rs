//! Roost's wire protocol, version 1 (docs/protocol.md): frames and their bodies.
