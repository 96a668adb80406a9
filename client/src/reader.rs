//! Reads one extent in order.

use crate::answer::{Answer, Page, Record};
use crate::client::Client;
use crate::connection::{Connection, Pending};
use crate::error::ClientError;
use crate::options::ReaderOptions;
use log_format::ids::{ExtentId, Seq};
use log_format::wire::reply::ExtentState;
use log_format::wire::{Refusal, request};

/// How long the node may hold a request for records to come. Far below any sensible response timeout.
const WAIT_MS: u32 = 10_000;
/// How often in a row a page is asked for again before the error is given to the caller.
const REPEATS_MAX: u32 = 3;

/// Gives the records of an extent in order, each once. While one page is being consumed the next one is under way.
///
/// It ends behind the last record of a sealed extent, and, if it does not follow, at the tail. A lost connection is made again.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    extent: ExtentId,
    options: ReaderOptions,
    next_seq: Seq,
    page: std::vec::IntoIter<Record>,
    ahead: Option<Ahead>,
    is_ended: bool,
}

#[derive(Debug)]
struct Ahead {
    request: request::Read,
    pending: Pending<Answer>,
    connection: Connection,
}

impl Reader {
    pub(crate) fn new(client: Client, extent: ExtentId, from: Seq, options: ReaderOptions) -> Self {
        let next_seq = from.max(Seq(1));
        Self { client, extent, options, next_seq, page: Vec::new().into_iter(), ahead: None, is_ended: false }
    }

    /// The seq of the record that comes next.
    pub fn position(&self) -> Seq {
        self.page.as_slice().first().map_or(self.next_seq, |record| record.seq)
    }

    /// Goes on at another record: behind a trimmed range, for example.
    pub fn seek(&mut self, to: Seq) {
        self.next_seq = to.max(Seq(1));
        self.page = Vec::new().into_iter();
        self.ahead = None;
        self.is_ended = false;
    }

    /// The next record; `None` at the end. May be dropped while it waits: no record is lost.
    ///
    /// # Errors
    /// What the node refuses: [`Refusal::Trimmed`] if the next record is gone, [`Refusal::Corrupt`] if it is damaged, …
    /// The reader stays where it is.
    pub async fn next(&mut self) -> Result<Option<Record>, ClientError> {
        loop {
            if let Some(record) = self.page.next() {
                return Ok(Some(record));
            }
            match self.next_page().await? {
                Some(records) => self.page = records.into_iter(),
                None => return Ok(None),
            }
        }
    }

    /// The next records, at least one, as they came; `None` at the end. May be dropped while it waits: no record is lost.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub async fn next_page(&mut self) -> Result<Option<Vec<Record>>, ClientError> {
        if self.page.len() > 0 {
            return Ok(Some(std::mem::take(&mut self.page).collect()));
        }
        let mut repeats = 0;
        while !self.is_ended {
            let page = match self.fetch().await {
                Ok(page) => page,
                Err(ClientError::Refused(Refusal::Sealed { .. })) => {
                    self.is_ended = true;
                    break;
                }
                Err(error) if repeats < REPEATS_MAX && self.client.may_read_again(self.extent, &error) => {
                    repeats += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            repeats = 0;
            if page.records.is_empty() {
                self.is_ended = page.state == ExtentState::Sealed || !self.options.follow;
                continue;
            }
            self.next_seq = page.next_seq;
            return Ok(Some(page.records));
        }
        // A reader that does not follow may be asked again: there may be more by then.
        self.is_ended &= self.options.follow;
        Ok(None)
    }

    fn request(&self) -> request::Read {
        request::Read {
            extent: self.extent,
            from_seq: self.next_seq,
            max_bytes: self.options.max_bytes,
            max_records: self.options.max_records,
            wait_ms: if self.options.follow { WAIT_MS } else { 0 },
        }
    }

    /// Fetches the page at `next_seq`, and asks for the one behind it.
    async fn fetch(&mut self) -> Result<Page, ClientError> {
        if self.ahead.is_none() {
            let connection = self.client.connection_for(self.extent).await?;
            self.ask(connection, self.request())?;
        }
        let ahead = self.ahead.as_mut().expect("it was just asked for");
        let (request, connection) = (ahead.request, ahead.connection.clone());
        let result = self.client.finish_read(&request, &mut ahead.pending).await;
        self.ahead = None;
        let page = result?;
        if !page.records.is_empty() && (self.options.follow || page.next_seq <= page.committed_seq) {
            // If this fails the next fetch will see to it.
            drop(self.ask(connection, request::Read { from_seq: page.next_seq, ..request }));
        }
        Ok(page)
    }

    fn ask(&mut self, connection: Connection, request: request::Read) -> Result<(), ClientError> {
        let pending = Client::start_read(&connection, &request)?;
        self.ahead = Some(Ahead { request, pending, connection });
        Ok(())
    }
}
