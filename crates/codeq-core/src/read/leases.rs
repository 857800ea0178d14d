//! Who holds leases.

use std::ops::Bound;
use std::sync::Arc;

use crate::keys::{self, Seq};
use crate::kv::{Direction, KvError, KvRead, Table};
use crate::limits::LIST_SLICE_MAX;
use crate::place::Place;
use crate::read::Reader;
use crate::rows::TaskRow;

/// The holders of some of a tenant's leases.
#[derive(Debug, Clone, Default)]
pub struct LeasePage {
    /// The worker of each lease.
    pub workers: Vec<Arc<str>>,
    /// The queue and the task number after which to continue; `None` on the last page.
    pub next: Option<(Arc<str>, Seq)>,
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// The holders of a tenant's leases after a queue and a task number. Reads at most [`LIST_SLICE_MAX`] tasks and
    /// queues, so a page may be short or empty without being the last.
    pub fn leases(
        &self,
        tenant: &str,
        from: Option<&(Arc<str>, Seq)>,
    ) -> Result<LeasePage, KvError> {
        let mut page = LeasePage::default();
        let mut look = LIST_SLICE_MAX;
        let start = from.map_or(Bound::Unbounded, |(queue, _)| Bound::Included(&**queue));
        let mut rows = Vec::new();
        for (name, id) in self.state.queues_from(tenant, start) {
            let after = from.filter(|(queue, _)| queue == name).map_or(Seq(0), |(_, after)| *after);
            if look < 2 {
                page.next = Some((Arc::clone(name), after));
                break;
            }
            // An idle queue costs a look too: there may be ten thousand of them.
            look -= 1;
            if self.state.queue_row(id).is_none_or(|row| row.counts.in_progress == 0) {
                continue;
            }
            let first = keys::index(id, Place::InProgress, after.next());
            let last = keys::index(id, Place::InProgress, Seq::MAX);
            let (table, forward) = (Table::Index, Direction::Forward);
            rows.clear();
            self.kv.scan(table, first, last, forward, look, &mut rows)?;
            for (key, _) in &rows {
                let row = TaskRow::load(self.kv, keys::task(keys::seq_of(*key)))?;
                page.workers.extend(row.and_then(|row| row.lease).map(|lease| lease.worker));
            }
            if rows.len() == look
                && let Some((key, _)) = rows.last()
            {
                page.next = Some((Arc::clone(name), keys::seq_of(*key)));
                break;
            }
            look -= rows.len();
        }
        Ok(page)
    }
}
