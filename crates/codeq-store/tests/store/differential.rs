//! Random histories on the store and on the store in memory, with checkpoints, rewrites and crashes in between.

use codeq_core::kv::{Direction, Key, Kv, KvRead, Table};
use codeq_store::{MemStore, Store, StoreJob, check};
use proptest::prelude::*;

use crate::sim_disk::SimDisk;
use crate::{contents, create, open, path, value};

#[derive(Debug, Clone)]
enum Step {
    Put(Table, Key, u16),
    /// A new key, drawn in an order that falls between older keys.
    Insert(Table),
    Delete(Table, Key),
    /// Deletes the rows of a range, which makes dense runs of tombstones.
    DeleteRange(Table, Key, Key),
    DeleteInserted(Table, usize),
    Scan(Table, Key, Key, bool, usize),
    Freeze,
    Run,
    Maintain,
    Reopen,
    PowerCut(u64),
}

fn table() -> impl Strategy<Value = Table> {
    prop::sample::select(vec![Table::Body, Table::Pending, Table::Meta])
}

fn step() -> impl Strategy<Value = Step> {
    // Few keys, so that one history deletes, writes and deletes the same row again.
    let key = 0..24u128;
    prop_oneof![
        8 => (table(), key.clone(), any::<u16>()).prop_map(|(t, k, v)| Step::Put(t, k, v)),
        8 => table().prop_map(Step::Insert),
        4 => (table(), key.clone()).prop_map(|(t, k)| Step::Delete(t, k)),
        2 => (table(), key.clone(), key.clone()).prop_map(|(t, a, b)| Step::DeleteRange(t, a, b)),
        4 => (table(), any::<usize>()).prop_map(|(t, n)| Step::DeleteInserted(t, n)),
        4 => (table(), key.clone(), key, any::<bool>(), 0..20usize)
            .prop_map(|(t, a, b, r, n)| Step::Scan(t, a, b, r, n)),
        3 => Just(Step::Freeze),
        3 => Just(Step::Run),
        2 => Just(Step::Maintain),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::PowerCut),
    ]
}

struct Twins {
    disk: SimDisk,
    store: Store,
    model: MemStore,
    /// The model as of the last checkpoint, and as of the one in progress.
    durable: (u64, MemStore),
    pending: Option<(u64, MemStore)>,
    job: Option<StoreJob>,
    inserted: Vec<Key>,
    position: u64,
}

impl Twins {
    fn run_job(&mut self) {
        if let Some(job) = self.job.take() {
            self.store.take_back(&mut job.run()).unwrap();
            if let Some(done) = self.pending.take_if(|(at, _)| *at == self.store.position()) {
                self.durable = done;
            }
        }
    }

    fn reopened(&mut self, disk: SimDisk) {
        self.job = None;
        // Closes the old one first: an old store that is dropped later shortens the file under the new one.
        self.store = create(&SimDisk::new());
        self.store = open(&disk);
        self.disk = disk;
        self.pending = None;
        self.model = self.durable.1.clone();
        assert_eq!(self.store.position(), self.durable.0);
        assert_eq!(contents(&self.store), contents(&self.model));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Put(table, key, number) => {
                // Sizes from nothing to more than a page.
                let text = format!("{number}").repeat(usize::from(number % 1200));
                self.store.put(table, key, value(&text));
                self.model.put(table, key, value(&text));
            }
            Step::Insert(table) => {
                // Not 0, which a put may have used: an inserted key is one that was never in the table.
                let key = (self.inserted.len() as u64 + 1).reverse_bits().into();
                self.inserted.push(key);
                self.store.insert(table, key, value("inserted"));
                self.model.insert(table, key, value("inserted"));
            }
            Step::Delete(table, key) => {
                self.store.delete(table, key);
                self.model.delete(table, key);
            }
            Step::DeleteRange(table, from, to) => {
                for key in from..to {
                    self.store.delete(table, key);
                    self.model.delete(table, key);
                }
            }
            Step::DeleteInserted(table, number) => {
                if let Some(place) = number.checked_rem(self.inserted.len()) {
                    self.store.delete(table, self.inserted[place]);
                    self.model.delete(table, self.inserted[place]);
                }
            }
            Step::Scan(table, from, to, reverse, limit) => {
                let direction = if reverse { Direction::Reverse } else { Direction::Forward };
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                self.store.scan(table, from, to, direction, limit, &mut found).unwrap();
                self.model.scan(table, from, to, direction, limit, &mut expected).unwrap();
                assert_eq!(found, expected);
                assert_eq!(
                    self.store.get(table, from).unwrap(),
                    self.model.get(table, from).unwrap()
                );
            }
            Step::Freeze => {
                self.position += 1;
                if let Some(job) = self.store.freeze(self.position) {
                    self.job = Some(job);
                    self.pending = Some((self.position, self.model.clone()));
                }
            }
            Step::Run => self.run_job(),
            Step::Maintain => {
                if let Some(job) = self.store.maintain() {
                    self.store.take_back(&mut job.run()).unwrap();
                }
            }
            Step::Reopen => self.reopened(self.disk.clone()),
            Step::PowerCut(seed) => {
                let disk = self.disk.after_power_cut(seed);
                self.reopened(disk);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_store_behaves_like_the_store_in_memory(steps in prop::collection::vec(step(), 1..250)) {
        let disk = SimDisk::new();
        let store = create(&disk);
        let mut twins = Twins {
            disk,
            store,
            model: MemStore::new(),
            durable: (0, MemStore::new()),
            pending: None,
            job: None,
            inserted: Vec::new(),
            position: 0,
        };
        for step in steps {
            twins.take(step);
        }
        prop_assert_eq!(contents(&twins.store), contents(&twins.model));
        twins.run_job();
        prop_assert_eq!(contents(&twins.store), contents(&twins.model));
        let Twins { disk, store, durable, .. } = twins;
        drop(store);
        let report = check(&disk.shared(), path()).unwrap();
        prop_assert_eq!(report.position, durable.0);
    }
}
