//! The HTTP front: one axum router, the same locally and on Lambda.
//!
//! Locally it is served by `axum::serve`. On Lambda it is handed to `lambda_http::run` as it is: `Router` is a
//! tower `Service` of `http::Request<B>` for any body `B`, and `lambda_http` turns the API Gateway event into
//! such a request and the response back into an event. A stage other than `$default` stands in front of the
//! path there; `AWS_LAMBDA_HTTP_IGNORE_STAGE_IN_PATH=true` takes it away.
//!
//! | file | what it holds |
//! |---|---|
//! | `callback` | `POST /rap/{token}`; its path holds a token and is never logged |
//! | `hooks` | `POST /hooks/{token}`, the webhooks of agents: likewise |
//! | `signatures` | what webhooks are signed with |
//! | `threads` | messages in, threads out |
//! | `choices` | questions of tools, and their answers |
//! | `views` | what tools show beside the conversation |
//! | `calls` | ending a response, and the calls that a thread waits for |
//! | `operations` | rewinding, forking, summarising and closing threads |
//! | `agui` | runs of AG-UI clients, and threads as their messages |
//! | `cors` | which pages may use those |
//! | `inspect` | where a thread stands, what comes of it, what rewinds have left, summaries |
//! | `inspector` | the page that shows all of it |
//! | `auth` | who asks, and which threads are theirs |
//! | `openapi` | the description of all of it |

mod agui;
pub mod auth;
mod body;
mod callback;
mod calls;
mod choices;
mod cors;
mod hooks;
mod inspect;
mod inspector;
mod openapi;
mod operations;
mod signatures;
mod threads;
mod views;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use crate::queue::QueueError;
use crate::rap::callback::CallbackDeps;
use crate::store::StoreError;

pub use agui::StreamTime;
pub use auth::{Access, IamPrincipal};
pub use calls::{resent_by_hand, settled_by_hand, unsendable, waiting_since};
pub use operations::{Preview, preview};
pub use signatures::WebhookSecrets;

/// Header by which a sender says that two POSTs are one.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Before the routes of AG-UI clients.
const AGUI: &str = "/agui/";
/// Whether there is anybody.
const HEALTH: &str = "/healthz";
/// What is answered where there is nothing.
const NO_ADDRESS: &str = "there is no such address";

/// What the routes need.
#[derive(Clone)]
pub struct HttpDeps {
    /// For `POST /rap/{token}`; the thread routes use the same store, queue and configuration.
    pub callback: CallbackDeps,
    /// Who may use the thread routes.
    pub access: Access,
    /// What webhooks are signed with.
    pub webhooks: WebhookSecrets,
}

/// Every route, as the description names it.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<HttpDeps>)> {
    vec![
        ("get", HEALTH, get(health)),
        ("get", "/openapi.json", get(openapi::document)),
        ("post", "/rap/{token}", post(callback::receive)),
        ("post", "/hooks/{token}", post(hooks::receive)),
        ("get", "/threads", get(threads::list)),
        ("get", "/threads/{id}", get(threads::show)),
        ("get", "/threads/{id}/state", get(inspect::state)),
        ("get", "/threads/{id}/children", get(inspect::children)),
        ("get", "/threads/{id}/forks", get(inspect::forks)),
        ("get", "/threads/{id}/branches", get(inspect::branches)),
        ("get", "/threads/{id}/generations", get(inspect::generations)),
        ("get", "/inspector", get(inspector::page)),
        ("get", "/inspector/app.js", get(inspector::script)),
        ("get", "/inspector/app.css", get(inspector::style)),
        ("post", "/threads/{id}/messages", post(threads::send)),
        ("post", "/threads/{id}/rewind", post(operations::rewind)),
        ("post", "/threads/{id}/fork", post(operations::fork)),
        ("post", "/threads/{id}/compact", post(operations::compact)),
        ("get", "/threads/{id}/export", get(operations::export)),
        ("post", "/threads/{id}/import", post(operations::import)),
        ("post", "/threads/{id}/close", post(operations::close)),
        ("get", "/threads/{id}/choices", get(choices::list)),
        ("post", "/threads/{id}/choices/{choice_id}", post(choices::answer)),
        ("get", "/threads/{id}/views", get(views::list)),
        ("post", "/threads/{id}/cancel", post(calls::cancel)),
        ("get", "/threads/{id}/pending", get(calls::pending)),
        ("post", "/threads/{id}/pending/{call_id}/settle", post(calls::settle)),
        ("post", "/threads/{id}/calls/{call_id}/resend", post(calls::resend)),
        ("post", "/agui/agent/{agent}/run", post(agui::run)),
        ("post", "/agui/agent/{agent}/connect", post(agui::connect)),
        ("post", "/agui/agent/{agent}/stop/{thread}", post(agui::stop)),
        ("get", "/agui/info", get(agui::info)),
        ("get", "/agui/threads/{thread}/messages", get(agui::messages)),
        ("post", "/agui/threads/{thread}/messages", post(agui::import)),
    ]
}

