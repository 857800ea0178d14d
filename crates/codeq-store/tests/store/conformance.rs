//! What every store must do, whatever its implementation. Each test runs for the store in memory, for a store that
//! never checkpoints, and for stores that checkpoint between any two writes, with the checkpoint pending, done, or
//! done and followed by a reopen.

use std::borrow::Cow;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, Kv, KvError, KvRead, Table};
use codeq_store::{MemStore, Store, StoreJob};

use crate::sim_disk::SimDisk;
use crate::{checkpoint, create, open, rows, value};

/// What happens to a store between two writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    /// The rows are frozen; the job only runs at the next freeze.
    LateFlush,
    Flush,
    Reopen,
}

struct Interrupted {
    disk: SimDisk,
    store: Option<Store>,
    job: Option<StoreJob>,
    between: Between,
    position: u64,
}

impl Interrupted {
    fn new(between: Between) -> Self {
        let disk = SimDisk::new();
        let store = Some(create(&disk));
        Interrupted { disk, store, job: None, between, position: 0 }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn interrupt(&mut self) {
        self.position += 1;
        let store = self.store.as_mut().unwrap();
        match self.between {
            Between::Nothing => {}
            Between::LateFlush => {
                if let Some(job) = self.job.take() {
                    store.take_back(&mut job.run()).unwrap();
                }
                self.job = store.freeze(self.position);
            }
            Between::Flush => checkpoint(store, self.position),
            Between::Reopen => {
                checkpoint(store, self.position);
                drop(self.store.take());
                self.store = Some(open(&self.disk));
                assert_eq!(self.store().position(), self.position);
            }
        }
    }
}

impl KvRead for Interrupted {
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError> {
        self.store().borrow(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: Key,
        to: Key,
        direction: Direction,
        limit: usize,
        out: &mut Vec<(Key, Bytes)>,
    ) -> Result<(), KvError> {
        self.store().scan(table, from, to, direction, limit, out)
    }
}

impl Kv for Interrupted {
    fn put(&mut self, table: Table, key: Key, value: Bytes) {
        self.store.as_mut().unwrap().put(table, key, value);
        self.interrupt();
    }

    fn insert(&mut self, table: Table, key: Key, value: Bytes) {
        self.store.as_mut().unwrap().insert(table, key, value);
        self.interrupt();
    }

