//! What clients do that changes nothing: read, describe, list, look up by time.

use log_format::ids::ExtentId;
use log_format::wire::Refusal;
use log_format::wire::reply::ExtentState;
use rand::RngExt;
use storage_node::Gated;

use crate::client::Client;
use crate::reader;

impl Client {
    pub(crate) async fn read(&mut self) {
        let extent = self.some_extent();
        let request = reader::random_request(&self.life, extent, &mut self.rng);
        let wait = if self.rng.random_ratio(1, 10) { self.rng.random_range(1..20) } else { 0 };
        let wait = std::time::Duration::from_millis(wait);
        reader::read(&self.life, &self.shard, &request, wait).await;
    }

    pub(crate) async fn describe(&mut self) {
        let extent = self.some_extent();
        self.life.notice_failure(&self.shard);
        match self.shard.describe(extent) {
            Ok(Gated { value: info, gate }) => {
                let rests_on = {
                    let model = self.life.world.model.borrow();
                    let known = model.newest().extent(extent).unwrap_or_else(|| panic!("{extent} is described but not there"));
                    assert!(info.last_seq.0 <= known.last, "{extent}: committed up to {} of {}", info.last_seq, known.last);
                    let state = if known.sealed { ExtentState::Sealed } else { ExtentState::Open };
                    assert_eq!((info.state, info.group), (state, known.group), "{extent} as described");
                    assert!(
                        info.first_seq.0 <= known.floor + 1,
                        "{extent}: from {}, trimmed up to {}",
                        info.first_seq,
                        known.floor
                    );
                    assert!(info.committed_op.0 < model.newest().next_op(known.group));
                    known.gate
                };
                self.life.answer(&self.shard, gate, rests_on).await;
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::NotFound);
                assert!(self.life.world.model.borrow().newest().extent(extent).is_none(), "{extent} is there and not found");
                self.life.answer_refusal(&self.shard, extent).await;
            }
        }
    }

    pub(crate) async fn list(&mut self) {
        self.life.notice_failure(&self.shard);
        let limit = self.rng.random_range(1..=20);
        let after = ExtentId(u128::from(self.rng.random_range(0..=self.life.world.plan.extents)));
        let Gated { value: (infos, more), gate } = self.shard.list(Some(after), limit);
        let rests_on = {
            let model = self.life.world.model.borrow();
            let mut known = model.newest().extents.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
            let ids: Vec<ExtentId> = known.by_ref().take(limit).map(|(id, _)| *id).collect();
            assert_eq!((infos.iter().map(|info| info.extent).collect(), more), (ids.clone(), known.next().is_some()), "listed");
            ids.iter().map(|id| model.rests_on(*id)).max().unwrap_or_default()
        };
        self.life.answer(&self.shard, gate, rests_on).await;
    }

    pub(crate) async fn seq_at_time(&mut self) {
        let sighting = {
            let sightings = self.life.world.sightings.borrow();
            if sightings.is_empty() {
                return;
            }
            sightings[self.rng.random_range(0..sightings.len())]
        };
        reader::seq_at_time(&self.life, &self.shard, sighting).await;
    }
}
