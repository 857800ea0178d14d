//! Caches the keys of one issuer.
//!
//! Keys are loaded on first use and refreshed while in use: in the background once stale, and while
//! the caller waits when they are long overdue or a `kid` is unknown. Only one fetch runs at a
//! time, with pauses in between that callers cannot shorten. While the provider is down, the last
//! good set stays in use.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::fetch::{Source, fetch};
use crate::jwk::{Found, Key, KeySet};
use crate::refusal::{AuthError, Reason, Refusal};

/// Pause between two fetches while there are keys.
const PAUSE: Duration = Duration::from_secs(30);
/// Pause between two fetches while there are no keys and no caller can authenticate.
const PAUSE_WITHOUT_KEYS: Duration = Duration::from_secs(5);
/// Callers wait for new keys once the old ones reach this multiple of their lifetime: a cache idle
/// for hours must not accept a withdrawn key.
const OVERDUE_LIFETIMES: u32 = 2;

/// The cached keys of one issuer.
pub(crate) struct KeyCache {
    client: Client,
    source: Source,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    /// When the last fetch ended.
    tried: Option<Instant>,
    /// Whether the last fetch failed.
    failing: bool,
    /// Closed when the current fetch ends.
    flight: Option<Flight>,
}

type Flight = watch::Receiver<()>;

struct Loaded {
    keys: Arc<KeySet>,
    at: Instant,
    lifetime: Duration,
}

enum Step {
    Done(Result<Arc<Key>, AuthError>),
    Wait(Flight),
}

impl KeyCache {
    /// Creates an empty cache.
    pub fn new(client: Client, source: Source) -> KeyCache {
        KeyCache { client, source, state: Mutex::default() }
    }

    /// The key for a token's `kid`, fetched if necessary.
    pub async fn key(self: &Arc<Self>, kid: Option<&str>) -> Result<Arc<Key>, AuthError> {
        match self.step(kid) {
            Step::Done(answer) => answer,
            Step::Wait(flight) => {
                ended(flight).await;
                let loaded = self.state.lock().loaded.as_ref().map(|it| Arc::clone(&it.keys));
                answer(loaded.ok_or(AuthError::Unavailable)?.find(kid))
            }
        }
    }

    /// The key for a token's `kid` if already loaded; fetches nothing.
    pub fn known(&self, kid: Option<&str>) -> Option<Arc<Key>> {
        match self.state.lock().loaded.as_ref()?.keys.find(kid) {
            Found::Key(key) => Some(key),
            Found::Refused(_) | Found::Unknown => None,
        }
    }

    /// Loads the keys if there are none, waiting for the current fetch.
    pub async fn warm(self: &Arc<Self>) {
        let flight = {
            let mut state = self.state.lock();
            if state.loaded.is_some() { None } else { self.refresh(&mut state) }
        };
        if let Some(flight) = flight {
            ended(flight).await;
        }
    }

    /// Waits for the current fetch, if any.
    #[cfg(test)]
    pub async fn settled(&self) {
        let flight = self.state.lock().flight.clone();
        if let Some(flight) = flight {
            ended(flight).await;
        }
    }

    fn step(self: &Arc<Self>, kid: Option<&str>) -> Step {
        let mut state = self.state.lock();
        let Some(loaded) = &state.loaded else {
            return match self.refresh(&mut state) {
                Some(flight) => Step::Wait(flight),
                None => Step::Done(Err(AuthError::Unavailable)),
            };
        };
        let found = loaded.keys.find(kid);
        let age = loaded.at.elapsed();
        let stale = age >= loaded.lifetime;
        // While the provider is down, waiting for it would only slow all callers down.
        let overdue = age >= loaded.lifetime * OVERDUE_LIFETIMES && !state.failing;
        let unknown = matches!(found, Found::Unknown);
        if stale || unknown {
            let flight = self.refresh(&mut state);
            if (overdue || unknown)
                && let Some(flight) = flight
            {
                return Step::Wait(flight);
            }
        }
        Step::Done(answer(found))
    }

    /// The current fetch, or a new one if the pause is over.
    fn refresh(self: &Arc<Self>, state: &mut State) -> Option<Flight> {
        if let Some(flight) = &state.flight {
            return Some(flight.clone());
        }
        let pause = if state.loaded.is_some() { PAUSE } else { PAUSE_WITHOUT_KEYS };
        if state.tried.is_some_and(|tried| tried.elapsed() < pause) {
            return None;
        }
        let (sender, flight) = watch::channel(());
        let running = Fetch { cache: Arc::clone(self), fetched: None, _flight: sender };
        // A separate task: it serves all waiting callers, so one caller leaving must not cancel it.
        tokio::spawn(running.run());
        state.flight = Some(flight.clone());
        Some(flight)
    }
}

fn answer(found: Found) -> Result<Arc<Key>, AuthError> {
    match found {
        Found::Key(key) => Ok(key),
        Found::Refused(why) => Err(Refusal::new(Reason::UnknownKey, why).into()),
        Found::Unknown => Err(Refusal::new(Reason::UnknownKey, "kid is unknown").into()),
    }
}

async fn ended(mut flight: Flight) {
    // The channel carries no values; an error means that the sender was dropped.
    while flight.changed().await.is_ok() {}
}

/// Completes a fetch in every case: updates the state, then wakes the waiting callers.
struct Fetch {
    cache: Arc<KeyCache>,
    fetched: Option<(KeySet, Duration)>,
    _flight: watch::Sender<()>,
}

impl Fetch {
    async fn run(mut self) {
        let host = self.cache.source.host();
        match fetch(&self.cache.client, &self.cache.source).await {
            Ok((keys, lifetime)) => {
                if keys.usable() == 0 {
                    tracing::warn!(
                        target: "codeq::auth", host, "the identity provider has no usable key"
                    );
                }
                self.fetched = Some((keys, lifetime));
            }
            Err(error) => tracing::warn!(
                target: "codeq::auth", host, error, "keys of the identity provider not loaded"
            ),
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.cache.state.lock();
        state.flight = None;
        state.tried = Some(now);
        state.failing = self.fetched.is_none();
        if let Some((keys, lifetime)) = self.fetched.take() {
            state.loaded = Some(Loaded { keys: Arc::new(keys), at: now, lifetime });
        }
    }
}
