//! Invariant 10: no operation crosses tenants.

use super::{Histories, Violation};

/// Over the history: whoever was shown or let change a task belongs to the tenant that made it, and what
/// was handed out is what that tenant sent.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let mut say = |text: String| found.push(Violation::new(10, format!("task {id}: {text}")));
        let owner = story.created.as_ref().map(|created| created.tenant.as_str());
        if let Some(created) = &story.created
            && (created.seen.tenant != created.tenant
                || created.seen.payload != created.wanted.payload)
        {
            say(format!("tenant {} was shown another task than it made", created.tenant));
        }
        for claim in &story.claims {
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
                say(format!("tenant {} was handed a payload that it never sent", claim.tenant));
            }
        }
        for deed in story.deeds.iter().filter(|deed| deed.acked().is_some()) {
            let seen = story.seen().map(|seen| seen.tenant.as_str());
            if owner.or(seen).is_some_and(|owner| owner != deed.tenant) {
                say(format!("tenant {} was let to {:?}", deed.tenant, deed.verb));
            }
        }
    }
}
