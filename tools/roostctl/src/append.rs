//! `roostctl append`: one record a line, many in flight, each seq printed in order as soon as its record is durable.
//!
//! After the first failure nothing more is sent; what is in flight is waited for, so that exactly what was acked has been
//! printed when it ends.

use crate::Connect;
use crate::cli::Append;
use crate::failure::Failure;
use crate::output::Output;
use client::{AppendFuture, Appended, ClientError, ClientOptions};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;
use tokio::sync::mpsc;

/// Bytes read from the input at a time.
const INPUT_BYTES: usize = 256 * 1024;
/// Such chunks that may wait.
const INPUT_CHUNKS: usize = 4;

pub(crate) async fn run(connect: &Connect, arguments: Append) -> Result<(), Failure> {
    let (input, length) = open(&arguments.file)?;
    let window = arguments.window as usize;
    let client = connect.client(ClientOptions { window_records: window, ..Connect::options() }).await?;
    let what = format!("append to {}", arguments.id);
    let appender = client.appender(arguments.id).await.map_err(|error| Failure::of_client(&what, error))?;
    let (sender, lines) = mpsc::channel(INPUT_CHUNKS);
    // It ends with the input, or when nobody wants lines any more; a read that blocks then is left to the process's end.
    std::thread::spawn(move || split_lines(input, &sender));
    let mut appending = Appending {
        what,
        file: arguments.file.display().to_string(),
        output: Output::new(),
        json: connect.json,
        progress: progress(length),
        flying: VecDeque::with_capacity(window),
        failure: None,
    };
    let result = appending.run(appender, lines, window).await;
    appending.progress.finish_and_clear();
    result
}

type Input = Box<dyn BufRead + Send>;
type Chunk = io::Result<Vec<Vec<u8>>>;

fn open(path: &Path) -> Result<(Input, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(BufReader::with_capacity(INPUT_BYTES, io::stdin())), None));
    }
    let unreadable =
        |error: io::Error| Failure::input(format!("read {}", path.display()), error).hint("name a file that you may read");
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    Ok((Box::new(BufReader::with_capacity(INPUT_BYTES, file)), metadata.is_file().then_some(metadata.len())))
}

/// Sends whole lines as soon as they are there, many at a time where they are.
fn split_lines(mut input: Input, lines: &mpsc::Sender<Chunk>) {
    let mut part = Vec::new();
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return drop(lines.blocking_send(Err(error))),
        };
        if bytes.is_empty() {
            if !part.is_empty() {
                drop(lines.blocking_send(Ok(vec![part])));
            }
            return;
        }
        let length = bytes.len();
        let mut chunk = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(rest) => {
                    part.extend_from_slice(rest);
                    chunk.push(std::mem::take(&mut part));
                }
                None => part.extend_from_slice(piece),
            }
        }
        input.consume(length);
        if !chunk.is_empty() && lines.blocking_send(Ok(chunk)).is_err() {
            return;
        }
    }
}

const BAR: &str = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
const SPINNER: &str = "{spinner} {bytes} {bytes_per_sec}";

fn progress(length: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), BAR),
        None => (ProgressBar::no_length(), SPINNER),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(ProgressStyle::with_template(template).expect("the template is right"));
    bar
}

struct InFlight {
    line: u64,
    length: u64,
    ack: AppendFuture,
}

struct Appending {
    what: String,
    file: String,
    output: Output,
    json: bool,
    progress: ProgressBar,
    flying: VecDeque<InFlight>,
    /// The first line that failed, and why.
    failure: Option<(u64, ClientError)>,
}

