//! What `flatc --rust` makes of `schema/*.fbs`. Never edited by hand; the README has the command.

mod disk_generated;
mod wire_generated;

pub(crate) use disk_generated::roost::disk;
pub(crate) use wire_generated::roost::wire;
