//! Invariant 10: no operation crosses tenants.

use super::{Histories, Violation};

/// History: only the tenant that created a task is shown it or can change it, and workers receive what that tenant
/// sent.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let mut say = |text: String| found.push(Violation::new(10, format!("task {id}: {text}")));
        let owner = history.created.as_ref().map(|created| created.tenant.as_str());
        if let Some(created) = &history.created
            && (created.seen.tenant != created.tenant
                || created.seen.payload != created.wanted.payload)
        {
            say(format!("tenant {} was shown a different task than it created", created.tenant));
        }
        for claim in &history.claims {
            if owner.is_some_and(|owner| owner != claim.tenant) || claim.seen.tenant != claim.tenant
            {
                say(format!(
                    "{} of tenant {} claimed it, it belongs to {}",
                    claim.worker,
                    claim.tenant,
                    owner.unwrap_or(&claim.seen.tenant)
                ));
            }
            let sent = (claim.tenant.clone(), claim.seen.payload);
            if histories.payloads.get(&sent).is_none_or(|invoked| *invoked >= claim.done) {
                say(format!("tenant {} received a payload that it never sent", claim.tenant));
            }
        }
        for op in history.ops.iter().filter(|op| op.acked().is_some()) {
            let seen = history.seen().map(|seen| seen.tenant.as_str());
            if owner.or(seen).is_some_and(|owner| owner != op.tenant) {
                say(format!("tenant {} was allowed to {:?}", op.tenant, op.verb));
            }
        }
    }
}
