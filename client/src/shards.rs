//! The connections of a client, one a shard, and which shard owns which extent.
//!
//! A connection is made when it is first needed, and again when it was lost. An extent whose group is its own is on the shard that its
//! id names; another one is looked for on all shards, once.

use crate::answer::Answer;
use crate::connection::{Connection, NodeInfo, answer};
use crate::error::ClientError;
use crate::options::ClientOptions;
use log_format::ids::{ExtentId, GroupId, ShardIndex, shard_of};
use log_format::wire::{Refusal, request};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Extents whose shard is remembered; past this the memory starts anew.
const ROUTES_MAX: usize = 1_000_000;
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a request that may be repeated is repeated when its connection is lost.
const REPEATS_MAX: u32 = 3;

#[derive(Debug)]
pub(crate) struct Shards {
    address: Arc<str>,
    options: ClientOptions,
    first: NodeInfo,
    slots: Vec<Slot>,
    routes: Mutex<HashMap<ExtentId, ShardIndex>>,
}

#[derive(Debug, Default)]
struct Slot {
    current: Mutex<Option<Connection>>,
    /// Held by the one who connects.
    connecting: tokio::sync::Mutex<()>,
}

impl Slot {
    fn current(&self) -> Option<Connection> {
        let current = self.current.lock().expect("nothing panics under this lock").clone();
        current.filter(|connection| !connection.is_lost())
    }

    fn set(&self, connection: Connection) {
        *self.current.lock().expect("nothing panics under this lock") = Some(connection);
    }
}

impl Shards {
    pub(crate) async fn connect(address: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let address: Arc<str> = address.into();
        let connection = Connection::open(&address, None, &options).await?;
        let first = connection.node().clone();
        let slots: Vec<Slot> = (0..first.shard_count).map(|_| Slot::default()).collect();
        slots[first.shard.0 as usize].set(connection);
        Ok(Self { address, options, first, slots, routes: Mutex::new(HashMap::new()) })
    }

    pub(crate) fn node(&self) -> &NodeInfo {
        &self.first
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = ShardIndex> + use<> {
        (0..self.first.shard_count).map(ShardIndex)
    }

    pub(crate) fn of_group(&self, group: GroupId) -> ShardIndex {
        shard_of(group, self.first.shard_count)
    }

    fn slot(&self, shard: ShardIndex) -> Result<&Slot, ClientError> {
        let slot = self.slots.get(shard.0 as usize);
        slot.ok_or_else(|| ClientError::protocol(&self.address, format!("there is no shard {shard}")))
    }

    /// A connection to the shard: the present one, or a new one.
    ///
    /// # Errors
    /// None could be made within `reconnect_for`, or the node is not what it was.
    pub(crate) async fn connection(&self, shard: ShardIndex) -> Result<Connection, ClientError> {
        let slot = self.slot(shard)?;
        if let Some(connection) = slot.current() {
            return Ok(connection);
        }
        let _connecting = slot.connecting.lock().await;
        if let Some(connection) = slot.current() {
            return Ok(connection);
        }
        let deadline = Instant::now() + self.options.reconnect_for;
        let mut pause = PAUSE_FIRST;
        loop {
            let error = match Connection::open(&self.address, Some(shard), &self.options).await {
                Ok(connection) => {
                    if connection.node().shard_count != self.first.shard_count {
                        return Err(ClientError::protocol(&self.address, "the node's shard count has changed: connect anew"));
                    }
                    slot.set(connection.clone());
                    return Ok(connection);
                }
                Err(error) => error,
            };
            let is_passing = matches!(
                error,
                ClientError::Connect { .. } | ClientError::Refused(Refusal::ShuttingDown | Refusal::Overloaded { .. })
            );
            // A jitter of up to a half, so that many clients of a restarted node do not come all at once.
            let jitter = RandomState::new().hash_one(shard) % (pause.as_millis() as u64 / 2 + 1);
            let wait = pause + Duration::from_millis(jitter);
            if !is_passing || Instant::now() + wait >= deadline {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends a request that may be repeated, until its connection holds.
    pub(crate) async fn ask<B: log_format::wire::Body>(&self, shard: ShardIndex, body: &B) -> Result<Answer, ClientError> {
        let mut repeats = 0;
        loop {
            let result = match self.connection(shard).await?.request(body, None) {
                Ok(pending) => answer(pending).await,
                Err(error) => Err(error),
            };
            match result {
                Err(ClientError::Disconnected { .. }) if repeats < REPEATS_MAX => repeats += 1,
                result => return result,
            }
        }
    }

    pub(crate) fn remember(&self, extent: ExtentId, shard: ShardIndex) {
        let mut routes = self.routes.lock().expect("nothing panics under this lock");
        if routes.len() >= ROUTES_MAX {
            routes.clear();
        }
        routes.insert(extent, shard);
    }

    /// Whether it was remembered.
    pub(crate) fn forget(&self, extent: ExtentId) -> bool {
        self.routes.lock().expect("nothing panics under this lock").remove(&extent).is_some()
    }

    /// The shard that owns the extent.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] if none does, or a shard that can't be asked.
    pub(crate) async fn of_extent(&self, extent: ExtentId) -> Result<ShardIndex, ClientError> {
        if self.first.shard_count == 1 {
            return Ok(ShardIndex(0));
        }
        let known = self.routes.lock().expect("nothing panics under this lock").get(&extent).copied();
        if let Some(shard) = known {
            return Ok(shard);
        }
        let likely = self.of_group(GroupId::from(extent));
        for shard in std::iter::once(likely).chain(self.all().filter(|shard| *shard != likely)) {
            let owner = match self.ask(shard, &request::Describe { extent }).await {
                Ok(_) => shard,
                Err(ClientError::Refused(Refusal::WrongShard { shard })) => shard,
                Err(ClientError::Refused(Refusal::NotFound)) => continue,
                Err(error) => return Err(error),
            };
            self.remember(extent, owner);
            return Ok(owner);
        }
        Err(Refusal::NotFound.into())
    }

    pub(crate) fn broken(&self, why: String) -> ClientError {
        ClientError::protocol(&self.address, why)
    }

    pub(crate) fn unexpected(&self, answer: &Answer) -> ClientError {
        self.broken(format!("an answer that was not asked for: {answer:?}"))
    }
}
