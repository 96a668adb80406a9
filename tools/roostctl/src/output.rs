//! Prints results: lines for people, or one JSON object a line.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Bytes collected before a write to stdout.
const BUFFER_BYTES: usize = 64 * 1024;

/// Buffered stdout. What must be seen at once is flushed by the caller.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock()))
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let result = serde_json::to_writer(&mut self.0, value).map_err(io::Error::from);
        result.and_then(|()| self.0.write_all(b"\n")).map_err(|error| Failure::output(&error))
    }

    pub(crate) fn line(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let result = self.0.write_all(bytes.as_ref()).and_then(|()| self.0.write_all(b"\n"));
        result.map_err(|error| Failure::output(&error))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| Failure::output(&error))
    }
}

/// Columns of text, as wide as their widest cell; numbers (all but the first `left` columns) to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], left: usize) -> Vec<String> {
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let width =
        |column: usize| std::iter::once(&header).chain(rows).map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    std::iter::once(&header).chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn tables_align() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "1000000".to_owned()]];
        assert_eq!(table(&["id", "bytes"], &rows, 1), ["id     bytes", "a          1", "bcd  1000000"]);
    }
}