    fn delete(&mut self, table: Table, key: Key) {
        self.store.as_mut().unwrap().delete(table, key);
        self.interrupt();
    }
}

fn every_store(test: impl Fn(&mut dyn Kv)) {
    test(&mut MemStore::new());
    for between in [Between::Nothing, Between::LateFlush, Between::Flush, Between::Reopen] {
        test(&mut Interrupted::new(between));
    }
}

fn scan(
    store: &dyn Kv,
    from: Key,
    to: Key,
    direction: Direction,
    limit: usize,
) -> Vec<(Key, Bytes)> {
    let mut out = Vec::new();
    store.scan(Table::Task, from, to, direction, limit, &mut out).unwrap();
    out
}

#[test]
fn a_write_is_read_back_and_a_delete_hides_it() {
    every_store(|store| {
        assert_eq!(store.get(Table::Task, 1).unwrap(), None);
        store.put(Table::Task, 1, value("one"));
        assert_eq!(store.get(Table::Task, 1).unwrap(), Some(value("one")));
        store.put(Table::Task, 1, value("uno"));
        assert_eq!(store.get(Table::Task, 1).unwrap(), Some(value("uno")));
        store.delete(Table::Task, 1);
        assert_eq!(store.get(Table::Task, 1).unwrap(), None);
        store.put(Table::Task, 1, value("again"));
        assert_eq!(store.get(Table::Task, 1).unwrap(), Some(value("again")));
    });
}

#[test]
fn an_inserted_row_lives_and_dies_like_any_other() {
    every_store(|store| {
        store.insert(Table::Task, 5, value("five"));
        assert_eq!(store.get(Table::Task, 5).unwrap(), Some(value("five")));
        store.put(Table::Task, 5, value("changed"));
        assert_eq!(store.get(Table::Task, 5).unwrap(), Some(value("changed")));
        store.delete(Table::Task, 5);
        assert_eq!(store.get(Table::Task, 5).unwrap(), None);
        assert_eq!(scan(store, 0, Key::MAX, Direction::Forward, 9), []);
    });
}

#[test]
fn deleting_what_is_not_there_does_nothing() {
    every_store(|store| {
        store.delete(Table::Task, 9);
        store.put(Table::Task, 10, value("ten"));
        assert_eq!(scan(store, 0, Key::MAX, Direction::Forward, 9), [(10, value("ten"))]);
    });
}

#[test]
fn tables_do_not_see_each_other() {
    every_store(|store| {
        for table in Table::ALL {
            store.put(table, 3, value(format!("{table:?}")));
        }
        store.delete(Table::Queue, 3);
        for table in Table::ALL.into_iter().filter(|table| *table != Table::Queue) {
            assert_eq!(store.get(table, 3).unwrap(), Some(value(format!("{table:?}"))));
        }
        assert_eq!(store.get(Table::Queue, 3).unwrap(), None);
    });
}

#[test]
fn a_scan_is_ordered_bounded_and_appends() {
    every_store(|store| {
        for key in [7, 3, 11, 5, 9] {
            store.insert(Table::Task, key, value(key.to_string()));
        }
        store.delete(Table::Task, 7);
        let keys = |rows: Vec<(Key, Bytes)>| rows.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(keys(scan(store, 0, Key::MAX, Direction::Forward, 99)), [3, 5, 9, 11]);
        assert_eq!(keys(scan(store, 0, Key::MAX, Direction::Reverse, 99)), [11, 9, 5, 3]);
        assert_eq!(keys(scan(store, 5, 9, Direction::Forward, 99)), [5, 9]);
        assert_eq!(keys(scan(store, 5, 9, Direction::Reverse, 1)), [9]);
        assert_eq!(keys(scan(store, 4, 10, Direction::Forward, 1)), [5]);
        assert_eq!(keys(scan(store, 6, 8, Direction::Forward, 99)), [0; 0]);
        assert_eq!(keys(scan(store, 9, 5, Direction::Forward, 99)), [0; 0]);
        assert_eq!(keys(scan(store, 0, Key::MAX, Direction::Forward, 0)), [0; 0]);
        let mut out = vec![(0, value("kept"))];
        store.scan(Table::Task, 3, 3, Direction::Forward, 9, &mut out).unwrap();
        assert_eq!(out, [(0, value("kept")), (3, value("3"))]);
    });
}

#[test]
fn keys_and_values_keep_every_bit() {
    every_store(|store| {
        let large = Bytes::from(vec![0xa5; 100_000]);
        for (key, value) in [
            (0, Bytes::new()),
            (Key::MAX, value("last")),
            (Key::from(u64::MAX) + 1, Bytes::from_static(&[0, 255, 0])),
            (1 << 127, large),
        ] {
            store.insert(Table::Body, key, value.clone());
            assert_eq!(store.get(Table::Body, key).unwrap(), Some(value));
        }
        let mut out = Vec::new();
        store.scan(Table::Body, 0, Key::MAX, Direction::Forward, 9, &mut out).unwrap();
        let keys: Vec<Key> = out.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [0, Key::from(u64::MAX) + 1, 1 << 127, Key::MAX]);
    });
}

#[test]
fn reads_are_right_at_every_moment_of_a_checkpoint() {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    store.insert(Table::Task, 1, value("old"));
    store.insert(Table::Task, 2, value("gone"));
    store.insert(Table::Task, 5, value("gone twice"));
    checkpoint(&mut store, 1);
    store.delete(Table::Task, 5);
    store.put(Table::Task, 5, value("back"));
    store.delete(Table::Task, 5);
    store.put(Table::Task, 1, value("new"));
    store.delete(Table::Task, 2);
    store.insert(Table::Task, 3, value("three"));
    let job = store.freeze(2).unwrap();
    store.delete(Table::Task, 3);
    store.insert(Table::Task, 4, value("four"));
    let expected = [(1, value("new")), (4, value("four"))];
    assert_eq!(rows(&store, Table::Task), expected);
    assert!(store.freeze(3).is_none(), "one checkpoint at a time");
    let mut flushed = job.run();
    assert_eq!(rows(&store, Table::Task), expected, "durable, but not taken back yet");
    store.take_back(&mut flushed).unwrap();
    drop(flushed);
    assert_eq!(rows(&store, Table::Task), expected);
    assert_eq!(store.position(), 2);
}

#[test]
fn a_store_can_be_read_by_many_threads_while_a_checkpoint_runs() {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    for key in 0..2000 {
        store.insert(Table::Body, key, value(format!("body {key}")));
    }
    let job = store.freeze(1).unwrap();
    let store_ref = &store;
    let mut flushed = std::thread::scope(|scope| {
        let flush = scope.spawn(|| job.run());
        for _ in 0..2 {
            scope.spawn(|| {
                for key in 0..2000 {
                    let expected = Some(value(format!("body {key}")));
                    assert_eq!(store_ref.get(Table::Body, key).unwrap(), expected);
                }
            });
        }
        flush.join().unwrap()
    });
    store.take_back(&mut flushed).unwrap();
    assert_eq!(rows(&store, Table::Body).len(), 2000);
}
