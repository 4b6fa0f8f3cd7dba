//! What the journal takes and gives: its vocabulary, without SQL statements.

use std::collections::HashMap;
use std::fmt;

use rusqlite::Row;

/// The columns of a [`Stored`], in its order.
pub(super) const STORED_COLUMNS: &str = "message_id, group_id, dedup_id, body, attributes, trace_header, sent_ms, receive_count, \
                       first_received_ms, dead_letter_source";

/// A message's number in the journal: unique and rising over all queues and all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Seq(pub(super) i64);

impl Seq {
    /// AWS's form of a sequence number: 20 digits, zero padded, so that text order is number order.
    pub(crate) fn sequence_number(self) -> String {
        format!("{:020}", self.0)
    }

    /// Reads the ticket that [`fmt::Display`] writes.
    pub(crate) fn from_ticket(ticket: &str) -> Option<Self> {
        ticket.parse().ok().map(Self)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A queue and its attributes, named as in `CreateQueue`.
#[derive(Clone, Debug)]
pub(crate) struct QueueSpec {
    pub(crate) name: String,
    pub(crate) attributes: HashMap<String, String>,
}

impl QueueSpec {
    /// A queue to be made.
    pub(crate) fn new(name: &str, attributes: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let attributes = attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { name: name.to_owned(), attributes }
    }
}

/// Where a deduplication id counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DedupScope {
    /// A standard queue: nowhere.
    Nowhere,
    /// In the whole queue.
    Queue,
    /// In the message's group.
    Group,
}

/// A message that passed validation and is about to be accepted.
#[derive(Debug)]
pub(crate) struct NewMessage {
    /// The id the sender will be told, unless the message is a duplicate.
    pub(crate) message_id: String,
    pub(crate) group_id: Option<String>,
    pub(crate) dedup_id: Option<String>,
    pub(crate) body: String,
    /// User attributes as JSON text.
    pub(crate) attributes: String,
    /// The X-Ray header, the only system attribute a sender may set.
    pub(crate) trace_header: Option<String>,
    pub(crate) delay_seconds: u32,
}

/// What became of one message of a send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Acceptance {
    pub(crate) seq: Seq,
    pub(crate) message_id: String,
    /// Whether it is on disk for the first time and is to be queued.
    pub(crate) outcome: Outcome,
}

/// Whether a send added a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is new.
    Queued,
    /// Its deduplication id was seen within the window: the answer names the first one.
    Duplicate,
}

/// A queue's redrive policy, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redrive {
    /// The dead-letter queue's name.
    pub(crate) target: String,
    /// The ARN of the queue the message leaves, told to those who receive it there.
    pub(crate) source_arn: String,
    /// Deliveries before the move.
    pub(crate) max_receive_count: u32,
    /// Whether both queues are FIFO: then the moved message gets its id as deduplication id, as on AWS.
    pub(crate) fifo: bool,
}

/// What a receive made of a ticket.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// Hand it out; the count is already raised.
    Deliver(Box<Stored>),
    /// It had its deliveries and now is `seq` in the dead-letter queue.
    DeadLettered {
        /// Its new ticket.
        seq: Seq,
        /// Its group, unchanged.
        group_id: Option<String>,
    },
    /// It was deleted, or its retention is over.
    Gone,
}

/// A message as it is handed out.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) seq: Seq,
    pub(crate) message_id: String,
    pub(crate) group_id: Option<String>,
    pub(crate) dedup_id: Option<String>,
    pub(crate) body: String,
    pub(crate) attributes: String,
    pub(crate) trace_header: Option<String>,
    pub(crate) sent_ms: i64,
    pub(crate) receive_count: i64,
    pub(crate) first_received_ms: Option<i64>,
    pub(crate) dead_letter_source: Option<String>,
}

impl Stored {
    /// Reads [`STORED_COLUMNS`].
    pub(super) fn from_row(seq: Seq, row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq,
            message_id: row.get(0)?,
            group_id: row.get(1)?,
            dedup_id: row.get(2)?,
            body: row.get(3)?,
            attributes: row.get(4)?,
            trace_header: row.get(5)?,
            sent_ms: row.get(6)?,
            receive_count: row.get(7)?,
            first_received_ms: row.get(8)?,
            dead_letter_source: row.get(9)?,
        })
    }
}

/// A message to be queued again at start.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) seq: Seq,
    pub(crate) queue: String,
    pub(crate) group_id: Option<String>,
    pub(crate) due_ms: i64,
}
