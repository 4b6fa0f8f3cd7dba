//! DynamoDB for the tests: in this process, or the server that an environment variable names.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::sync::Once;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};

/// Names a DynamoDB-compatible server that somebody else wrote (ministack in CI).
const SERVER_VARIABLE: &str = "DORMOUSE_TEST_DYNAMODB_URL";

/// A client's configuration for the server at `url`.
pub fn config(url: &str) -> aws_sdk_dynamodb::config::Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "static"))
        .endpoint_url(url)
}

/// A client of the server at `url`.
pub fn client(url: &str) -> Client {
    Client::from_conf(config(url).build())
}

/// The server that the environment names; says loudly, past the capture of test output, that there is none.
pub fn server_url() -> Option<String> {
    static ONCE: Once = Once::new();
    let url = std::env::var(SERVER_VARIABLE).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        ONCE.call_once(|| {
            let say = format!("SKIPPED: {SERVER_VARIABLE} is unset, no tests against a real server\n");
            std::io::stderr().write_all(say.as_bytes()).unwrap();
        });
    }
    url
}

#[cfg(feature = "local")]
mod embedded {
    use std::sync::OnceLock;
    use std::thread::JoinHandle;

    use tokio::sync::oneshot;

    /// dynoxide on its own thread and runtime: it blocks the worker that serves a request.
    pub struct Embedded {
        pub url: String,
        stop: oneshot::Sender<()>,
        served: JoinHandle<()>,
    }

    impl Embedded {
        pub fn start(db: dynoxide::Database) -> Self {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let (stop, stopped) = oneshot::channel::<()>();
            let served = std::thread::spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_multi_thread();
                let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
                runtime.block_on(async move {
                    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                    let stopped = async {
                        stopped.await.ok();
                    };
                    dynoxide::server::serve_with_shutdown(listener, db, stopped).await.unwrap();
                });
            });
            Self { url, stop, served }
        }

        pub fn stop(self) {
            self.stop.send(()).unwrap();
            self.served.join().unwrap();
        }
    }

    /// One server in memory for all tests of a process; each makes its own table.
    pub fn shared_url() -> String {
        static SHARED: OnceLock<Embedded> = OnceLock::new();
        SHARED.get_or_init(|| Embedded::start(dynoxide::Database::memory().unwrap())).url.clone()
    }
}

#[cfg(feature = "local")]
pub use embedded::{Embedded, shared_url};
