//! What clients that speak the protocol know: what they sent, what was answered, and so what may and what must be there.
//!
//! Unlike the model of a shard (`crate::model`), the ledger does not see the order in which the engine applies requests, and a request whose
//! connection was lost is in doubt until an audit while nothing is under way. It holds for any order of the requests of different
//! connections; those of one connection are carried out in order.

use std::collections::{BTreeMap, BTreeSet};

use log_format::ids::{ExtentId, GroupId};

use crate::payload::Payload;

/// The number of a request, over all connections.
pub(crate) type RequestNumber = u64;

/// Records for one extent in a request.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) extent: ExtentId,
    pub(crate) expected: Option<u64>,
    pub(crate) payloads: Vec<Payload>,
}

/// What a request asks for. Reads are not kept.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Create {
        extent: ExtentId,
        group: GroupId,
    },
    /// An append, or a commit with its trims.
    Records {
        parts: Vec<Part>,
        trims: Vec<(ExtentId, u64)>,
    },
    Seal {
        extent: ExtentId,
    },
    Delete {
        extent: ExtentId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InDoubt,
    Done,
    /// It was refused, or never whole on the wire.
    Refused,
    /// It was in doubt and an audit did not find it.
    Vanished,
}

#[derive(Debug)]
struct Sent {
    connection: u64,
    asked: Asked,
    fate: Fate,
    /// The answer was that nobody knows.
    told_unknown: bool,
}

/// Where a payload comes from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    request: RequestNumber,
    part: usize,
    index: usize,
    payload: Payload,
}

/// What is known of one extent.
#[derive(Debug, Default)]
pub(crate) struct ExtentFacts {
    pub(crate) group: GroupId,
    /// Some answer showed that it is there.
    pub(crate) created: bool,
    pub(crate) deleted: bool,
    pub(crate) delete_sent: bool,
    pub(crate) seal_sent: bool,
    pub(crate) sealed_at: Option<u64>,
    /// The greatest seq that an answer rested on.
    pub(crate) last: u64,
    /// Trimmed up to here for certain, and up to there perhaps.
    pub(crate) floor: u64,
    pub(crate) floor_sent: u64,
    /// The ids of records that were acked or read.
    known: BTreeMap<u64, u64>,
    known_ids: BTreeSet<u64>,
    sent: BTreeMap<u64, Origin>,
}

/// What became of requests that were in doubt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resolved {
    pub(crate) done: u64,
    pub(crate) not_done: u64,
}

/// An extent as an audit finds it.
pub(crate) struct Found {
    pub(crate) floor: u64,
    pub(crate) last: u64,
    pub(crate) sealed: bool,
    /// From the floor on.
    pub(crate) records: Vec<Vec<u8>>,
}

#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) extents: BTreeMap<ExtentId, ExtentFacts>,
    requests: BTreeMap<RequestNumber, Sent>,
    count: RequestNumber,
}

impl Ledger {
    /// Facts about an extent that some request named.
    pub(crate) fn facts(&mut self, extent: ExtentId) -> &mut ExtentFacts {
        self.extents.entry(extent).or_default()
    }

    /// A request is about to be sent.
    pub(crate) fn send(&mut self, connection: u64, asked: Asked) -> RequestNumber {
        self.count += 1;
        match &asked {
            Asked::Create { extent, group } => self.facts(*extent).group = *group,
            Asked::Records { parts, trims } => {
                for (number, part) in parts.iter().enumerate() {
                    let request = self.count;
                    for (index, &payload) in part.payloads.iter().enumerate() {
                        let origin = Origin { request, part: number, index, payload };
                        self.facts(part.extent).sent.insert(payload.id, origin);
                    }
                }
                for &(extent, to) in trims {
                    let facts = self.facts(extent);
                    facts.floor_sent = facts.floor_sent.max(to);
                }
            }
            Asked::Seal { extent } => self.facts(*extent).seal_sent = true,
            Asked::Delete { extent } => self.facts(*extent).delete_sent = true,
        }
        self.requests.insert(self.count, Sent { connection, asked, fate: Fate::InDoubt, told_unknown: false });
        self.count
    }

    /// A request was never whole on the wire, or was refused: it must never be found done.
    pub(crate) fn not_done(&mut self, request: RequestNumber) {
        let sent = self.requests.get_mut(&request).expect("it was sent");
        assert_eq!(sent.fate, Fate::InDoubt, "a request is answered once: {sent:?}");
        sent.fate = Fate::Refused;
    }

    /// The node does not know what became of a request. It may take later ones of the connection all the same.
    pub(crate) fn unknown(&mut self, request: RequestNumber) {
        self.requests.get_mut(&request).expect("it was sent").told_unknown = true;
    }

