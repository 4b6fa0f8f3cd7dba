//! When somebody asks the process to end: Ctrl-C or SIGTERM.

use tokio::sync::watch;

/// Resolves at the first Ctrl-C or SIGTERM; at the second one the process ends at once, as a crash would end it.
#[derive(Clone)]
pub struct StopSignal(watch::Receiver<bool>);

/// What a shell expects after Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;

impl StopSignal {
    /// Listens from now on.
    pub fn listen() -> Self {
        let (asked, signal) = watch::channel(false);
        tokio::spawn(async move {
            signal_arrived().await;
            asked.send_replace(true);
            signal_arrived().await;
            std::process::exit(EXIT_INTERRUPTED);
        });
        Self(signal)
    }

    /// Resolves when it was asked for.
    pub async fn asked(&mut self) {
        // A sender that is gone has asked as well: its task has ended with the process.
        let _ = self.0.wait_for(|asked| *asked).await;
    }
}

#[cfg(unix)]
async fn signal_arrived() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(not(unix))]
async fn signal_arrived() {
    drop(tokio::signal::ctrl_c().await);
}
