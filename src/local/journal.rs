//! The journal: every message the embedded queue has accepted, on disk until somebody deletes it.
//!
//! `rustack-sqs` keeps messages in memory, numbers them from 1 in every process and accepts at most 256 KiB. So it is
//! given *tickets* only (a message's sequence number as its body), and everything a message is lives here: id,
//! sequence number, receive count, due time, body, attributes, and the deduplication window. A restart queues the
//! tickets of all rows again, in order.
//!
//! It is a SQLite file of its own beside the DynamoDB file rather than a table inside it: a message may be 1 MiB where
//! an item ends at 400 KB, a batch must be one transaction whatever its size, and a queue's `fsync` then never holds
//! the table's lock. It is the same engine, in WAL mode.
//!
//! An accepted message is on the disk itself (`fsync`) before its sender is answered. Receives, moves and deletes are
//! with the operating system: they survive the end of the process, and what a power cut takes of them is a repeated
//! delivery.
//!
//! What holds across a restart, `kill -9` included: messages with their ids, numbers, counts and due times; a move to
//! a dead-letter queue (one transaction); the five-minute deduplication window; queues made through the API. What does
//! not: visibility (an in-flight message is visible at once), receipt handles, tags.
//!
//! Everything here blocks; `sqs` calls it off the async workers. Bodies are never logged.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

mod rows;
#[cfg(test)]
mod tests;

use rows::STORED_COLUMNS;
pub(crate) use rows::{
    Acceptance, DedupScope, Delivery, NewMessage, Outcome, QueueSpec, Redrive, Seq, Stored, Waiting,
};

/// How long a deduplication id is remembered: AWS's five minutes, not configurable there either.
pub(crate) const DEDUP_WINDOW_MS: i64 = 5 * 60 * 1000;
/// The layout below. A file with a higher number was written by a newer dormouse and is refused.
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS queues (
  name       TEXT PRIMARY KEY,
  attributes TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- AUTOINCREMENT: a number is never used twice, even after its row is gone and the process is new.
CREATE TABLE IF NOT EXISTS messages (
  seq                INTEGER PRIMARY KEY AUTOINCREMENT,
  queue              TEXT NOT NULL,
  message_id         TEXT NOT NULL,
  group_id           TEXT,
  dedup_id           TEXT,
  body               TEXT NOT NULL,
  attributes         TEXT NOT NULL,
  trace_header       TEXT,
  sent_ms            INTEGER NOT NULL,
  due_ms             INTEGER NOT NULL,
  receive_count      INTEGER NOT NULL DEFAULT 0,
  first_received_ms  INTEGER,
  dead_letter_source TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS messages_by_queue ON messages (queue, sent_ms);
CREATE TABLE IF NOT EXISTS dedup (
  queue      TEXT NOT NULL,
  scope      TEXT NOT NULL,
  dedup_id   TEXT NOT NULL,
  seq        INTEGER NOT NULL,
  message_id TEXT NOT NULL,
  expires_ms INTEGER NOT NULL,
  PRIMARY KEY (queue, scope, dedup_id)
) STRICT, WITHOUT ROWID;
";

/// What can go wrong with the journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    /// SQLite refused: disk full, no permission, a damaged file.
    #[error(
        "the queue journal cannot be read or written ({0}); check free space and permissions of its directory"
    )]
    Sqlite(#[from] rusqlite::Error),
    /// The file has a layout this build does not know.
    #[error(
        "the queue journal has layout {found}, this build knows {SCHEMA_VERSION}; start the newer dormouse again, or \
         another directory"
    )]
    Newer {
        /// The layout number in the file.
        found: i64,
    },
}

/// The journal. One connection behind a lock: SQLite has one writer at a time anyway.
#[derive(Debug)]
pub(crate) struct Journal {
    connection: Mutex<Connection>,
}