    /// A request was answered; `firsts` are the seqs that the records of its parts got, `value` the seq that a seal names.
    pub(crate) fn done(&mut self, request: RequestNumber, firsts: &[(u64, u32)], value: u64) {
        let sent = self.requests.get_mut(&request).expect("it was sent");
        assert_eq!(sent.fate, Fate::InDoubt, "a request is answered once: {sent:?}");
        sent.fate = Fate::Done;
        match sent.asked.clone() {
            Asked::Create { extent, .. } => self.facts(extent).created = true,
            Asked::Records { parts, trims } => {
                assert_eq!(parts.len(), firsts.len(), "an answer for each append");
                for (part, &(first, count)) in parts.iter().zip(firsts) {
                    assert_eq!(count as usize, part.payloads.len(), "all records of an append are acked");
                    assert!(part.expected.is_none_or(|expected| expected == first), "{}: {first} was not expected", part.extent);
                    for (seq, payload) in (first..).zip(&part.payloads) {
                        self.know(part.extent, seq, payload.id);
                    }
                }
                for (extent, to) in trims {
                    let facts = self.facts(extent);
                    facts.floor = facts.floor.max(to);
                }
            }
            Asked::Seal { extent } => self.know_sealed(extent, value),
            Asked::Delete { extent } => self.facts(extent).deleted = true,
        }
    }

    /// An answer rested on the extent being sealed at `last`.
    pub(crate) fn know_sealed(&mut self, extent: ExtentId, last: u64) {
        let facts = self.facts(extent);
        assert!(facts.seal_sent, "{extent} is sealed, which nobody asked for");
        assert!(facts.sealed_at.is_none_or(|known| known == last), "{extent} is sealed at {last}, not at {:?}", facts.sealed_at);
        assert!(facts.last <= last, "{extent} is sealed at {last}, though record {} is there", facts.last);
        (facts.sealed_at, facts.last) = (Some(last), last);
    }

    /// An answer rested on the extent having records up to `last`.
    pub(crate) fn know_last(&mut self, extent: ExtentId, last: u64) {
        let facts = self.facts(extent);
        assert!(
            facts.sealed_at.is_none_or(|sealed| last <= sealed),
            "{extent} has {last} records, sealed at {:?}",
            facts.sealed_at
        );
        facts.last = facts.last.max(last);
    }

    /// An answer rested on all up to `floor` being trimmed.
    pub(crate) fn know_floor(&mut self, extent: ExtentId, floor: u64) {
        let facts = self.facts(extent);
        assert!(floor <= facts.floor_sent, "{extent} is trimmed up to {floor}; {} was asked for", facts.floor_sent);
        facts.floor = facts.floor.max(floor);
    }

    fn know(&mut self, extent: ExtentId, seq: u64, id: u64) {
        self.know_last(extent, seq);
        let facts = self.facts(extent);
        let known = *facts.known.entry(seq).or_insert(id);
        assert_eq!(known, id, "{extent}: record {seq} is another one now");
        facts.known_ids.insert(id);
    }

    /// A record was read: it is one that was sent and not refused, the same as ever, and stays.
    pub(crate) fn saw(&mut self, extent: ExtentId, seq: u64, bytes: &[u8]) {
        let origin = self.origin(extent, seq, bytes);
        let sent = &self.requests[&origin.request];
        assert!(
            matches!(sent.fate, Fate::InDoubt | Fate::Done),
            "{extent}: record {seq} is of a request that was refused or vanished: {:?}",
            sent.asked
        );
        if let Asked::Records { parts, .. } = &sent.asked
            && let Some(expected) = parts[origin.part].expected
        {
            assert_eq!(expected + origin.index as u64, seq, "{extent}: record {seq} is not where it was expected");
        }
        self.know(extent, seq, origin.payload.id);
    }

    fn origin(&mut self, extent: ExtentId, seq: u64, bytes: &[u8]) -> Origin {
        let facts = self.facts(extent);
        let origin = Payload::claimed_by(bytes).and_then(|payload| facts.sent.get(&payload.id)).copied();
        let origin = origin.unwrap_or_else(|| panic!("{extent}: record {seq} was sent by nobody"));
        assert!(bytes == origin.payload.bytes(), "{extent}: record {seq} has other bytes than were sent");
        origin
    }

    /// Nothing is under way: holds all that is known against what is there, and decides what was in doubt.
    pub(crate) fn audit(&mut self, found: &BTreeMap<ExtentId, Found>) -> Resolved {
        let ids: Vec<ExtentId> = self.extents.keys().copied().collect();
        if let Some(stranger) = found.keys().find(|id| !self.extents.contains_key(id)) {
            panic!("{stranger} is there, which nobody created");
        }
        for id in ids {
            match found.get(&id) {
                Some(found) => self.audit_extent(id, found),
                None => {
                    let facts = self.facts(id);
                    assert!(!facts.created || facts.delete_sent, "{id} is gone, which nobody deleted");
                    facts.deleted |= facts.created;
                }
            }
        }
        let resolved = self.resolve(found);
        self.check_order(found);
        resolved
    }

