//! Rewinding a thread: what the core hides, and what ends with it.

use super::HistoryManager;
use crate::history::Arrival;
use crate::history::rewind::{RewindPlan, RewindRefused};
use crate::message::{Rewind, Seq, ThreadId};
use crate::store::{Promise, StoreError};

impl HistoryManager {
    /// Hides the newest turns with the next commit. Subscriptions of hidden calls end, hidden calls that are out are
    /// cancelled, and children that were made there are told to stop.
    ///
    /// # Errors
    /// The look-up of the subscriptions; a refusal is no error and changes nothing.
    pub async fn rewind(
        &mut self,
        rewind: &Rewind,
        arrival: &Arrival,
    ) -> Result<Result<RewindPlan, RewindRefused>, StoreError> {
        let plan = match self.history.plan_rewind(&rewind.target, rewind.seen, rewind.into()) {
            Ok(plan) => plan,
            Err(refused) => return Ok(Err(refused)),
        };
        let active = self.get_active_subscriptions().await?;
        self.work_for(arrival);
        self.history.rewind(&plan, arrival);
        self.history.end_hidden_subscriptions(active);
        self.after_rewind(&plan).await?;
        Ok(Ok(plan))
    }

    /// What else is over with what is hidden now.
    pub(super) async fn after_rewind(&mut self, plan: &RewindPlan) -> Result<(), StoreError> {
        self.fall_back().await?;
        for call in &plan.children {
            let thread = ThreadId::child(self.history.thread(), call.as_str());
            self.promise(Promise::End { thread });
        }
        // The provider counted what is hidden now.
        self.meta.usage = None;
        self.loaded_head = Seq::FIRST;
        // A reply that a later message still owes names items of the log that is left.
        self.kept.retain(|entry| !matches!(entry.promise, Promise::Reply { .. }));
        Ok(())
    }
}
