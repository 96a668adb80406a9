//! `roostctl read`: prints an extent's records in order.

use crate::Connect;
use crate::cli::Read;
use crate::failure::Failure;
use crate::output::Output;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ClientError, ReaderOptions, Record, Refusal, Seq};
use serde::Serialize;
use std::time::{Duration, UNIX_EPOCH};

#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    appended_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

pub(crate) async fn run(connect: &Connect, arguments: Read) -> Result<(), Failure> {
    let client = connect.client(Connect::options()).await?;
    let mut output = Output::new();
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let what = |seq: Seq| format!("read extent {} at {seq}", arguments.id);
    let max_records = u32::try_from(left.min(100_000)).expect("it is at most 100,000");
    let options = ReaderOptions { follow: arguments.follow, max_records, ..ReaderOptions::default() };
    let mut reader = client.reader(arguments.id, arguments.from.unwrap_or(Seq(1)), options);
    while left > 0 {
        let records = match reader.next_page().await {
            Ok(Some(records)) => records,
            Ok(None) => break,
            Err(ClientError::Refused(Refusal::Trimmed { floor })) if arguments.from.is_none() && floor > reader.position() => {
                reader.seek(floor);
                continue;
            }
            Err(error) => {
                output.flush()?;
                return Err(Failure::of_client(what(reader.position()), error));
            }
        };
        for record in records.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            print(&mut output, record, connect.json)?;
            left -= 1;
        }
        // What was read is shown before more is waited for.
        output.flush()?;
    }
    output.flush()
}

fn print(output: &mut Output, record: &Record, json: bool) -> Result<(), Failure> {
    if !json {
        return output.line(&record.data);
    }
    let text = std::str::from_utf8(&record.data).ok();
    let appended_at = UNIX_EPOCH + Duration::from_nanos(record.append_time.0);
    output.json(&Line {
        seq: record.seq.0,
        appended_at: humantime::format_rfc3339_nanos(appended_at).to_string(),
        data: text,
        data_base64: text.is_none().then(|| STANDARD.encode(&record.data)),
    })
}
