//! The accept loop: connection limit, retries after accept errors, and the final drain.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use crate::connection::{self, Shared};
use crate::slot::Slot;
use crate::{NetLimits, NetStats, Peer, TlsFiles};

/// Pause after an accept fails for lack of resources, so that file descriptors can free up.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` until `stop` turns true, then gives in-flight requests up to `grace` to finish.
///
/// Returns once every connection is closed. A dropped `stop` sender counts as true.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    tls: Option<TlsFiles>,
    limits: NetLimits,
    stats: Arc<NetStats>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    let most = limits.max_connections;
    let mut tasks = JoinSet::new();
    if let Some(files) = &tls {
        tasks.spawn(files.clone().watch(stop.clone()));
    }
    let shared = Arc::new(Shared::new(app, tls, limits, stop.clone()));
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(done) = tasks.join_next() => log_panic(done),
            accepted = accept(&listener) => {
                let (stream, peer) = accepted;
                if let Some(slot) = Slot::take(most, &stats) {
                    tasks.spawn(connection::run(stream, peer, Arc::clone(&shared), slot));
                }
            }
        }
    }
    drop(listener);
    drain(tasks, grace).await;
}

/// Accepts the next connection. Retries on every error: none of them may end the accept loop.
async fn accept(listener: &TcpListener) -> (TcpStream, Peer) {
    loop {
        match listener.accept().await {
            Ok((stream, addr)) => return (stream, Peer { addr, held: Arc::default() }),
            Err(error) if is_client_abort(&error) => {}
            Err(error) => {
                tracing::warn!(target: "codeq::net", %error, "cannot accept connections, retrying");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the client went away before the accept. The next accept can follow at once.
fn is_client_abort(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn drain(mut tasks: JoinSet<()>, grace: Duration) {
    let all = async {
        while let Some(done) = tasks.join_next().await {
            log_panic(done);
        }
    };
    if timeout(grace, all).await.is_err() {
        let connections = tasks.len();
        tracing::warn!(target: "codeq::net", connections, "requests did not finish in time, dropping them");
        tasks.shutdown().await;
    }
}

/// Logs a panic, which ends only the connection that caused it.
fn log_panic(done: Result<(), JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        tracing::error!(target: "codeq::net", %error, "connection task panicked");
    }
}
