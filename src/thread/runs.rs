//! The run of an attached client: it begins with a commit, and ends with one whose outbox tells the client.

use super::HistoryManager;
use crate::history::Arrival;
use crate::history::rewind::RewindRefused;
use crate::store::{Loaded, Promise, StoreError};

impl HistoryManager {
    /// The run that is under way, or begins with the next commit.
    pub fn run(&self) -> Option<&str> {
        self.meta.run.as_deref()
    }

    /// Whether one was when this slice began: what its client has not been told by its end, it does not know.
    pub fn had_run(&self) -> bool {
        self.had_run
    }

    /// Begins a run with the next commit.
    pub fn begin_run(&mut self, run: &str) {
        self.meta.run = Some(run.to_owned());
        self.run_changed = true;
        self.trouble = None;
    }

    /// Ends the run with the next commit. `end` says how, as JSON.
    pub fn end_run(&mut self, end: String) {
        if let Some(run) = self.meta.run.take() {
            self.promise(Promise::RunEnd { run, end });
        }
    }

    /// Takes the run off the thread, with the next commit. Whoever does so sees to its end.
    pub fn take_run(&mut self) -> Option<String> {
        self.meta.run.take()
    }

    /// Remembers why the thread cannot go on by itself: the run ends so. A code of the protocol, and a text for the user.
    pub fn set_trouble(&mut self, code: &'static str, text: &str) {
        if self.meta.run.is_some() {
            self.trouble = Some((code, text.to_owned()));
        }
    }

    /// Why the run cannot go on.
    pub fn trouble(&self) -> Option<(&'static str, &str)> {
        self.trouble.as_ref().map(|(code, text)| (*code, text.as_str()))
    }

    /// Goes on behind the first `keep` items of this view, with the next commit; of another log's, if that is given.
    ///
    /// # Errors
    /// The look-up of the subscriptions; a refusal is no error and changes nothing.
    pub async fn cut(
        &mut self,
        keep: usize,
        branch: Option<Loaded>,
        arrival: &Arrival,
    ) -> Result<Result<(), RewindRefused>, StoreError> {
        let plan = match &branch {
            Some(loaded) => self.history.plan_branch(keep, loaded),
            None => self.history.plan_cut(keep),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(refused) => return Ok(Err(refused)),
        };
        let active = self.get_active_subscriptions().await?;
        self.work_for(arrival);
        match branch {
            Some(loaded) => self.history.branch(&plan, loaded, arrival),
            None => self.history.rewind(&plan, arrival),
        }
        self.history.end_hidden_subscriptions(active);
        self.after_rewind(&plan).await?;
        Ok(Ok(()))
    }
}
