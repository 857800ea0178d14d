//! The last entry that a node's rows include, and who waits for a later one.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The last entry that a node's rows include, and who waits for a later one.
///
/// A watch channel would do the same, but wakes those who wait in an order that a simulation cannot repeat.
pub struct AppliedIndex(Mutex<Progress>);

struct Progress {
    index: Option<u64>,
    waiting: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
}

impl AppliedIndex {
    pub(crate) fn new(index: Option<u64>) -> AppliedIndex {
        AppliedIndex(Mutex::new(Progress { index, waiting: BTreeMap::new() }))
    }

    /// The last entry that the rows include.
    pub fn index(&self) -> Option<u64> {
        self.0.lock().index
    }

    /// Records that the rows include the entry with this index, and wakes those who wait for it.
    pub(crate) fn reach(&self, index: u64) {
        let mut progress = self.0.lock();
        progress.index = progress.index.max(Some(index));
        while let Some(first) = progress.waiting.first_entry()
            && *first.key() <= index
        {
            for waiting in first.remove() {
                // The read may have timed out.
                let _ = waiting.send(());
            }
        }
    }

    /// Waits until the rows include the entry with this index.
    pub(crate) async fn reached(&self, index: u64) {
        let reached = {
            let mut progress = self.0.lock();
            if progress.index >= Some(index) {
                return;
            }
            let (sender, reached) = oneshot::channel();
            // On a node that applies nothing more, reads time out one after the other: remove what they left.
            if let Some(mut first) = progress.waiting.first_entry() {
                first.get_mut().retain(|waiting| !waiting.is_closed());
                if first.get().is_empty() {
                    first.remove();
                }
            }
            progress.waiting.entry(index).or_default().push(sender);
            reached
        };
        // The sender is dropped only with the node.
        let _ = reached.await;
    }
}
