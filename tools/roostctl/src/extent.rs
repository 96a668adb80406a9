//! `roostctl extent …`: makes, shows and ends extents.

use crate::Connect;
use crate::cli::{ExtentCommand, Kind};
use crate::failure::Failure;
use crate::output::{Output, table};
use client::{Epoch, ExtentInfo, ExtentKind, ExtentState, NewExtent};
use serde::Serialize;
use serde_json::json;

#[derive(Serialize)]
struct Info {
    id: String,
    group: String,
    shard: u32,
    kind: &'static str,
    state: &'static str,
    epoch: u64,
    first_seq: u64,
    last_seq: u64,
    records: u64,
    payload_bytes: u64,
}

impl From<&ExtentInfo> for Info {
    fn from(info: &ExtentInfo) -> Self {
        Self {
            id: info.extent.to_string(),
            group: info.group.to_string(),
            shard: info.shard.0,
            kind: match info.kind {
                ExtentKind::Sequence => "sequence",
                ExtentKind::Timer => "timer",
            },
            state: match info.state {
                ExtentState::Open => "open",
                ExtentState::Sealed => "sealed",
            },
            epoch: info.epoch.0,
            first_seq: info.first_seq.0,
            last_seq: info.last_seq.0,
            records: info.records,
            payload_bytes: info.payload_bytes,
        }
    }
}

pub(crate) async fn run(connect: &Connect, command: ExtentCommand) -> Result<(), Failure> {
    let client = connect.client(Connect::options()).await?;
    let mut output = Output::new();
    let mut print = |text: String, value: serde_json::Value| if connect.json { output.json(&value) } else { output.line(text) };
    let epoch = Epoch(0);
    match command {
        ExtentCommand::Create { id, group, kind } => {
            let mut new = id.map_or_else(NewExtent::new, NewExtent::with_id);
            if let Some(group) = group {
                new = new.in_group(group);
            }
            new.kind = match kind {
                Kind::Sequence => ExtentKind::Sequence,
                Kind::Timer => ExtentKind::Timer,
            };
            let created = client.create_extent(new).await;
            let created = created.map_err(|error| Failure::of_client(format!("create extent {}", new.extent), error))?;
            let id = created.extent.to_string();
            print(id.clone(), json!({"id": id, "group": created.group.to_string(), "created": created.created}))?;
        }
        ExtentCommand::List => {
            let extents = client.list().await.map_err(|error| Failure::of_client("list the extents", error))?;
            let infos: Vec<Info> = extents.iter().map(Info::from).collect();
            if connect.json {
                infos.iter().try_for_each(|info| output.json(info))?;
            } else {
                let row = |info: &Info| {
                    let numbers = [u64::from(info.shard), info.first_seq, info.last_seq, info.records, info.payload_bytes];
                    let text = [info.id.clone(), info.kind.to_owned(), info.state.to_owned()];
                    text.into_iter().chain(numbers.map(|number| number.to_string())).collect()
                };
                let rows: Vec<Vec<String>> = infos.iter().map(row).collect();
                let header = ["id", "kind", "state", "shard", "first seq", "last seq", "records", "payload bytes"];
                table(&header, &rows, 3).into_iter().try_for_each(|line| output.line(line))?;
            }
        }
        ExtentCommand::Describe { id } => {
            let info = client.describe(id).await.map_err(|error| Failure::of_client(format!("describe extent {id}"), error))?;
            let info = Info::from(&info);
            if connect.json {
                output.json(&info)?;
            } else {
                let lines = [
                    ("id", info.id),
                    ("group", info.group),
                    ("shard", info.shard.to_string()),
                    ("kind", info.kind.to_owned()),
                    ("state", info.state.to_owned()),
                    ("epoch", info.epoch.to_string()),
                    ("first seq", info.first_seq.to_string()),
                    ("last seq", info.last_seq.to_string()),
                    ("records", info.records.to_string()),
                    ("payload bytes", info.payload_bytes.to_string()),
                ];
                lines.into_iter().try_for_each(|(name, value)| output.line(format!("{name:<14} {value}")))?;
            }
        }
        ExtentCommand::Seal { id } => {
            let sealed = client.seal(id, epoch).await.map_err(|error| Failure::of_client(format!("seal extent {id}"), error))?;
            print(sealed.last_seq.to_string(), json!({"id": id.to_string(), "last_seq": sealed.last_seq.0}))?;
        }
        ExtentCommand::Delete { id } => {
            client.delete(id, epoch).await.map_err(|error| Failure::of_client(format!("delete extent {id}"), error))?;
            print(format!("deleted {id}"), json!({"id": id.to_string(), "deleted": true}))?;
        }
        ExtentCommand::Trim { id, to } => {
            let floor = client.trim(id, to, epoch).await;
            let floor = floor.map_err(|error| Failure::of_client(format!("trim extent {id} to {to}"), error))?;
            let first = floor.next();
            print(first.to_string(), json!({"id": id.to_string(), "first_seq": first.0}))?;
        }
    }
    output.flush()
}