    fn audit_extent(&mut self, id: ExtentId, found: &Found) {
        let facts = self.facts(id);
        assert!(!facts.deleted, "{id} was deleted and is there");
        facts.created = true;
        // A deletion that was in doubt did not come to pass.
        facts.delete_sent = false;
        assert!(found.floor >= facts.floor, "{id} is trimmed up to {}, not {}", found.floor, facts.floor);
        assert!(found.last >= facts.last, "{id} ends at {}, {} was there", found.last, facts.last);
        self.know_floor(id, found.floor);
        if found.sealed {
            self.know_sealed(id, found.last);
        }
        let facts = self.facts(id);
        assert!(found.sealed || facts.sealed_at.is_none(), "{id} was sealed and is not");
        (facts.seal_sent, facts.floor_sent) = (found.sealed, found.floor);
        let mut seen = BTreeSet::new();
        for (seq, bytes) in (found.floor + 1..).zip(&found.records) {
            self.saw(id, seq, bytes);
            let origin = self.origin(id, seq, bytes);
            assert!(seen.insert(origin.payload.id), "{id}: record {seq} is there twice");
            let Asked::Records { parts, .. } = &self.requests[&origin.request].asked else { continue };
            let payloads = &parts[origin.part].payloads;
            // What the request put before and behind it is there too, as far as it is not trimmed.
            if let Some(next) = payloads.get(origin.index + 1) {
                let behind = found.records.get((seq - found.floor) as usize).and_then(|bytes| Payload::claimed_by(bytes));
                assert_eq!(behind.map(|payload| payload.id), Some(next.id), "{id}: behind record {seq} its batch is cut");
            }
            if origin.index > 0 && seq > found.floor + 1 {
                assert!(seen.contains(&payloads[origin.index - 1].id), "{id}: before record {seq} its batch is cut");
            }
        }
    }

    /// Whether a part of a request is there: not known where it may have been trimmed or deleted.
    fn presence(&self, part: &Part, found: &BTreeMap<ExtentId, Found>) -> Option<bool> {
        let facts = &self.extents[&part.extent];
        if part.payloads.iter().any(|payload| facts.known_ids.contains(&payload.id)) {
            return Some(true);
        }
        match found.get(&part.extent) {
            Some(found) if found.floor == 0 => Some(false),
            _ => None,
        }
    }

    /// Decides the requests in doubt, and checks that each is done in all its extents or in none.
    fn resolve(&mut self, found: &BTreeMap<ExtentId, Found>) -> Resolved {
        let mut resolved = Resolved::default();
        let mut fates = Vec::new();
        for (&number, sent) in &self.requests {
            let Asked::Records { parts, .. } = &sent.asked else {
                if sent.fate == Fate::InDoubt {
                    fates.push((number, Fate::Vanished));
                }
                continue;
            };
            let presences: Vec<Option<bool>> = parts.iter().map(|part| self.presence(part, found)).collect();
            let (some, none) = (presences.contains(&Some(true)), presences.contains(&Some(false)));
            assert!(!(some && none), "a request is done in part: {sent:?}, {presences:?}");
            match sent.fate {
                Fate::Done => assert!(!none, "a request that was acked is not there: {sent:?}"),
                Fate::Refused | Fate::Vanished => assert!(!some, "a request that was refused or had vanished is there: {sent:?}"),
                Fate::InDoubt if some => {
                    resolved.done += 1;
                    fates.push((number, Fate::Done));
                }
                Fate::InDoubt => {
                    resolved.not_done += 1;
                    fates.push((number, Fate::Vanished));
                }
            }
        }
        for (number, fate) in fates {
            self.requests.get_mut(&number).expect("it was sent").fate = fate;
        }
        resolved
    }

    /// Unconditional appends of one connection to one extent are there in their order, and none without those before it.
    fn check_order(&self, found: &BTreeMap<ExtentId, Found>) {
        let mut places: BTreeMap<ExtentId, BTreeMap<u64, usize>> = BTreeMap::new();
        for (id, extent) in found.iter().filter(|(_, extent)| extent.floor == 0) {
            let ids = extent.records.iter().filter_map(|bytes| Payload::claimed_by(bytes));
            places.insert(*id, ids.enumerate().map(|(place, payload)| (payload.id, place)).collect());
        }
        let mut last: BTreeMap<(u64, ExtentId), Option<usize>> = BTreeMap::new();
        for sent in self.requests.values() {
            let Asked::Records { parts, trims } = &sent.asked else { continue };
            let [part] = &parts[..] else { continue };
            let Some(places) = places.get(&part.extent) else { continue };
            if part.expected.is_some() || !trims.is_empty() || sent.fate == Fate::Refused || sent.told_unknown {
                continue;
            }
            let place = places.get(&part.payloads[0].id).copied();
            let before = last.insert((sent.connection, part.extent), place);
            if let (Some(before), Some(place)) = (before, place) {
                assert!(before.is_some_and(|before| before < place), "{}: requests out of order, at {sent:?}", part.extent);
            }
        }
    }
}
