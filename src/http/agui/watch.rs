//! What tools show beside the conversation (RAP 45), while somebody follows a run: a view that changes meanwhile is an event
//! of the stream. Views are rows of the thread, so nothing is written for it; what there was before is not told again, the
//! route of the views has it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::message::{RawJson, ThreadId};
use crate::store::{Store, body_digest};

/// Between two looks, and for so many bytes of views a second more: a look reads all of them.
const LOOK_AFTER: Duration = Duration::from_secs(1);
const BYTES_A_SECOND: usize = 64 * 1024;

/// Somebody who looks at a thread's views.
pub(super) struct Watch {
    /// Digests of those that are known, by type; none: nobody has looked.
    known: Option<BTreeMap<String, String>>,
    due: Instant,
}

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    GoesOn,
    /// What has changed until now is the last that is shown.
    IsOver,
}

/// A view as the route of the views shows it.
#[derive(Serialize)]
struct View<'a> {
    view_type: &'a str,
    content: &'a RawJson,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { known: None, due: Instant::now() }
    }

    /// Views that have changed since the last look, if it is time for one; the first only remembers them.
    pub(super) async fn look(&mut self, store: &dyn Store, thread: &ThreadId, run: Run) -> Vec<RawJson> {
        let is_time = match run {
            Run::GoesOn => self.due <= Instant::now(),
            // Of a run that was over when somebody came, there is nothing to see.
            Run::IsOver => self.known.is_some(),
        };
        if !is_time {
            return Vec::new();
        }
        let views = match store.views(thread).await {
            Ok(views) => views,
            Err(error) => {
                tracing::info!(%thread, %error, "a client misses what tools show");
                self.due = Instant::now() + LOOK_AFTER;
                return Vec::new();
            }
        };
        let bytes: usize = views.iter().map(|(_, content)| content.get().len()).sum();
        let more = u64::try_from(bytes / BYTES_A_SECOND).unwrap_or(u64::MAX);
        self.due = Instant::now() + LOOK_AFTER + Duration::from_secs(more.min(u64::from(u32::MAX)));
        let digest = |content: &RawJson| body_digest(content.get());
        let now: BTreeMap<String, String> =
            views.iter().map(|(view_type, content)| (view_type.clone(), digest(content))).collect();
        let before = self.known.replace(now);
        let (Some(before), Some(now)) = (before, &self.known) else { return Vec::new() };
        let changed = views.iter().filter(|(view_type, _)| before.get(view_type) != now.get(view_type));
        changed.filter_map(|(view_type, content)| event_value(view_type, content)).collect()
    }
}

fn event_value(view_type: &str, content: &RawJson) -> Option<RawJson> {
    let json = serde_json::to_string(&View { view_type, content }).ok()?;
    // A line break would end its frame.
    RawJson::parse(&json).ok().map(|view| view.on_one_line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StateStore;
    use crate::store::memory::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn a_view_that_changes_is_told_once_and_on_one_line() {
        let (store, thread) = (MemoryStore::new(), ThreadId::from("t"));
        let put = async |view_type: &str, content: &str| {
            store.put_view(&thread, view_type, &RawJson::parse(content).unwrap()).await.unwrap();
        };
        let mut watch = Watch::new();
        assert_eq!(watch.look(&store, &thread, Run::IsOver).await, [], "nobody has looked");
        put("old", "{}").await;
        assert_eq!(watch.look(&store, &thread, Run::GoesOn).await, [], "what there was before");
        put("diff", "{\n \"a\": 1.50,\r\n \"b\": \"x\\ny\" }").await;
        assert_eq!(watch.look(&store, &thread, Run::GoesOn).await, [], "it is not time yet");
        tokio::time::advance(LOOK_AFTER).await;
        let told = watch.look(&store, &thread, Run::GoesOn).await;
        let expected = r#"{"view_type":"diff","content":{  "a": 1.50,   "b": "x\ny" }}"#;
        assert_eq!(told.iter().map(RawJson::get).collect::<Vec<_>>(), [expected]);
        put("old", r#"{"new":null}"#).await;
        let told = watch.look(&store, &thread, Run::IsOver).await;
        assert_eq!(
            told.iter().map(RawJson::get).collect::<Vec<_>>(),
            [r#"{"view_type":"old","content":{"new":null}}"#]
        );
        assert_eq!(watch.look(&store, &thread, Run::IsOver).await, []);
        // Large views are looked at less often.
        put("large", &format!("\"{}\"", "x".repeat(4 * BYTES_A_SECOND))).await;
        tokio::time::advance(LOOK_AFTER).await;
        assert_eq!(watch.look(&store, &thread, Run::GoesOn).await.len(), 1);
        put("old", "7").await;
        tokio::time::advance(3 * LOOK_AFTER).await;
        assert_eq!(watch.look(&store, &thread, Run::GoesOn).await, []);
        tokio::time::advance(2 * LOOK_AFTER).await;
        assert_eq!(watch.look(&store, &thread, Run::GoesOn).await.len(), 1);
    }
}
