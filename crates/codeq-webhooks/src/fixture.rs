//! What sending needs, for tests: an engine without tasks, and a client that finds every address busy.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use codeq_core::view::Task;
use codeq_engine::{Engine, Options};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tempfile::TempDir;
use tracing::Span;

use crate::client::{self, Client};
use crate::dns::Resolve;
use crate::outbound::Outbound;
use crate::policy::AddressPolicy;
use crate::report::{Report, WebhookKind, WebhookOutcome};
use crate::secrets::Secrets;

pub(crate) struct Fixture {
    pub outbound: Arc<Outbound>,
    pub counted: Arc<Counted>,
    _dir: TempDir,
}

/// The outcomes that were counted.
#[derive(Default)]
pub(crate) struct Counted(pub Mutex<Vec<WebhookOutcome>>);

impl Report for Counted {
    fn count(&self, _: WebhookKind, outcome: WebhookOutcome, _: Option<(&Arc<str>, &str)>) {
        self.0.lock().push(outcome);
    }

    fn callback_span(&self, _: &Task) -> Span {
        Span::none()
    }
}

/// Every host is at the same public address.
struct OneAddress;

impl Resolve for OneAddress {
    fn resolve(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        async { Ok(vec![IpAddr::from([8, 8, 8, 8])]) }.boxed()
    }
}

impl Fixture {
    pub fn open(shards: u16) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { shards: Some(shards), ..Options::default() };
        let engine = Arc::new(Engine::open(dir.path(), options).unwrap());
        let policy = Arc::new(AddressPolicy::new(&[]));
        let counted = Arc::new(Counted::default());
        let no_slots = client::Options { per_address: 0, ..client::Options::default() };
        let outbound = Outbound {
            client: Client::new(Arc::clone(&policy), Arc::new(OneAddress), no_slots),
            policy,
            secrets: Arc::new(Secrets::new(Arc::clone(&engine))),
            report: Arc::clone(&counted) as _,
            format_time: Arc::new(|at| at.to_string()),
            engine,
        };
        Fixture { outbound: Arc::new(outbound), counted, _dir: dir }
    }
}
