//! Counts what was reached, so that a run that reaches nothing does not pass for a good one.

use std::collections::BTreeMap;
use std::fmt;

/// What a run must have reached, if it ran at least [`Coverage::ENOUGH_SEEDS`] seeds of all scenarios.
const MUST_BE_REACHED: &[&str] = &[
    "a failed block found after a restart",
    "append acked",
    "append refused",
    "commit acked",
    "commit refused",
    "create acked",
    "create refused",
    "crash after the shard failed",
    "crash at a roll",
    "crash in a recovery",
    "crash just after a recovery",
    "crash in a drain",
    "crash under load",
    "disk full",
    "disk: CrashKeptAll",
    "disk: CrashKeptNone",
    "disk: CrashKeptPrefix",
    "disk: CrashKeptSubset",
    "disk: NameError",
    "disk: NameLost",
    "disk: NoSpace",
    "disk: ReadError",
    "disk: ShortWriteFailed",
    "disk: ShortWriteResumed",
    "disk: SyncError",
    "disk: WriteError",
    "disk: WriteLost",
    "disk: WriteTorn",
    "delete acked",
    "device reads",
    "drained",
    "extent created again",
    "footers written",
    "in doubt: commit survived",
    "in doubt: commit vanished",
    "in doubt: op survived",
    "in doubt: op vanished",
    "outcome unknown",
    "read",
    "read at the tail",
    "read of a sealed end",
    "record of 0 bytes",
    "record of the greatest size",
    "recovery",
    "recovery failed",
    "recovery from several segments",
    "seal acked",
    "segments recycled",
    "seq at time",
    "shard failed",
    "space given back",
    "moved on",
    "trim acked",
    "waited for an append",
    "wire: append acked",
    "wire: audit",
    "wire: commit acked",
    "wire: half a frame sent",
    "wire: in doubt, done",
    "wire: in doubt, not done",
    "wire: read",
    "wire: refused with SeqMismatch",
    "wire: refused with TooLarge",
    "wire: refused with BadChecksum",
    "wire: sealed",
    "wire: stop in a drain",
    "wire: stop under load",
];

/// Counters by name.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    /// From this many seeds on, all that can be reached must have been.
    pub const ENOUGH_SEEDS: u64 = 500;

    pub(crate) fn count(&mut self, what: &str) {
        self.add(what, 1);
    }

    pub(crate) fn add(&mut self, what: &str, count: u64) {
        if let Some(counter) = self.0.get_mut(what) {
            *counter += count;
        } else if count > 0 {
            self.0.insert(what.to_owned(), count);
        }
    }

    /// Adds another run's counters.
    pub fn merge(&mut self, other: &Coverage) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }

    /// What should have been reached in a long run of all scenarios and was not.
    pub fn missing(&self) -> Vec<&'static str> {
        MUST_BE_REACHED.iter().copied().filter(|what| !self.0.contains_key(*what)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(formatter, "  {count:>10}  {what}"))
    }
}
