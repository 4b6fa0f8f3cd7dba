//! The reading and writing of rows, without a table, for the targets in `fuzz/`.
#![deny(warnings, reason = "compiled by fuzz/ alone, where nobody reads warnings")]

use super::bodies::Bodies;
use super::codec::{self, Row};
use super::{keys, meta_row};
use crate::message::{Epoch, Item, Seq, ThreadId};
use crate::store::{Meta, ParkedInput, StoreError};

/// The position that a row's sort key names.
pub fn seq(row: &Row) -> Option<Seq> {
    keys::seq_of(codec::text(row, keys::SK)?)
}

/// A row as an item.
pub fn item(seq: Seq, row: &Row) -> Item {
    codec::read_item(seq, row, &Bodies::default())
}

/// An item as a row.
pub fn item_row(thread: &ThreadId, epoch: Epoch, item: &Item) -> Row {
    codec::item_row(thread, epoch, item)
}

/// A row as a parked input.
pub fn parked(row: &Row) -> ParkedInput {
    codec::read_parked(row, &Bodies::default())
}

/// A parked input as a row.
pub fn parked_row(thread: &ThreadId, parked: &ParkedInput) -> Row {
    codec::parked_row(thread, parked)
}

/// A row as META.
pub fn meta(row: &Row) -> Result<Meta, StoreError> {
    meta_row::read(row)
}

/// META as a row.
pub fn meta_row(meta: &Meta) -> Row {
    let mut row = keys::meta(&meta.thread).attributes();
    for (name, value) in meta_row::identity(meta).into_iter().chain(meta_row::owned(meta)) {
        row.extend(value.map(|value| (name.to_owned(), value)));
    }
    row
}
