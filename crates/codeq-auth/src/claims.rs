//! The claims of a JSON Web Token: whether it is valid, and which caller it names.
//!
//! Pure: the time is an argument. A claim that is used must have its exact type: one of the wrong
//! type, including `null`, is refused and never treated as absent. Only `role` is ignored unless it
//! is a string.

use std::sync::Arc;

use codeq_core::names::check_tenant;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::grants::{AcceptedBy, Grants, event_types, principal};
use crate::principal::{EventTypes, Principal, is_subject};
use crate::refusal::{AuthError, Reason, Refusal};
use crate::settings::is_group;

/// Tolerated clock skew of an issuer, in seconds.
pub const SKEW_SECONDS: u64 = 60;
/// The end of the year 9999: a later date is a mistake and could overflow elsewhere.
const DATE_MAX: u64 = 253_402_300_799;

/// The claims this server uses. A duplicate claim does not parse.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Claims {
    iss: MaybeAbsent<Value>,
    aud: MaybeAbsent<Value>,
    exp: MaybeAbsent<Value>,
    nbf: MaybeAbsent<Value>,
    iat: MaybeAbsent<Value>,
    sub: MaybeAbsent<Value>,
    #[serde(rename = "client_id")]
    client_id: MaybeAbsent<Value>,
    azp: MaybeAbsent<Value>,
    tid: MaybeAbsent<Value>,
    tenant_id: MaybeAbsent<Value>,
    #[serde(rename = "tenant_id")]
    tenant_id_snake: MaybeAbsent<Value>,
    organization_id: MaybeAbsent<Value>,
    #[serde(rename = "organization_id")]
    organization_id_snake: MaybeAbsent<Value>,
    event_types: MaybeAbsent<Value>,
    scope: MaybeAbsent<Value>,
    role: MaybeAbsent<Value>,
    worker_group: MaybeAbsent<Value>,
}

/// A field that may be absent. Serde would read `null` as absent, too; here it is a value.
#[derive(Default)]
pub(crate) struct MaybeAbsent<T>(pub Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MaybeAbsent<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(|value| MaybeAbsent(Some(value)))
    }
}

impl Claims {
    /// Whether this issuer issued the token.
    pub fn is_of(&self, issuer: &str) -> bool {
        self.iss.0.as_ref().and_then(Value::as_str) == Some(issuer)
    }

    /// Whether the token is for this audience and valid at `now`, in Unix seconds.
    pub fn check(&self, audience: &str, now: u64) -> Result<(), Refusal> {
        let aud = self.aud.0.as_ref().ok_or_else(|| wrong("aud is missing"))?;
        if !names_audience(aud, audience) {
            return Err(Refusal::new(Reason::Audience, "aud names another audience"));
        }
        let exp = self.expires_at().map_err(wrong)?;
        if now >= exp.saturating_add(SKEW_SECONDS) {
            return Err(Refusal::new(Reason::Expired, "exp is past"));
        }
        let latest = now.saturating_add(SKEW_SECONDS);
        if let Some(nbf) = &self.nbf.0
            && date(nbf).ok_or_else(|| wrong("nbf is not a date"))? > latest
        {
            return Err(Refusal::new(Reason::NotYetValid, "nbf is in the future"));
        }
        if let Some(iat) = &self.iat.0
            && date(iat).ok_or_else(|| wrong("iat is not a date"))? > latest
        {
            return Err(Refusal::new(Reason::NotYetValid, "iat is in the future"));
        }
        Ok(())
    }

    /// The caller. Use only after verifying the signature.
    pub fn principal(&self, accepted_by: AcceptedBy) -> Result<Principal, AuthError> {
        let wrong = |detail| wrong(detail).verified();
        let named = self.tenant()?;
        let subject = self.subject(accepted_by, named).map_err(wrong)?;
        let tenant = named.unwrap_or(subject);
        check_tenant(tenant).map_err(|_| wrong("tenant is empty, too long or not printable"))?;
        let event_types = match accepted_by {
            AcceptedBy::Worker => self.event_types().map_err(wrong)?,
            AcceptedBy::Producer | AcceptedBy::ProducerAsWorker => EventTypes::default(),
        };
        let grants = self.grants().map_err(wrong)?;
        Ok(Principal {
            worker_group: self.worker_group().map_err(wrong)?,
            expires_at: Some(self.expires_at().map_err(wrong)?),
            ..principal(accepted_by, tenant, subject, grants, event_types)
        })
    }

