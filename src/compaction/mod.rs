//! Compaction: older parts of a conversation are summarised when the model's window fills. Nothing is lost (the items stay)
//! and nothing wedges (what cannot be summarised is left out of requests, and the thread goes on).
//!
//! | file | decides | never does |
//! |---|---|---|
//! | [`policy`] | budgets, and whether to compact; numbers in, a decision out | I/O, estimating, retrying |
//! | [`plan`] | how much stays verbatim, where a chunk ends | write anything, cut inside a group |
//! | [`summary_input`] | what of a chunk the summariser reads, and what is kept of its answer | talk to a provider |
//! | [`summary_call`] | one call: its deadline, whether its answer is complete | touch storage |
//! | [`native`] | whether a provider's own checkpoint is asked for, and whether it is taken | replay one, edit one |
//! | [`chunk`] | one chunk from its items to its generation: calls, retries, the fallback, acceptance | choose budgets |
//!
//! Storing a chunk is [`ConversationStore::compact`](crate::store::ConversationStore::compact); when to run is the
//! business of `slice`.

pub mod chunk;
pub mod native;
pub mod plan;
pub mod policy;
pub mod summary_call;
pub mod summary_input;
