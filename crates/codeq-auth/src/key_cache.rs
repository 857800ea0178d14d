//! The keys of one issuer, kept.
//!
//! Loaded at the first need, then refreshed while in use: in the background once they are no longer fresh,
//! at once (the caller waits) when they are much older or a `kid` is not known. There is one fetch at a
//! time, with pauses in between that no caller can shorten. While the provider is down the last good set
//! stays.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::fetch::{Source, fetch};
use crate::jwk::{Found, Key, KeySet};
use crate::refusal::{AuthError, Reason, Refusal};

/// Pause between two attempts when there are keys.
const PAUSE: Duration = Duration::from_secs(30);
/// Pause between two attempts when there are none, and nobody gets in.
const PAUSE_WITHOUT_KEYS: Duration = Duration::from_secs(5);
/// A caller waits for new keys when the old ones have this many times their lifetime: a cache that nobody
/// asked for hours must not let a withdrawn key in.
const OVERDUE_LIFETIMES: u32 = 2;

/// The keys of one issuer.
pub(crate) struct KeyCache {
    client: Client,
    source: Source,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    /// When the last attempt ended.
    tried: Option<Instant>,
    /// The last attempt failed.
    failing: bool,
    /// Closed when the attempt that is under way has ended.
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
    /// An empty cache.
    pub fn new(client: Client, source: Source) -> KeyCache {
        KeyCache { client, source, state: Mutex::default() }
    }

    /// The key for a token with this `kid`.
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

    /// The same if it is here: nothing is fetched.
    pub fn known(&self, kid: Option<&str>) -> Option<Arc<Key>> {
        match self.state.lock().loaded.as_ref()?.keys.find(kid) {
            Found::Key(key) => Some(key),
            Found::Refused(_) | Found::Unknown => None,
        }
    }

    /// Loads the keys if there are none; waits for the attempt that is under way.
    pub async fn warm(self: &Arc<Self>) {
        let flight = {
            let mut state = self.state.lock();
            if state.loaded.is_some() { None } else { self.refresh(&mut state) }
        };
        if let Some(flight) = flight {
            ended(flight).await;
        }
    }

    /// Waits for the attempt that is under way, if there is one.
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
        // While the provider is down, waiting for it would only slow everybody down.
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

    /// The attempt that is under way, or a new one if it is time.
    fn refresh(self: &Arc<Self>, state: &mut State) -> Option<Flight> {
        if let Some(flight) = &state.flight {
            return Some(flight.clone());
        }
        let pause = if state.loaded.is_some() { PAUSE } else { PAUSE_WITHOUT_KEYS };
        if state.tried.is_some_and(|tried| tried.elapsed() < pause) {
            return None;
        }
        let (sender, flight) = watch::channel(());
        let landing = Landing { cache: Arc::clone(self), fetched: None, _flight: sender };
        // A task of its own: it serves all who wait, so the first one's leaving must not end it.
        tokio::spawn(landing.fly());
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
    // Nothing is ever sent: an error says that the sender is gone.
    while flight.changed().await.is_ok() {}
}

/// Ends an attempt, however it ends: those who wait are woken after the state has been set.
struct Landing {
    cache: Arc<KeyCache>,
    fetched: Option<(KeySet, Duration)>,
    _flight: watch::Sender<()>,
}

impl Landing {
    async fn fly(mut self) {
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

impl Drop for Landing {
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
