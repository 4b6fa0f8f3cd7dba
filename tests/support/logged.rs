//! What is logged, as a subscriber would have written it.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What this thread logs, on every level, until it is asked for.
pub struct Logged(Log, DefaultGuard);

impl Logged {
    pub fn here() -> Self {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        Self(log, tracing::subscriber::set_default(subscriber))
    }

    pub fn text(self) -> String {
        drop(self.1);
        String::from_utf8(self.0.0.lock().unwrap().clone()).unwrap()
    }
}