    fn expires_at(&self) -> Result<u64, &'static str> {
        date(self.exp.0.as_ref().ok_or("exp is missing")?).ok_or("exp is not a date")
    }

    /// `sub`. Many providers issue tokens without one to services: for such a producer token, the client id or else the
    /// tenant. A worker needs its own `sub`, because it holds leases.
    fn subject<'a>(
        &'a self,
        accepted_by: AcceptedBy,
        tenant: Option<&'a str>,
    ) -> Result<&'a str, &'static str> {
        let client = self
            .client_id
            .0
            .as_ref()
            .or(self.azp.0.as_ref())
            .filter(|_| accepted_by != AcceptedBy::Worker);
        let subject = match (&self.sub.0, client) {
            (Some(sub), _) => sub.as_str().ok_or("sub is not a string")?,
            (None, Some(client)) => client.as_str().ok_or("the client id is not a string")?,
            (None, None) => {
                tenant.filter(|_| accepted_by != AcceptedBy::Worker).ok_or("sub is missing")?
            }
        };
        if !is_subject(subject) {
            return Err("the subject is empty, too long or not printable");
        }
        Ok(subject)
    }

    fn tenant(&self) -> Result<Option<&str>, AuthError> {
        let mut tenant: Option<&str> = None;
        let mut disagree = false;
        for claim in [
            &self.tid.0,
            &self.tenant_id.0,
            &self.tenant_id_snake.0,
            &self.organization_id.0,
            &self.organization_id_snake.0,
        ]
        .into_iter()
        .flatten()
        {
            let name = claim.as_str().ok_or_else(|| wrong("tenant is not a string").verified())?;
            disagree |= *tenant.get_or_insert(name) != name;
        }
        if disagree {
            return Err(AuthError::TenantsDisagree);
        }
        Ok(tenant)
    }

    fn event_types(&self) -> Result<EventTypes, &'static str> {
        const WRONG: &str = "eventTypes is not a list of strings";
        match &self.event_types.0 {
            None => Ok(EventTypes::default()),
            Some(Value::String(name)) => event_types(std::iter::once(name.as_str())),
            Some(Value::Array(names)) => event_types(strings(names).ok_or(WRONG)?.into_iter()),
            Some(_) => Err(WRONG),
        }
    }

    fn grants(&self) -> Result<Grants, &'static str> {
        const WRONG: &str = "scope is not a string or a list of strings";
        let names: Vec<&str> = match &self.scope.0 {
            None => Vec::new(),
            Some(Value::String(text)) => text.split(' ').collect(),
            Some(Value::Array(names)) => strings(names).ok_or(WRONG)?,
            Some(_) => return Err(WRONG),
        };
        let mut grants = Grants::default();
        for name in names {
            // Ignore scopes of other services.
            let _ours = grants.add(name);
        }
        let role = self.role.0.as_ref().and_then(Value::as_str);
        grants.admin |= role.is_some_and(|role| role.eq_ignore_ascii_case("ADMIN"));
        Ok(grants)
    }

    fn worker_group(&self) -> Result<Option<Arc<str>>, &'static str> {
        let Some(claim) = &self.worker_group.0 else { return Ok(None) };
        let group = claim.as_str().ok_or("workerGroup is not a string")?;
        if !is_group(group) {
            return Err("workerGroup is empty, too long or not printable");
        }
        Ok(Some(Arc::from(group)))
    }
}

fn wrong(detail: &'static str) -> Refusal {
    Refusal::new(Reason::Claims, detail)
}

fn names_audience(claim: &Value, audience: &str) -> bool {
    match claim {
        Value::String(name) => name == audience,
        Value::Array(names) => strings(names).is_some_and(|names| names.contains(&audience)),
        _ => false,
    }
}

fn strings(values: &[Value]) -> Option<Vec<&str>> {
    values.iter().map(Value::as_str).collect()
}

/// Parses a `NumericDate` into whole seconds. RFC 7519 allows fractions; they are truncated.
fn date(claim: &Value) -> Option<u64> {
    let number = claim.as_number()?;
    let seconds = match number.as_u64() {
        Some(seconds) => seconds,
        // The cast saturates, so an out-of-range value stays out of range.
        None => number.as_f64().filter(|seconds| *seconds >= 0.0)? as u64,
    };
    (seconds <= DATE_MAX).then_some(seconds)
}
