//! What each key means.

use super::ini::Entry;
use super::{EngineKind, Job, Workload, values};
use crate::failure::Failure;

type Apply = fn(&mut Job, &str) -> Result<(), String>;

const CONNECTIONS_MAX: u64 = 10_000;
const DEPTH_MAX: u64 = 1_000_000;
const EXTENTS_MAX: u64 = 1_000_000;
const RECORD_BYTES_MAX: u64 = 16 << 20;
const READ_BYTES_MAX: u64 = 64 << 20;
const BATCH_BYTES_MAX: u64 = 16 << 20;

/// (key, what it does). Those of fio's keys that mean the same have fio's names.
const KEYS: &[(&str, Apply)] = &[
    ("ioengine", |job, text| {
        job.engine = match text {
            "node" => EngineKind::Node,
            _ => return Err(format!("there is no engine {text:?}; this version has: node")),
        };
        Ok(())
    }),
    ("rw", |job, text| {
        job.workload = match text {
            "append" => Workload::Append,
            "read" => Workload::Read,
            _ => return Err(format!("there is no workload {text:?}; engine node has: append, read")),
        };
        Ok(())
    }),
    ("bs", |job, text| set(&mut job.record_bytes, at_most(values::size(text)?, RECORD_BYTES_MAX)? as usize)),
    ("numjobs", |job, text| set(&mut job.connections, values::count(text, 1, CONNECTIONS_MAX)? as usize)),
    ("iodepth", |job, text| set(&mut job.depth, values::count(text, 1, DEPTH_MAX)? as usize)),
    ("runtime", |job, text| match values::duration(text)? {
        std::time::Duration::ZERO => Err("a run of no time measures nothing".to_owned()),
        runtime => set(&mut job.runtime, Some(runtime)),
    }),
    ("time_based", |job, text| set(&mut job.is_time_based, values::switch(text)?)),
    ("ramp_time", |job, text| set(&mut job.ramp, values::duration(text)?)),
    ("size", |job, text| match values::size(text)? {
        0 => Err("a size of 0 measures nothing".to_owned()),
        size => set(&mut job.size, Some(size)),
    }),
    ("verify", |job, text| set(&mut job.verify, values::switch(text)?)),
    ("unlink", |job, text| set(&mut job.unlink, values::switch(text)?)),
    ("cpus_allowed", |job, text| set(&mut job.cores, values::cores(text)?)),
    ("randseed", |job, text| set(&mut job.seed, values::count(text, 0, u64::MAX)?)),
    ("stonewall", |job, text| set(&mut job.stonewall, values::switch(text)?)),
    ("address", |job, text| set(&mut job.address, address(text)?)),
    ("admin", |job, text| set(&mut job.admin, Some(address(text)?))),
    ("extents", |job, text| set(&mut job.extents, values::count(text, 1, EXTENTS_MAX)? as usize)),
    ("threads", |job, text| set(&mut job.threads, values::count(text, 1, 1024)? as usize)),
    ("read_bytes", |job, text| match at_most(values::size(text)?, READ_BYTES_MAX)? {
        0 => Err("a read of no bytes gets nowhere".to_owned()),
        bytes => set(&mut job.read_bytes, bytes as u32),
    }),
    ("batch_bytes", |job, text| set(&mut job.batch_bytes, Some(at_most(values::size(text)?, BATCH_BYTES_MAX)? as usize))),
];

/// Takes one entry into the job.
pub(super) fn apply(job: &mut Job, entry: &Entry) -> Result<(), Failure> {
    let Some((_, apply)) = KEYS.iter().find(|(key, _)| *key == entry.key) else {
        let names: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
        return Err(Failure::usage(entry.place.to_string(), format!("unknown key {:?}", entry.key))
            .hint(format!("the keys are {}", names.join(", "))));
    };
    apply(job, &entry.value).map_err(|why| Failure::usage(format!("{}: {}", entry.place, entry.key), why))
}

fn set<T>(place: &mut T, value: T) -> Result<(), String> {
    *place = value;
    Ok(())
}

fn at_most(bytes: u64, most: u64) -> Result<u64, String> {
    if bytes > most { Err(format!("{bytes} bytes are over the limit of {most}")) } else { Ok(bytes) }
}

fn address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no HOST:PORT")),
    }
}
