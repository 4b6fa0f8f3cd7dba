//! A server on a thread and a runtime of its own.
//!
//! Both stand-ins block their workers on `fsync`, so neither may share the runtime the agent's slices run on. A server
//! reports its address when it is ready, ends when it is told to or when its handle is dropped, and holds the
//! directory's lock for as long as it lives.

use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::aws::LocalError;

/// Threads of a server's runtime. The work is mostly waiting for the disk.
const WORKER_THREADS: usize = 2;
/// How long open requests may take to finish after a stop; then their connections are cut.
const DRAIN: Duration = Duration::from_secs(3);

/// Resolves when the server is to stop, also when its handle was dropped.
pub(crate) type StopSignal = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A server that is ready: it runs until the stop signal it was given.
pub(crate) type Serving = Pin<Box<dyn Future<Output = ()>>>;

/// A running server.
#[derive(Debug)]
pub(crate) struct ServerThread {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Binds `port` on loopback (0 takes a free one), runs `setup` on the new thread, and returns once it is ready.
    pub(crate) async fn start<Setup, Ready>(
        name: &'static str,
        port: u16,
        lock: Option<Arc<File>>,
        setup: Setup,
    ) -> Result<Self, LocalError>
    where
        Setup: FnOnce(TcpListener, SocketAddr, StopSignal) -> Ready + Send + 'static,
        Ready: Future<Output = Result<Serving, LocalError>>,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = oneshot::channel::<Result<SocketAddr, LocalError>>();
        let body = move || {
            let _lock = lock;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(WORKER_THREADS)
                .thread_name(name)
                .enable_all()
                .build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(source) => {
                    let _ = ready.send(Err(LocalError::Thread { name, source }));
                    return;
                }
            };
            runtime.block_on(async move {
                let (draining, drain) = oneshot::channel::<()>();
                let stop_signal: StopSignal = Box::pin(async move {
                    let _ = stopped.await;
                    let _ = draining.send(());
                });
                let listening = async {
                    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
                    let address = listener.local_addr()?;
                    Ok((listener, address))
                };
                let (listener, address) = match listening.await {
                    Ok(listening) => listening,
                    Err(source) => {
                        let _ = ready.send(Err(LocalError::Port { name, port, source }));
                        return;
                    }
                };
                let serving = match setup(listener, address, stop_signal).await {
                    Ok(serving) => serving,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                if ready.send(Ok(address)).is_err() {
                    return;
                }
                tokio::select! {
                    () = serving => {}
                    () = async { let _ = drain.await; tokio::time::sleep(DRAIN).await } => {
                        tracing::debug!(server = name, "cut connections that were still open after a stop");
                    }
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|source| LocalError::Thread { name, source })?;
        let address = is_ready.await.unwrap_or(Err(LocalError::Died { name }))?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// `http://127.0.0.1:port`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the server and waits until its thread is gone and its files are closed.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::warn!("an embedded server ended with a panic");
            }
        }
    }
}
