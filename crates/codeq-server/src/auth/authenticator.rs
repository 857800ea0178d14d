//! Trying the validators in turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Client;

use crate::auth::bearer::check_token;
use crate::auth::fetch::{Source, client};
use crate::auth::grants::Kind;
use crate::auth::jwt::{Jwt, JwtValidator};
use crate::auth::key_cache::KeyCache;
use crate::auth::static_tokens::{StaticTokens, TokenDigest, digest};
use crate::auth::{AuthError, Principal, Reason, Refusal, Role};
use crate::config::{AuthConfig, Config, JwtConfig};

/// All validators of a server.
pub struct Authenticator {
    producers: Validators,
    workers: Validators,
    producers_may_work: bool,
    caches: Vec<Arc<KeyCache>>,
}

impl Authenticator {
    /// From the configuration. Nothing is fetched yet.
    pub fn new(config: &Config) -> Result<Authenticator, String> {
        let mut caches = Caches::default();
        let producer_kind =
            if config.allow_producer_as_worker { Kind::ProducerAsWorker } else { Kind::Producer };
        let producers = Validators::new(&config.producer_auth, producer_kind, &mut caches)
            .map_err(|why| format!("producerAuth: {why}"))?;
        let workers = Validators::new(&config.worker_auth, Kind::Worker, &mut caches)
            .map_err(|why| format!("workerAuth: {why}"))?;
        Ok(Authenticator {
            producers,
            workers,
            producers_may_work: config.allow_producer_as_worker,
            caches: caches.by_source.into_values().collect(),
        })
    }

    /// Loads the keys of all identity providers, so that the first callers need not wait for them. A
    /// provider that does not answer is logged and asked again when it is needed.
    pub async fn warm(&self) {
        let mut loads = tokio::task::JoinSet::new();
        for cache in &self.caches {
            let cache = Arc::clone(cache);
            loads.spawn(async move { cache.warm().await });
        }
        while loads.join_next().await.is_some() {}
    }

    /// Waits until no keys are being loaded.
    #[cfg(test)]
    pub(super) async fn settled(&self) {
        for cache in &self.caches {
            cache.settled().await;
        }
    }

    /// Who the bearer of this token is. The validators of `role` are tried first; a token that only the other
    /// role's validators accept is [`AuthError::Forbidden`].
    pub async fn authenticate(&self, token: &str, role: Role) -> Result<Principal, AuthError> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.authenticate_at(token, role, since_epoch.as_secs()).await
    }

    /// The same at a given time, in Unix seconds.
    pub(super) async fn authenticate_at(
        &self,
        token: &str,
        role: Role,
        now: u64,
    ) -> Result<Principal, AuthError> {
        check_token(token).map_err(|why| Refusal::new(Reason::Malformed, why))?;
        let presented = Presented { digest: digest(token), jwt: Jwt::parse(token), now };
        let (producers, workers) = (&self.producers, &self.workers);
        let (first, second, other) = match role {
            Role::Producer => (producers, None, Some((workers, "token is not a producer's"))),
            Role::Worker if self.producers_may_work => (workers, Some(producers), None),
            Role::Worker => (workers, None, Some((producers, "token is not a worker's"))),
            Role::Any => (producers, Some(workers), None),
        };
        let mut refusal = Refusal::new(Reason::Unknown, "no validator for this role").into();
        for validators in [Some(first), second].into_iter().flatten() {
            match validators.check(&presented).await {
                Err(next) if !is_final(&next) => refusal = weightier(refusal, next),
                decided => return decided,
            }
        }
        match (other, &refusal) {
            (Some((validators, why)), AuthError::Invalid(_))
                if validators.check(&presented).await.is_ok() =>
            {
                Err(AuthError::Forbidden(why))
            }
            _ => Err(refusal),
        }
    }
}

/// A token as it came.
struct Presented<'a> {
    digest: TokenDigest,
    jwt: Result<Jwt<'a>, Refusal>,
    now: u64,
}

/// The validators of one role.
struct Validators {
    kind: Kind,
    tokens: StaticTokens,
    jwts: Vec<JwtValidator>,
}

impl Validators {
    fn new(config: &AuthConfig, kind: Kind, caches: &mut Caches) -> Result<Validators, String> {
        let tokens = StaticTokens::new(&config.static_tokens, kind)?;
        let mut jwts = Vec::with_capacity(config.jwt.len());
        for (index, jwt) in config.jwt.iter().enumerate() {
            jwts.push(validator(jwt, caches).map_err(|why| format!("jwt[{index}]: {why}"))?);
        }
        Ok(Validators { kind, tokens, jwts })
    }

    /// Static tokens first, for they cost least; then every validator of the issuer that the token names.
    /// The first that accepts, or knows the token but forbids it, decides.
    async fn check(&self, presented: &Presented<'_>) -> Result<Principal, AuthError> {
        if let Some(principal) = self.tokens.find(&presented.digest) {
            return Ok(principal.clone());
        }
        let jwt = presented.jwt.as_ref().map_err(|refusal| AuthError::Invalid(*refusal))?;
        let mut refusal = Refusal::new(Reason::Issuer, "no validator for this issuer").into();
        for validator in self.jwts.iter().filter(|validator| validator.is_for(jwt)) {
            match validator.validate(jwt, self.kind, presented.now).await {
                Err(next) if !is_final(&next) => refusal = weightier(refusal, next),
                decided => return decided,
            }
        }
        Err(refusal)
    }
}

/// Whether a refusal needs no second opinion: the token is known, and forbidden.
fn is_final(refusal: &AuthError) -> bool {
    matches!(refusal, AuthError::Forbidden(_))
}

/// What to say when both refuse: a token that one of them could not judge may be good; otherwise what says more.
fn weightier(first: AuthError, next: AuthError) -> AuthError {
    match (first, next) {
        (AuthError::Unavailable, _) => AuthError::Unavailable,
        (AuthError::Invalid(first), AuthError::Invalid(next)) => first.or(next).into(),
        (_, next) => next,
    }
}

fn validator(jwt: &JwtConfig, caches: &mut Caches) -> Result<JwtValidator, String> {
    if jwt.issuer.is_empty() {
        return Err("issuer is missing".to_owned());
    }
    if jwt.audience.is_empty() {
        return Err("audience is missing".to_owned());
    }
    let source = Source::new(&jwt.issuer, jwt.jwks_url.as_deref())?;
    let keys = caches.get(source)?;
    Ok(JwtValidator::new(jwt.issuer.clone(), jwt.audience.clone(), keys))
}

/// One cache for each source: validators that differ in audience only share their keys, and their fetches.
#[derive(Default)]
struct Caches {
    client: Option<Client>,
    by_source: HashMap<Source, Arc<KeyCache>>,
}

impl Caches {
    fn get(&mut self, source: Source) -> Result<Arc<KeyCache>, String> {
        if let Some(cache) = self.by_source.get(&source) {
            return Ok(Arc::clone(cache));
        }
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(client()?).clone(),
        };
        let cache = Arc::new(KeyCache::new(client, source.clone()));
        self.by_source.insert(source, Arc::clone(&cache));
        Ok(cache)
    }
}
