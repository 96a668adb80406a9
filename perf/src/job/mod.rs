//! Jobs: what a job file asks for, after inheritance and overrides, checked.
//!
//! A job takes the keys of every `[global]` section above it, then its own; `--set` comes last. The same key twice: the last
//! one counts. Unknown keys, values that make no sense and jobs that could never end are errors that name their place.

mod ini;
mod keys;
mod values;

use crate::failure::Failure;
use ini::{Entry, Place, Section, SyntaxError};
use std::time::Duration;

const GLOBAL: &str = "global";

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Appends records.
    Append,
    /// Fills extents, then reads them in order.
    Read,
}

/// What a job puts its load on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineKind {
    /// A node, over TCP, through the client.
    Node,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) name: String,
    /// The file it stands in.
    pub(crate) file: String,
    pub(crate) engine: EngineKind,
    pub(crate) workload: Workload,
    /// The node, HOST:PORT.
    pub(crate) address: String,
    /// The node's admin endpoint, for what it says about itself.
    pub(crate) admin: Option<String>,
    pub(crate) record_bytes: usize,
    pub(crate) connections: usize,
    /// Records (of a read job: requests) in flight on each connection.
    pub(crate) depth: usize,
    pub(crate) extents: usize,
    pub(crate) threads: usize,
    pub(crate) runtime: Option<Duration>,
    pub(crate) is_time_based: bool,
    pub(crate) ramp: Duration,
    /// Payload bytes in all.
    pub(crate) size: Option<u64>,
    /// Payload bytes that one read request asks for.
    pub(crate) read_bytes: u32,
    /// Payload bytes of one append request, at most; `None`: as the client likes.
    pub(crate) batch_bytes: Option<usize>,
    pub(crate) verify: bool,
    /// Whether the extents are deleted at the end.
    pub(crate) unlink: bool,
    pub(crate) cores: Vec<usize>,
    pub(crate) seed: u64,
    /// Whether it waits for the jobs above it.
    pub(crate) stonewall: bool,
    /// Keys and values as they were given, after inheritance and overrides.
    pub(crate) given: Vec<(String, String)>,
}

impl Job {
    fn named(name: &str, file: &str) -> Self {
        Self {
            name: name.to_owned(),
            file: file.to_owned(),
            engine: EngineKind::Node,
            workload: Workload::Append,
            address: "127.0.0.1:7440".to_owned(),
            admin: None,
            record_bytes: 1024,
            connections: 1,
            depth: 1,
            extents: 0,
            threads: 1,
            runtime: None,
            is_time_based: false,
            ramp: Duration::ZERO,
            size: None,
            read_bytes: 1 << 20,
            batch_bytes: None,
            verify: false,
            unlink: true,
            cores: Vec::new(),
            seed: 1,
            stonewall: false,
            given: Vec::new(),
        }
    }

    /// Records in all, if they are bounded.
    pub(crate) fn records(&self) -> Option<u64> {
        self.size.map(|size| size.div_ceil(self.record_bytes.max(1) as u64))
    }

    /// Checks what no key can check alone, and fills in what depends on other keys.
    fn finish(mut self) -> Result<Self, String> {
        if self.extents == 0 {
            self.extents = self.connections;
        }
        if self.threads > self.connections {
            return Err(format!("threads={} is more than numjobs={}", self.threads, self.connections));
        }
        if self.is_time_based && self.runtime.is_none() {
            return Err("time_based needs a runtime".to_owned());
        }
        match self.workload {
            Workload::Append if self.size.is_none() && self.runtime.is_none() => {
                return Err("it would never end: give it a runtime, a size or both".to_owned());
            }
            Workload::Read if self.size.is_none() => return Err("rw=read needs a size: how much to fill and read".to_owned()),
            Workload::Read if self.record_bytes == 0 => return Err("rw=read needs records of at least one byte".to_owned()),
            Workload::Read if self.extents < self.connections => {
                return Err(format!("extents={} leaves some of the {} readers without one", self.extents, self.connections));
            }
            Workload::Append | Workload::Read => {}
        }
        if self.size.is_some() && self.records() < Some(self.extents as u64) {
            return Err(format!("size is less than one record for each of the {} extents", self.extents));
        }
        Ok(self)
    }
}

/// A `--set section.key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Override {
    section: String,
    entry: Entry,
}

impl Override {
    /// Reads it. A section's name may have dots, a key has none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("it has no `=`: write section.key=value")?;
        let (section, key) = name.rsplit_once('.').ok_or("it names no section: write section.key=value")?;
        let entry = ini::entry(&format!("{key}={value}"), Place::Option(text.to_owned())).map_err(|error| error.why)?;
        Ok(Self { section: section.trim().to_owned(), entry })
    }
}

/// Reads the jobs of one file's text.
pub(crate) fn parse(file: &str, text: &str, overrides: &[Override]) -> Result<Vec<Job>, Failure> {
    let sections = ini::parse(file, text).map_err(|SyntaxError { place, why }| Failure::usage(place.to_string(), why))?;
    let of = |section: &str| -> Vec<Entry> {
        overrides.iter().filter(|set| set.section == section).map(|set| set.entry.clone()).collect()
    };
    let mut inherited: Vec<Entry> = Vec::new();
    let mut jobs = Vec::new();
    for Section { name, place, entries } in sections {
        if name == GLOBAL {
            inherited.extend(entries);
            continue;
        }
        let entries: Vec<Entry> = inherited.iter().cloned().chain(of(GLOBAL)).chain(entries).chain(of(&name)).collect();
        let mut job = Job::named(&name, file);
        for entry in &entries {
            keys::apply(&mut job, entry)?;
        }
        job.given = given(&entries);
        jobs.push(job.finish().map_err(|why| Failure::usage(format!("{place}: job {name:?}"), why))?);
    }
    if jobs.is_empty() {
        return Err(Failure::usage(file, "there is no job in it").hint("a job is a section with a name: `[name]`"));
    }
    Ok(jobs)
}

/// Reads all files; `--set` must fit at least one of them.
pub(crate) fn read(files: &[String], overrides: &[Override]) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| Failure::usage(format!("read {file}"), error))?;
        let mut of_file = parse(file, &text, overrides)?;
        // Files run one after the other.
        of_file[0].stonewall = true;
        jobs.append(&mut of_file);
    }
    for Override { section, entry } in overrides {
        if section != GLOBAL && !jobs.iter().any(|job| job.name == *section) {
            let names: Vec<&str> = jobs.iter().map(|job| &*job.name).collect();
            return Err(Failure::usage(entry.place.to_string(), format!("no job is called {section:?}"))
                .hint(format!("the jobs are {}; `global` sets a key of all of them", names.join(", "))));
        }
    }
    Ok(jobs)
}

/// The last value of each key, in the order in which the keys were first given.
fn given(entries: &[Entry]) -> Vec<(String, String)> {
    let mut given: Vec<(String, String)> = Vec::new();
    for entry in entries {
        match given.iter_mut().find(|(key, _)| *key == entry.key) {
            Some((_, value)) => value.clone_from(&entry.value),
            None => given.push((entry.key.clone(), entry.value.clone())),
        }
    }
    given
}

#[cfg(test)]
mod tests;
