//! Tools that dormouse brings itself, one file a theme. They need no server; their names beat those of any other tool.
//!
//! | file | tools |
//! |---|---|
//! | `recall` | `recall` |
//! | `schedules` | `schedule` |
//! | `state` | `read_state`, `update_state` |
//! | `subscriptions` | `cancel_subscription` |
//! | `threads` | `spawn_thread`, `report_to_parent`, `close_thread`, `send_message_to_child` |
//! | `timers` | `sleep`, `sleep_until`, `sleep_until_event_or_input` |
//! | `webhooks` | `receive_webhook` |

mod recall;
mod schedules;
mod state;
mod subscriptions;
mod threads;
mod timers;
mod webhooks;

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Tool, ToolError};
use crate::queue::TimerSender;
use crate::rap::token::CallbackTokens;
use crate::store::Store;
pub use state::UPDATE_STATE_TOOL;
pub(crate) use state::patched;
pub use threads::CLOSE_TOOL;

/// All that need no timers.
pub fn all(store: &Arc<dyn Store>) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(subscriptions::CancelSubscription::new(store.clone())),
        Arc::new(recall::Recall::new(store.clone())),
    ];
    tools.extend(threads::all(store));
    tools
}

/// Those of agents that share something with their user's application.
pub fn shared_state(store: &Arc<dyn Store>) -> Vec<Arc<dyn Tool>> {
    state::all(store)
}

/// Those that wait; without a way to set timers only the one that needs none.
pub fn waiting(timers: Option<Arc<dyn TimerSender>>) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![Arc::new(timers::SleepUntilEventOrInput::new())];
    if let Some(timers) = timers {
        tools.push(Arc::new(timers::Sleep::seconds(timers.clone())));
        tools.push(Arc::new(timers::Sleep::until(timers.clone())));
        tools.push(Arc::new(schedules::Schedule::new(timers)));
    }
    tools
}

/// The one that gives out web addresses; `secrets` are the names of what their POSTs may be signed with.
pub fn webhooks(tokens: CallbackTokens, secrets: Vec<String>) -> Arc<dyn Tool> {
    Arc::new(webhooks::ReceiveWebhook::new(tokens, secrets))
}

/// The arguments of a call, after their schema was checked.
fn arguments<T: DeserializeOwned>(text: &str) -> Result<T, ToolError> {
    serde_json::from_str(text).map_err(|e| ToolError::Failed(format!("the arguments cannot be read: {e}")))
}