impl Appending {
    async fn run(
        &mut self,
        mut appender: client::Appender,
        mut lines: mpsc::Receiver<Chunk>,
        window: usize,
    ) -> Result<(), Failure> {
        let mut ready = Vec::new().into_iter();
        let mut line = 0;
        let mut unreadable = None;
        let mut is_ended = false;
        loop {
            self.settle_ready()?;
            // Checked before each send: a later line must not go out, on a new connection, after one whose fate is unknown.
            while self.failure.is_none() && self.flying.len() < window && !self.has_failed() {
                let Some(record) = ready.next() else { break };
                line += 1;
                self.send(&mut appender, line, record).await;
            }
            let is_done = self.failure.is_some() || is_ended && ready.as_slice().is_empty();
            if is_done && self.flying.is_empty() {
                break;
            }
            let wants_lines = !is_done && !is_ended && ready.as_slice().is_empty() && self.flying.len() < window;
            let first = self.flying.front_mut().map(|first| &mut first.ack);
            tokio::select! {
                biased;
                result = async { first.expect("there is one in flight").await }, if first.is_some() => self.settle(result)?,
                chunk = lines.recv(), if wants_lines => match chunk {
                    Some(Ok(chunk)) => ready = chunk.into_iter(),
                    Some(Err(error)) => (unreadable, is_ended) = (Some(error), true),
                    None => is_ended = true,
                },
            }
        }
        self.flush()?;
        if let Some((line, error)) = self.failure.take() {
            return Err(Failure::of_client(format!("{}: line {line}", self.what), error));
        }
        match unreadable {
            Some(error) => {
                Err(Failure::input(format!("read {} behind line {line}", self.file), error)
                    .hint("what was read so far is appended"))
            }
            None => Ok(()),
        }
    }

    /// The last in flight fails whenever one before it fails by its connection.
    fn has_failed(&self) -> bool {
        self.flying.back().is_some_and(|last| matches!(last.ack.now(), Some(Err(_))))
    }

    async fn send(&mut self, appender: &mut client::Appender, line: u64, record: Vec<u8>) {
        match appender.send(&record).await {
            Ok(ack) => self.flying.push_back(InFlight { line, length: record.len() as u64 + 1, ack }),
            Err(error) => self.fail(line, error),
        }
    }

    fn fail(&mut self, line: u64, error: ClientError) {
        if self.failure.as_ref().is_none_or(|(first, _)| line < *first) {
            self.failure = Some((line, error));
        }
    }

    /// Takes note of all answers that are there, and shows them when no other is: nothing acked waits for anything but the next ack.
    fn settle_ready(&mut self) -> Result<(), Failure> {
        while let Some(result) = self.flying.front().and_then(|first| first.ack.now()) {
            self.settle(result)?;
        }
        self.flush()
    }

    /// Takes note of the answer for the first in flight.
    fn settle(&mut self, result: Result<Appended, ClientError>) -> Result<(), Failure> {
        let Some(first) = self.flying.pop_front() else { return Ok(()) };
        match result {
            Ok(appended) => {
                let (line, seq) = (first.line, appended.seq);
                let printed = if self.json {
                    self.output.line(format!("{{\"line\":{line},\"seq\":{seq}}}"))
                } else {
                    self.output.line(seq.to_string())
                };
                self.progress.inc(first.length);
                printed.map_err(Failure::unfinished)
            }
            Err(error) => {
                self.fail(first.line, error);
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let output = &mut self.output;
        // The bar and the seqs may share a terminal.
        let flushed = if self.progress.is_hidden() { output.flush() } else { self.progress.suspend(|| output.flush()) };
        flushed.map_err(Failure::unfinished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_templates_are_right() {
        for template in [BAR, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn lines_are_split_at_newlines_only_and_across_reads() {
        let text: &[u8] = b"one\n\ntwo\r\nthree \xff\nlast";
        for capacity in 1..text.len() + 1 {
            let (sender, mut lines) = mpsc::channel(100);
            split_lines(Box::new(BufReader::with_capacity(capacity, text)), &sender);
            drop(sender);
            let mut all = Vec::new();
            while let Ok(chunk) = lines.try_recv() {
                all.extend(chunk.unwrap());
            }
            assert_eq!(all, [&b"one"[..], b"", b"two\r", b"three \xff", b"last"], "read by {capacity} bytes");
        }
    }
}
