//! What an operator does, in memory.

use async_trait::async_trait;

use super::MemoryStore;
use crate::message::{Item, RawJson, ThreadId};
use crate::store::{ArchiveStore, ConversationStore, Logs, Meta, Rewrite, StoreError, TextOf, ThreadSummary};

#[async_trait]
impl ArchiveStore for MemoryStore {
    async fn rewrite_texts(&self, thread: &ThreadId, rewrite: &Rewrite<'_>) -> Result<usize, StoreError> {
        let mut state = self.lock();
        let (mut changed, mut changed_meta) = (0, false);
        let mut renew = |of: TextOf, text: &str| {
            let new = rewrite(of, text);
            changed += usize::from(new.is_some());
            new
        };
        if let Some(rows) = state.threads.get_mut(thread) {
            if let Some(meta) = &mut rows.meta {
                changed_meta = meta.rewrite_texts(rewrite);
            }
            for ((epoch, seq), item) in &mut rows.logs {
                if let Some(raw) = renew(TextOf::Item(*epoch, *seq), &item.raw) {
                    *item = Item::stored(*seq, raw, item.facts.clone());
                }
            }
            for generation in rows.generations.values_mut().filter(|generation| !generation.text.is_empty()) {
                let Some(said) = renew(TextOf::Summary(generation.at.id.epoch), &generation.said()) else {
                    continue;
                };
                match generation.clone().saying(&said) {
                    Some(renewed) => *generation = renewed,
                    None => {
                        generation.text.clear();
                        generation.native = None;
                    }
                }
            }
            for parked in rows.parked.values_mut() {
                if let Some(body) = renew(TextOf::State, &parked.body) {
                    parked.body = body;
                }
            }
            for choice in rows.choices.values_mut() {
                if let Some(body) = renew(TextOf::State, &choice.body) {
                    choice.body = body;
                }
            }
            for run in rows.runs.values_mut() {
                if let Some(config) = renew(TextOf::Opaque, &run.config) {
                    run.config = config;
                }
                if let Some(end) = run.end.as_ref().and_then(|end| renew(TextOf::State, end)) {
                    run.end = Some(end);
                }
            }
            for view in rows.views.values_mut() {
                if let Some(content) =
                    renew(TextOf::Opaque, view.get()).and_then(|text| RawJson::parse(&text).ok())
                {
                    *view = content;
                }
            }
        }
        for letter in state.dead_letters.values_mut().filter(|letter| &letter.thread == thread) {
            if let Some(body) = renew(TextOf::State, &letter.body) {
                letter.body = body;
            }
        }
        Ok(changed + usize::from(changed_meta))
    }

    async fn heirs(&self, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.heirs.iter().cloned().collect()))
    }

    async fn children(&self, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.children.iter().cloned().collect()))
    }

    async fn set_inheritable(&self, thread: &ThreadId, inheritable: bool) -> Result<(), StoreError> {
        self.lock().threads.entry(thread.clone()).or_default().closed_to_heirs = !inheritable;
        Ok(())
    }

    async fn oldest_threads(
        &self,
        from_ms: i64,
        before_ms: i64,
        limit: usize,
    ) -> Result<Vec<ThreadSummary>, StoreError> {
        let mut threads = self.list_threads(usize::MAX).await?;
        threads.retain(|thread| (from_ms..before_ms).contains(&thread.created_at_ms));
        threads.reverse();
        threads.truncate(limit);
        Ok(threads)
    }

    async fn erase(&self, thread: &ThreadId, logs: Logs) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.dead_letters.retain(|(of, _), _| of != thread);
        for rows in state.threads.values_mut() {
            rows.heirs.remove(thread);
        }
        let Some(rows) = state.threads.remove(thread) else { return Ok(()) };
        let left = state.threads.entry(thread.clone()).or_default();
        (left.erased, left.closed_to_heirs) = (true, rows.closed_to_heirs);
        left.meta = rows.meta.map(Meta::erased);
        if logs == Logs::Keep {
            left.logs = rows.logs;
            left.generations = rows.generations;
            left.bases = rows.bases;
            left.heirs = rows.heirs;
            left.children = rows.children;
        }
        Ok(())
    }
}
