//! Authenticates tokens by trying the configured validators in turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use reqwest::Client;
use tokio::sync::watch;

use crate::bearer::check_token;
use crate::fetch::{Source, client};
use crate::grants::AcceptedBy;
use crate::jwt::{Jwt, JwtValidator};
use crate::key_cache::KeyCache;
use crate::principal::{Principal, Role};
use crate::refusal::{AuthError, Reason, Refusal};
use crate::settings::{AuthConfig, JwtConfig, Settings};
use crate::static_tokens::{StaticTokens, TokenDigest, digest};

/// A server's current validators; replaced on reload.
pub struct Authenticator {
    validators: ArcSwap<ValidatorSet>,
    /// Notified on every replacement.
    replaced: watch::Sender<()>,
}

/// The validators for one set of settings.
pub struct ValidatorSet {
    producers: Validators,
    workers: Validators,
    producers_may_work: bool,
    caches: HashMap<Source, Arc<KeyCache>>,
}

impl ValidatorSet {
    /// Fetches nothing yet; reuses key caches from `known`.
    fn new(
        settings: &Settings,
        known: HashMap<Source, Arc<KeyCache>>,
    ) -> Result<ValidatorSet, String> {
        let mut caches = Caches { known, ..Caches::default() };
        let producers_may_work = settings.producers_may_work;
        let accepted_by =
            if producers_may_work { AcceptedBy::ProducerAsWorker } else { AcceptedBy::Producer };
        let producers = Validators::new(&settings.producers, accepted_by, &mut caches)
            .map_err(|why| format!("producerAuth: {why}"))?;
        let workers = Validators::new(&settings.workers, AcceptedBy::Worker, &mut caches)
            .map_err(|why| format!("workerAuth: {why}"))?;
        Ok(ValidatorSet { producers, workers, producers_may_work, caches: caches.by_source })
    }

    /// The caller behind a fixed token, if the role accepts it.
    fn fixed(&self, digest: &TokenDigest, role: Role) -> Option<&Principal> {
        let (first, second) = match role {
            Role::Producer => (&self.producers, None),
            Role::Worker if self.producers_may_work => (&self.workers, Some(&self.producers)),
            Role::Worker => (&self.workers, None),
            Role::Any => (&self.producers, Some(&self.workers)),
        };
        first.tokens.find(digest).or_else(|| second?.tokens.find(digest))
    }
}

impl Authenticator {
    /// Builds the validators without fetching keys. The error names what is wrong with the settings.
    pub fn new(settings: &Settings) -> Result<Authenticator, String> {
        let validators = ArcSwap::from_pointee(ValidatorSet::new(settings, HashMap::new())?);
        Ok(Authenticator { validators, replaced: watch::Sender::new(()) })
    }

    /// Builds validators for new settings, reusing the keys already loaded.
    pub fn prepare(&self, settings: &Settings) -> Result<ValidatorSet, String> {
        ValidatorSet::new(settings, self.validators.load().caches.clone())
    }

    /// Switches to new validators. Pending [`Authenticator::revoked`] calls check their tokens again.
    pub fn replace(&self, validators: ValidatorSet) {
        self.validators.store(Arc::new(validators));
        self.replaced.send_replace(());
    }

    /// Returns when a fixed token no longer stands for this caller, because a reload removed it or
    /// changed its permissions. Never returns for other tokens. The caller must have authenticated with this token.
    pub async fn revoked(&self, token: &str, role: Role, caller: &Principal) {
        let mut replaced = self.replaced.subscribe();
        let digest = digest(token);
        if Jwt::parse(token).is_ok() && self.validators.load().fixed(&digest, role).is_none() {
            return std::future::pending().await;
        }
        while self.validators.load().fixed(&digest, role) == Some(caller) {
            // The sender lives as long as `self`.
            let _ = replaced.changed().await;
        }
    }

    /// Loads the keys of all identity providers, so that callers need not wait for them. A provider that does not answer
    /// is logged, and tried again when a token needs it.
    pub fn warm(&self) -> impl Future<Output = ()> + use<> {
        let caches: Vec<_> = self.validators.load().caches.values().map(Arc::clone).collect();
        async move {
            let mut loads = tokio::task::JoinSet::new();
            for cache in caches {
                loads.spawn(async move { cache.warm().await });
            }
            while loads.join_next().await.is_some() {}
        }
    }

    /// Waits until no fetch is in progress.
    #[cfg(test)]
    pub(crate) async fn settled(&self) {
        for cache in self.validators.load_full().caches.values() {
            cache.settled().await;
        }
    }

