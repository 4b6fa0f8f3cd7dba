//! An SQS FIFO queue: groups, visibility, receive counts, redelivery in order, a dead-letter list.

use std::collections::BTreeMap;

use aws_lambda_events::event::sqs::SqsMessage;
use dormouse::message::{DedupId, ThreadId};

use crate::rng::Rng;

/// Seconds in which a second send under one dedup id has no effect.
const DEDUP_WINDOW_S: u64 = 300;

#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    pub group: ThreadId,
    pub dedup: DedupId,
    pub body: String,
    pub receives: u32,
    sequence: u64,
    died: bool,
    in_flight: Option<InFlight>,
}

#[derive(Clone, Debug)]
struct InFlight {
    handle: String,
    until: u64,
}

/// A message in a worker's hands.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub id: String,
    pub handle: String,
    pub group: ThreadId,
    pub dedup: DedupId,
    pub receives: u32,
}

#[derive(Default)]
pub struct Queue {
    messages: Vec<Message>,
    sent: u64,
    handles: u64,
    window: BTreeMap<(ThreadId, DedupId), u64>,
}

/// Which queue a worker works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Input,
    Dead,
}

/// Whether the queue's own deduplication applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Kept,
    /// As if the window had passed.
    Passed,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Queues a message and returns its id; none if the window swallows it.
    pub fn send(
        &mut self,
        now: u64,
        group: &ThreadId,
        dedup: &DedupId,
        body: String,
        window: Window,
    ) -> Option<String> {
        let key = (group.clone(), dedup.clone());
        let recent = self.window.get(&key).is_some_and(|sent| now < sent + DEDUP_WINDOW_S);
        if recent && window == Window::Kept {
            return None;
        }
        self.window.insert(key, now);
        self.sent += 1;
        let id = format!("m-{}", self.sent);
        self.messages.push(Message {
            id: id.clone(),
            group: group.clone(),
            dedup: dedup.clone(),
            body,
            receives: 0,
            sequence: self.sent,
            died: false,
            in_flight: None,
        });
        Some(id)
    }

    /// Takes a message that another queue has given up on, under its old message id.
    pub fn bury(&mut self, message: Message) {
        self.sent += 1;
        // As SQS does it.
        let dedup = DedupId::new(&message.id);
        self.messages.push(Message {
            dedup,
            receives: 0,
            sequence: self.sent,
            died: true,
            in_flight: None,
            ..message
        });
    }

    /// Groups of which something can be received: nothing of them is in flight.
    pub fn free_groups(&self, now: u64) -> Vec<ThreadId> {
        let mut groups: Vec<ThreadId> = Vec::new();
        for message in &self.messages {
            if !groups.contains(&message.group) {
                groups.push(message.group.clone());
            }
        }
        let busy = |group: &ThreadId| {
            let of_group = self.messages.iter().filter(|message| &message.group == group);
            of_group.filter_map(|message| message.in_flight.as_ref()).any(|flight| flight.until > now)
        };
        groups.retain(|group| !busy(group));
        groups
    }

    /// When the next message becomes visible.
    pub fn next_visible(&self) -> Option<u64> {
        self.messages.iter().map(|message| message.in_flight.as_ref().map_or(0, |f| f.until)).min()
    }

    /// One batch: the first messages of some free groups. What was received more than `max_receives` times is not
    /// delivered but given up on.
    pub fn receive(
        &mut self,
        now: u64,
        batch: usize,
        visibility: u64,
        max_receives: u32,
        rng: &mut Rng,
    ) -> (Vec<(Delivered, SqsMessage)>, Vec<Message>) {
        let mut groups = self.free_groups(now);
        let mut room = 1 + rng.below(batch);
        let mut received = Vec::new();
        while room > 0 && !groups.is_empty() {
            let group = groups.swap_remove(rng.below(groups.len()));
            let mut take = 1 + rng.below(room);
            for message in self.messages.iter_mut().filter(|message| message.group == group) {
                if take == 0 {
                    break;
                }
                take -= 1;
                room -= 1;
                message.receives += 1;
                self.handles += 1;
                let handle = format!("h-{}", self.handles);
                message.in_flight = Some(InFlight { handle: handle.clone(), until: now + visibility });
                received.push((message.delivered(&handle), message.record(&handle)));
            }
        }
        let (dead, alive) =
            std::mem::take(&mut self.messages).into_iter().partition(|m| m.receives > max_receives);
        self.messages = alive;
        received.retain(|(delivered, _)| delivered.receives <= max_receives);
        (received, dead)
    }

    /// Deletes a message; a handle whose visibility has run out deletes nothing.
    pub fn delete(&mut self, handle: &str, now: u64) {
        self.messages.retain(|message| {
            !message.in_flight.as_ref().is_some_and(|flight| flight.handle == handle && flight.until > now)
        });
    }

    /// Sets when a message in flight is visible again.
    pub fn visible_at(&mut self, handle: &str, now: u64, at: u64) {
        for flight in self.messages.iter_mut().filter_map(|message| message.in_flight.as_mut()) {
            if flight.handle == handle && flight.until > now {
                flight.until = at;
            }
        }
    }
}

impl Message {
    fn delivered(&self, handle: &str) -> Delivered {
        Delivered {
            id: self.id.clone(),
            handle: handle.to_owned(),
            group: self.group.clone(),
            dedup: self.dedup.clone(),
            receives: self.receives,
        }
    }

    fn record(&self, handle: &str) -> SqsMessage {
        let mut message = SqsMessage::default();
        message.message_id = Some(self.id.clone());
        message.receipt_handle = Some(handle.to_owned());
        message.body = Some(self.body.clone());
        message.attributes = [
            ("MessageGroupId", self.group.as_str().to_owned()),
            ("MessageDeduplicationId", self.dedup.as_str().to_owned()),
            ("SequenceNumber", format!("{:020}", self.sequence)),
            ("ApproximateReceiveCount", self.receives.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        if self.died {
            message.attributes.insert("DeadLetterQueueSourceArn".to_owned(), "arn".to_owned());
        }
        message
    }
}
