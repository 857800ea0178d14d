//! Limits calls in flight to one IP address and port, whatever host names led there.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// An address, counted for all tenants and for each one.
type Key = (SocketAddr, Option<Arc<str>>);

/// Counts calls in flight. Clones share the counts.
#[derive(Clone)]
pub(crate) struct PerAddress {
    most: usize,
    counts: Arc<Mutex<HashMap<Key, usize>>>,
}

/// A call in flight. It counts at every address that it may reach, until this is dropped.
pub(crate) struct CallInFlight {
    counts: Arc<Mutex<HashMap<Key, usize>>>,
    keys: Vec<Key>,
}

impl PerAddress {
    /// Allows `most` calls to one address.
    pub fn new(most: usize) -> PerAddress {
        PerAddress { most, counts: Arc::default() }
    }

    /// Counts a call at those of its addresses that have room, and returns them: it may dial no others. None if no
    /// address has room. A tenant gets at most three quarters of an address, because other tenants may have receivers
    /// at the same one, for example behind a shared proxy.
    pub fn take(
        &self,
        tenant: &Arc<str>,
        addresses: Vec<SocketAddr>,
    ) -> Option<(CallInFlight, Vec<SocketAddr>)> {
        let mut counts = self.counts.lock();
        let share = self.most - self.most / 4;
        let has_room = |address: &SocketAddr| {
            let count = |tenant| counts.get(&(*address, tenant)).copied().unwrap_or(0);
            count(None) < self.most && count(Some(Arc::clone(tenant))) < share
        };
        let open: Vec<SocketAddr> = addresses.into_iter().filter(has_room).collect();
        if open.is_empty() {
            return None;
        }
        let both = |address: &SocketAddr| [(*address, None), (*address, Some(Arc::clone(tenant)))];
        let keys: Vec<Key> = open.iter().flat_map(both).collect();
        for key in &keys {
            *counts.entry(key.clone()).or_default() += 1;
        }
        Some((CallInFlight { counts: Arc::clone(&self.counts), keys }, open))
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        for key in &self.keys {
            if let Some(count) = counts.get_mut(key) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    counts.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn an_address_has_its_slots_and_no_tenant_all_of_them() {
        let calls = PerAddress::new(8);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let take = |tenant, port| calls.take(tenant, vec![address(port)]).map(|(call, _)| call);
        let of_a: Vec<CallInFlight> = std::iter::from_fn(|| take(&a, 1)).collect();
        let of_b: Vec<CallInFlight> = std::iter::from_fn(|| take(&b, 1)).collect();
        assert_eq!((of_a.len(), of_b.len()), (6, 2));
        // A full address is left out.
        let (_call, open) = calls.take(&a, vec![address(1), address(2)]).unwrap();
        assert_eq!(open, [address(2)]);
        drop(of_a);
        assert!(take(&b, 1).is_some());
        drop((of_b, _call));
        assert!(calls.counts.lock().is_empty());
    }

    #[test]
    fn a_tenant_may_use_the_only_slot_of_an_address() {
        let calls = PerAddress::new(1);
        let tenant: Arc<str> = "a".into();
        let call = calls.take(&tenant, vec![address(1)]).unwrap();
        assert!(calls.take(&tenant, vec![address(1)]).is_none());
        drop(call);
        assert!(calls.take(&tenant, vec![address(1)]).is_some());
    }
}