    /// Authenticates the bearer of a token. Tries the validators of `role` first; a token accepted
    /// only by the other role's validators is [`AuthError::WrongKind`].
    pub async fn authenticate(&self, token: &str, role: Role) -> Result<Principal, AuthError> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.authenticate_at(token, role, since_epoch.as_secs()).await
    }

    /// Like [`Authenticator::authenticate`], at a given time in Unix seconds.
    pub(crate) async fn authenticate_at(
        &self,
        token: &str,
        role: Role,
        now: u64,
    ) -> Result<Principal, AuthError> {
        check_token(token).map_err(|why| Refusal::new(Reason::Malformed, why))?;
        let presented = Presented { digest: digest(token), jwt: Jwt::parse(token), now };
        let validators = self.validators.load_full();
        let (producers, workers) = (&validators.producers, &validators.workers);
        let (first, second, other) = match role {
            Role::Producer => (producers, None, Some((workers, "token is not a producer's"))),
            Role::Worker if validators.producers_may_work => (workers, Some(producers), None),
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
                Err(AuthError::WrongKind(why))
            }
            _ => Err(refusal),
        }
    }
}

/// A token as presented, with the time to check it at.
struct Presented<'a> {
    digest: TokenDigest,
    jwt: Result<Jwt<'a>, Refusal>,
    now: u64,
}

/// The validators of one role.
struct Validators {
    accepted_by: AcceptedBy,
    tokens: StaticTokens,
    jwts: Vec<JwtValidator>,
}

impl Validators {
    fn new(
        config: &AuthConfig,
        accepted_by: AcceptedBy,
        caches: &mut Caches,
    ) -> Result<Validators, String> {
        let tokens = StaticTokens::new(&config.static_tokens, accepted_by)?;
        let mut jwts = Vec::with_capacity(config.jwt.len());
        for (index, jwt) in config.jwt.iter().enumerate() {
            jwts.push(validator(jwt, caches).map_err(|why| format!("jwt[{index}]: {why}"))?);
        }
        Ok(Validators { accepted_by, tokens, jwts })
    }

    /// Checks fixed tokens first, as they are cheapest, then every validator for the token's
    /// issuer. The first one that accepts the token, or recognises but forbids it, decides.
    async fn check(&self, presented: &Presented<'_>) -> Result<Principal, AuthError> {
        if let Some(principal) = self.tokens.find(&presented.digest) {
            return Ok(principal.clone());
        }
        let jwt = presented.jwt.as_ref().map_err(|refusal| AuthError::Invalid(*refusal))?;
        let mut refusal = Refusal::new(Reason::Issuer, "no validator for this issuer").into();
        for validator in self.jwts.iter().filter(|validator| validator.is_for(jwt)) {
            match validator.validate(jwt, self.accepted_by, presented.now).await {
                Err(next) if !is_final(&next) => refusal = weightier(refusal, next),
                decided => return decided,
            }
        }
        Err(refusal)
    }
}

/// Whether no other validator can overrule this refusal: the token is known and forbidden.
fn is_final(refusal: &AuthError) -> bool {
    matches!(refusal, AuthError::WrongKind(_) | AuthError::TenantsDisagree)
}

/// Chooses between two refusals. "Unavailable" wins, since the token may be good; otherwise the more specific one.
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
    let source = Source::new(&jwt.issuer, jwt.jwks_url.as_deref());
    let source = source.map_err(|why| match &jwt.jwks_url {
        Some(_) => format!("jwksUrl {why}"),
        None => format!("issuer {why}, and there is no jwksUrl"),
    })?;
    let keys = caches.get(source)?;
    Ok(JwtValidator::new(jwt.issuer.clone(), jwt.audience.clone(), keys))
}

/// One cache per source: validators that differ only in audience share keys and fetches.
#[derive(Default)]
struct Caches {
    client: Option<Client>,
    by_source: HashMap<Source, Arc<KeyCache>>,
    /// Caches of the previous settings.
    known: HashMap<Source, Arc<KeyCache>>,
}

impl Caches {
    fn get(&mut self, source: Source) -> Result<Arc<KeyCache>, String> {
        if let Some(cache) = self.by_source.get(&source) {
            return Ok(Arc::clone(cache));
        }
        if let Some(cache) = self.known.remove(&source) {
            self.by_source.insert(source, Arc::clone(&cache));
            return Ok(cache);
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
