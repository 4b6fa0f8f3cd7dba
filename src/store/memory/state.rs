//! What is beside the history, in memory.

use async_trait::async_trait;

use super::MemoryStore;
use crate::message::{CallId, MessageId, RawJson, ThreadId};
use crate::store::{ChoiceRow, DeadLetter, Kinship, RunStore, StateStore, Stop, StoreError, Subscription};

#[async_trait]
impl StateStore for MemoryStore {
    fn runs(&self) -> Option<&dyn RunStore> {
        Some(self)
    }

    async fn metadata(&self, root: &ThreadId) -> Result<Option<RawJson>, StoreError> {
        Ok(self.of_thread(root, |rows| rows.meta.as_ref().and_then(|meta| meta.metadata.clone())))
    }

    async fn subscription(
        &self,
        thread: &ThreadId,
        call: &CallId,
    ) -> Result<Option<Subscription>, StoreError> {
        Ok(self.of_thread(thread, |rows| {
            rows.subscriptions.get(call).map(|&active| Subscription { call: call.clone(), active })
        }))
    }

    async fn get_active_subscriptions(&self, thread: &ThreadId) -> Result<Vec<CallId>, StoreError> {
        Ok(self.of_thread(thread, |rows| {
            let active = rows.subscriptions.iter().filter(|(_, active)| **active);
            active.map(|(call, _)| call.clone()).collect()
        }))
    }

    async fn choice(&self, thread: &ThreadId, id: &CallId) -> Result<Option<ChoiceRow>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.choices.get(id).cloned()))
    }

    async fn open_choices(&self, thread: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.choices.values().cloned().collect()))
    }

    async fn request_stop(&self, thread: &ThreadId, stop: &Stop) -> Result<(), StoreError> {
        self.lock().threads.entry(thread.clone()).or_default().stop = Some(stop.clone());
        Ok(())
    }

    async fn stop(&self, thread: &ThreadId) -> Result<Option<Stop>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.stop.clone()))
    }

    async fn put_view(
        &self,
        thread: &ThreadId,
        view_type: &str,
        content: &RawJson,
    ) -> Result<(), StoreError> {
        let mut state = self.lock();
        let rows = state.threads.entry(thread.clone()).or_default();
        rows.views.insert(view_type.to_owned(), content.clone());
        Ok(())
    }

    async fn views(&self, thread: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError> {
        Ok(self.of_thread(thread, |rows| {
            rows.views.iter().map(|(kind, content)| (kind.clone(), content.clone())).collect()
        }))
    }

    async fn manifest(&self, server: &str) -> Result<Option<(String, i64)>, StoreError> {
        Ok(self.lock().manifests.get(server).cloned())
    }

    async fn put_manifest(&self, server: &str, manifest: &str, now_ms: i64) -> Result<(), StoreError> {
        self.lock().manifests.insert(server.to_owned(), (manifest.to_owned(), now_ms));
        Ok(())
    }

    async fn relatives(
        &self,
        thread: &ThreadId,
        kinship: Kinship,
        after: Option<&ThreadId>,
        limit: usize,
    ) -> Result<Vec<ThreadId>, StoreError> {
        Ok(self.of_thread(thread, |rows| {
            let all = match kinship {
                Kinship::Child => &rows.children,
                Kinship::Heir => &rows.heirs,
            };
            let behind = all.iter().filter(|name| after.is_none_or(|after| *name > after));
            behind.take(limit).cloned().collect()
        }))
    }

    async fn open_children(&self, root: &ThreadId) -> Result<u32, StoreError> {
        Ok(self.of_thread(root, |rows| rows.open_children))
    }

    async fn keep_dead_letter(&self, letter: &DeadLetter) -> Result<(), StoreError> {
        let key = (letter.thread.clone(), letter.message_id.clone());
        self.lock().dead_letters.entry(key).or_insert_with(|| letter.clone());
        Ok(())
    }

    async fn dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.lock().dead_letters.get(&(thread.clone(), id.clone())).cloned())
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let mut letters: Vec<DeadLetter> = self.lock().dead_letters.values().cloned().collect();
        letters.sort_by(DeadLetter::newest_first);
        letters.truncate(limit);
        Ok(letters)
    }

    async fn forget_dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<(), StoreError> {
        self.lock().dead_letters.remove(&(thread.clone(), id.clone()));
        Ok(())
    }
}
