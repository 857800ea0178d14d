//! The accept loop: who may connect, and the drain at the end.

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

/// Pause after an accept that failed for want of resources: descriptors come free meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` until `stop` turns true; then lets requests in flight finish, for `grace` at most.
///
/// Returns when every connection is closed. A `stop` whose sender is gone counts as true.
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
            Some(done) = tasks.join_next() => absorb(done),
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

/// The next connection. Errors are waited out here: none of them may end the loop.
async fn accept(listener: &TcpListener) -> (TcpStream, Peer) {
    loop {
        match listener.accept().await {
            Ok((stream, addr)) => return (stream, Peer { addr, held: Arc::default() }),
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::warn!(target: "codeq::net", %error, "cannot accept connections, trying again");
                sleep(PAUSE).await;
            }
        }
    }
}

/// The client went away before it was accepted: nothing to wait for.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn drain(mut tasks: JoinSet<()>, grace: Duration) {
    let all = async {
        while let Some(done) = tasks.join_next().await {
            absorb(done);
        }
    };
    if timeout(grace, all).await.is_err() {
        let connections = tasks.len();
        tracing::warn!(target: "codeq::net", connections, "requests did not finish in time: dropped");
        tasks.shutdown().await;
    }
}

/// A panic ends its own connection, nothing else.
fn absorb(done: Result<(), JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        tracing::error!(target: "codeq::net", %error, "a connection's task panicked");
    }
}
