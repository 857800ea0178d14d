//! Heartbeat: a worker extends its lease.

use crate::command::Heartbeat;
use crate::kv::{Kv, KvError};
use crate::lease::Holder;
use crate::limits::{LEASE_MS_MAX, LEASE_MS_MIN};
use crate::reply::{Rejection, Reply};
use crate::step::Step;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn heartbeat(
        &mut self,
        command: &Heartbeat,
        holder: Holder<'_>,
    ) -> Result<Reply, KvError> {
        let (mut row, _) = match self.owned(&command.tenant, command.id, holder)? {
            Ok(owned) => owned,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        if !(LEASE_MS_MIN..=LEASE_MS_MAX).contains(&command.extend) {
            let rejection = Rejection::InvalidLease { min: LEASE_MS_MIN, max: LEASE_MS_MAX };
            return Ok(Reply::Rejected(rejection));
        }
        let seq = command.id.seq();
        let until = row.latest_end(self.now.saturating_add(command.extend));
        if let Some(lease) = &mut row.lease {
            self.state.leases.remove(&(lease.until, seq));
            self.state.leases.insert((until, seq));
            lease.until = until;
        }
        row.updated_at = self.wall;
        self.save(seq, &row);
        let lease_until = self.moment().date_of(until);
        Ok(Reply::Extended { lease_until, cancel_requested: row.cancel_requested })
    }
}