/// All routes, as `GET /openapi.json` describes them. Every answer is JSON; an error is `{"error":"…"}`.
pub fn router(deps: HttpDeps) -> Router {
    serving(deps, |_| true)
}

/// The routes of AG-UI clients, for a function whose answers are streamed, and where the configuration asks for it the
/// inspector and what it shows. What tools and webhooks POST has a function of its own.
pub fn stream_router(deps: HttpDeps) -> Router {
    let inspector = deps.callback.config.http.inspector.unwrap_or(false);
    let is_for_people = |path: &str| !path.ends_with("/{token}");
    serving(deps, |path| path.starts_with(AGUI) || path == HEALTH || (inspector && is_for_people(path)))
}

fn serving(deps: HttpDeps, is_served: impl Fn(&str) -> bool) -> Router {
    let (agui, others): (Vec<_>, Vec<_>) = routes()
        .into_iter()
        .filter(|(_, path, _)| is_served(path))
        .partition(|(_, path, _)| path.starts_with(AGUI));
    let of = |routes: Vec<(_, &str, MethodRouter<HttpDeps>)>| {
        let routes = routes.into_iter();
        routes
            .fold(Router::new(), |router, (_, path, handler): (&str, _, _)| router.route(path, handler))
            // Here, or what is laid around the routes is not laid around it.
            .method_not_allowed_fallback(|| async {
                error(StatusCode::METHOD_NOT_ALLOWED, "this address does not take that method")
            })
    };
    let agui = match cors::layer(&deps.callback.config.http) {
        Some(cors) => of(agui).layer(cors),
        None => of(agui),
    };
    of(others).merge(agui).fallback(|| async { error(StatusCode::NOT_FOUND, NO_ADDRESS) }).with_state(deps)
}

async fn health() -> Response {
    json(StatusCode::OK, "status", "ok")
}

fn error(status: StatusCode, text: &str) -> Response {
    json(status, "error", text)
}

fn json(status: StatusCode, member: &str, text: &str) -> Response {
    (status, axum::Json(serde_json::json!({ member: text }))).into_response()
}

/// Why a request is not served.
#[derive(Debug)]
struct ApiError {
    status: StatusCode,
    text: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl ApiError {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), header: None }
    }

    /// The request makes no sense.
    fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }

    /// A port is out of order; what it said may name tables and queues, so it is for the log.
    fn unavailable(error: &dyn std::error::Error) -> Self {
        tracing::error!(%error, status = 503, "request");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the store or the queue does not answer; try again")
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = error(self.status, &self.text);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::unavailable(&error)
    }
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        Self::unavailable(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only while the router is what `lambda_http` runs.
    #[expect(dead_code, reason = "its types are the proof")]
    fn the_router_runs_on_lambda(
        router: Router,
    ) -> impl std::future::Future<Output = Result<(), lambda_http::Error>> {
        lambda_http::run(router)
    }

    /// The description is written by hand, so a route that it lacks must not go unnoticed, nor one that it invents.
    #[test]
    fn the_description_has_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(openapi::DOCUMENT).unwrap();
        let mut described: Vec<(String, String)> = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
            described.extend(methods.map(|method| (method.clone(), path.clone())));
        }
        let mut served: Vec<(String, String)> =
            routes().into_iter().map(|(method, path, _)| (method.to_owned(), path.to_owned())).collect();
        described.sort();
        served.sort();
        assert_eq!(described, served);
    }
}