impl Journal {
    /// Opens or creates the journal; without a path it is in memory and ends with the process.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, JournalError> {
        let connection = match path {
            Some(path) => Connection::open(path)?,
            None => Connection::open_in_memory()?,
        };
        // The answer is a row ("wal", or "memory" in memory), which `execute_batch` steps over.
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")?;
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if found > SCHEMA_VERSION {
            return Err(JournalError::Newer { found });
        }
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        Ok(Self { connection: Mutex::new(connection) })
    }

    /// A panic elsewhere cannot leave half a change behind: an open transaction rolls back when it is dropped.
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a send, all its messages in one transaction, and tells for each whether it is new.
    pub(crate) fn accept(
        &self,
        queue: &str,
        scope: DedupScope,
        messages: &[NewMessage],
        now_ms: i64,
    ) -> Result<Vec<Acceptance>, JournalError> {
        let mut connection = self.lock();
        // The commit writes through to the disk, and with it whatever earlier commits left to the system.
        connection.pragma_update(None, "synchronous", "FULL")?;
        let accepted = accept_all(&mut connection, queue, scope, messages, now_ms);
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        accepted
    }

    /// Raises the receive count of every ticket, or moves it to the dead-letter queue, in one transaction.
    pub(crate) fn receive(
        &self,
        queue: &str,
        tickets: &[Seq],
        redrive: Option<&Redrive>,
        now_ms: i64,
    ) -> Result<Vec<Delivery>, JournalError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let mut deliveries = Vec::with_capacity(tickets.len());
        for &seq in tickets {
            deliveries.push(receive_one(&transaction, queue, seq, redrive, now_ms)?);
        }
        transaction.commit()?;
        Ok(deliveries)
    }

    /// Whether the message is still there.
    pub(crate) fn holds(&self, queue: &str, seq: Seq) -> Result<bool, JournalError> {
        let found = self
            .lock()
            .query_row("SELECT 1 FROM messages WHERE seq = ?1 AND queue = ?2", params![seq.0, queue], |_| {
                Ok(())
            })
            .optional()?;
        Ok(found.is_some())
    }

    /// Deletes messages, in one transaction. Deleting what is gone is fine.
    pub(crate) fn delete(&self, queue: &str, seqs: &[Seq]) -> Result<(), JournalError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        for seq in seqs {
            transaction
                .execute("DELETE FROM messages WHERE seq = ?1 AND queue = ?2", params![seq.0, queue])?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Deletes all messages of a queue. Its deduplication window stays, as on AWS.
    pub(crate) fn purge(&self, queue: &str) -> Result<(), JournalError> {
        self.lock().execute("DELETE FROM messages WHERE queue = ?1", [queue])?;
        Ok(())
    }

    /// All messages, in the order in which they were accepted.
    pub(crate) fn waiting(&self) -> Result<Vec<Waiting>, JournalError> {
        let connection = self.lock();
        let mut statement =
            connection.prepare("SELECT seq, queue, group_id, due_ms FROM messages ORDER BY seq")?;
        let rows = statement.query_map([], |row| {
            Ok(Waiting {
                seq: Seq(row.get(0)?),
                queue: row.get(1)?,
                group_id: row.get(2)?,
                due_ms: row.get(3)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Forgets deduplication ids whose window is over, and messages of `queue` sent before `sent_before_ms`, if given.
    /// Tells how many messages there were.
    pub(crate) fn sweep(
        &self,
        queue: &str,
        sent_before_ms: Option<i64>,
        now_ms: i64,
    ) -> Result<usize, JournalError> {
        let connection = self.lock();
        connection
            .execute("DELETE FROM dedup WHERE queue = ?1 AND expires_ms <= ?2", params![queue, now_ms])?;
        Ok(connection.execute(
            "DELETE FROM messages WHERE queue = ?1 AND sent_ms < ?2",
            params![queue, sent_before_ms],
        )?)
    }

    /// The queues made through the API.
    pub(crate) fn queues(&self) -> Result<Vec<QueueSpec>, JournalError> {
        let connection = self.lock();
        let mut statement = connection.prepare("SELECT name, attributes FROM queues ORDER BY name")?;
        let rows = statement.query_map([], |row| {
            let attributes: String = row.get(1)?;
            // A queue whose attributes do not parse comes back with the defaults rather than not at all: its messages
            // matter more than its settings.
            Ok(QueueSpec {
                name: row.get(0)?,
                attributes: serde_json::from_str(&attributes).unwrap_or_default(),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Remembers a queue, or its new attributes.
    pub(crate) fn save_queue(&self, queue: &QueueSpec) -> Result<(), JournalError> {
        let attributes = serde_json::to_string(&queue.attributes).expect("bug: a map of strings is JSON");
        self.lock().execute(
            "INSERT INTO queues (name, attributes) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET attributes = excluded.attributes",
            [&queue.name, &attributes],
        )?;
        Ok(())
    }

    /// Forgets a queue and everything in it.
    pub(crate) fn forget_queue(&self, name: &str) -> Result<(), JournalError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        for table in ["messages WHERE queue", "dedup WHERE queue", "queues WHERE name"] {
            transaction.execute(&format!("DELETE FROM {table} = ?1"), [name])?;
        }
        transaction.commit()?;
        Ok(())
    }
}

fn accept_all(
    connection: &mut Connection,
    queue: &str,
    scope: DedupScope,
    messages: &[NewMessage],
    now_ms: i64,
) -> Result<Vec<Acceptance>, JournalError> {
    let transaction = connection.transaction()?;
    let mut accepted = Vec::with_capacity(messages.len());
    for message in messages {
        accepted.push(accept_one(&transaction, queue, scope, message, now_ms)?);
    }
    transaction.commit()?;
    Ok(accepted)
}

fn accept_one(
    transaction: &Transaction<'_>,
    queue: &str,
    scope: DedupScope,
    message: &NewMessage,
    now_ms: i64,
) -> Result<Acceptance, JournalError> {
    let scope = match scope {
        DedupScope::Nowhere => None,
        DedupScope::Queue => Some(""),
        DedupScope::Group => Some(message.group_id.as_deref().unwrap_or_default()),
    };
    let dedup = scope.zip(message.dedup_id.as_deref());
    if let Some((scope, dedup_id)) = dedup {
        let first = transaction
            .query_row(
                "SELECT seq, message_id FROM dedup
                 WHERE queue = ?1 AND scope = ?2 AND dedup_id = ?3 AND expires_ms > ?4",
                params![queue, scope, dedup_id, now_ms],
                |row| Ok((Seq(row.get(0)?), row.get::<_, String>(1)?)),
            )
            .optional()?;
        if let Some((seq, message_id)) = first {
            return Ok(Acceptance { seq, message_id, outcome: Outcome::Duplicate });
        }
    }
    transaction.execute(
        "INSERT INTO messages (queue, message_id, group_id, dedup_id, body, attributes, trace_header, sent_ms, due_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            queue,
            message.message_id,
            message.group_id,
            message.dedup_id,
            message.body,
            message.attributes,
            message.trace_header,
            now_ms,
            now_ms + i64::from(message.delay_seconds) * 1000,
        ],
    )?;
    let seq = Seq(transaction.last_insert_rowid());
    if let Some((scope, dedup_id)) = dedup {
        transaction.execute(
            "INSERT OR REPLACE INTO dedup (queue, scope, dedup_id, seq, message_id, expires_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![queue, scope, dedup_id, seq.0, message.message_id, now_ms + DEDUP_WINDOW_MS],
        )?;
    }
    Ok(Acceptance { seq, message_id: message.message_id.clone(), outcome: Outcome::Queued })
}

fn receive_one(
    transaction: &Transaction<'_>,
    queue: &str,
    seq: Seq,
    redrive: Option<&Redrive>,
    now_ms: i64,
) -> Result<Delivery, JournalError> {
    if let Some(redrive) = redrive {
        let moved = transaction.execute(
            "INSERT INTO messages (queue, message_id, group_id, dedup_id, body, attributes, trace_header, sent_ms,
                                   due_ms, dead_letter_source)
             SELECT ?1, message_id, group_id, CASE WHEN ?2 THEN message_id ELSE dedup_id END, body, attributes,
                    trace_header, CASE WHEN ?2 THEN ?3 ELSE sent_ms END, ?3, ?4
             FROM messages WHERE seq = ?5 AND queue = ?6 AND receive_count >= ?7",
            params![
                redrive.target,
                redrive.fifo,
                now_ms,
                redrive.source_arn,
                seq.0,
                queue,
                redrive.max_receive_count
            ],
        )?;
        if moved > 0 {
            let new = Seq(transaction.last_insert_rowid());
            let group_id = transaction.query_row(
                "DELETE FROM messages WHERE seq = ?1 RETURNING group_id",
                [seq.0],
                |row| row.get(0),
            )?;
            return Ok(Delivery::DeadLettered { seq: new, group_id });
        }
    }
    let stored = transaction
        .query_row(
            &format!(
                "UPDATE messages SET receive_count = receive_count + 1,
                                     first_received_ms = COALESCE(first_received_ms, ?3)
                 WHERE seq = ?1 AND queue = ?2 RETURNING {STORED_COLUMNS}"
            ),
            params![seq.0, queue, now_ms],
            |row| Stored::from_row(seq, row),
        )
        .optional()?;
    Ok(stored.map_or(Delivery::Gone, |stored| Delivery::Deliver(Box::new(stored))))
}
