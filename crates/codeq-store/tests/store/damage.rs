//! Damaged files: a store returns what was written, or an error.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use codeq_core::kv::{Direction, Key, Kv, KvError, KvRead, Table};
use codeq_disk::{RealDisk, SharedDisk};
use codeq_store::{Options, ScrubPlace, Store, StoreError, check};

use crate::sim_disk::SimDisk;
use crate::{checkpoint, contents, create, options, path, value};

const ROWS: u128 = 1500;
const SECTOR: usize = 512;

/// A store deep enough for branch pages, as a kill leaves it after two checkpoints, and its rows.
fn killed() -> (Vec<u8>, Vec<Vec<(Key, bytes::Bytes)>>) {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    for key in 0..ROWS {
        store.insert(Table::Body, key, value(format!("body {key} ").repeat(20)));
        store.insert(Table::Index, key, value(""));
    }
    checkpoint(&mut store, 1);
    for key in 0..ROWS / 10 {
        store.put(Table::Body, key * 10, value("changed"));
    }
    checkpoint(&mut store, 2);
    let expected = contents(&store);
    let bytes = disk.bytes(path());
    drop(store);
    (bytes, expected)
}

/// Every row, by scan and by key.
fn read(store: &Store) -> Result<Vec<Vec<(Key, bytes::Bytes)>>, KvError> {
    let mut all = Vec::new();
    for table in Table::ALL {
        let mut rows = Vec::new();
        store.scan(table, 0, Key::MAX, Direction::Forward, usize::MAX, &mut rows)?;
        all.push(rows);
    }
    for key in 0..ROWS {
        let found = store.get(Table::Body, key)?;
        assert!(found.is_some(), "row {key} is missing");
    }
    Ok(all)
}

/// Verifies the rows in steps of `step` bytes; returns the number of steps and bytes.
fn scrub(store: &Store, step: u64) -> Result<(u64, u64), KvError> {
    let (mut next, mut steps, mut bytes) = (Some(ScrubPlace::default()), 0, 0);
    while let Some(place) = next {
        let seen = store.scrub(place).run(step)?;
        (steps, bytes, next) = (steps + 1, bytes + seen.bytes, seen.next);
    }
    Ok((steps, bytes))
}

/// Outcomes of opening damaged files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    refused: u32,
    failed: u32,
    harmless: u32,
}

impl Tally {
    fn try_one(&mut self, bytes: Vec<u8>, expected: &[Vec<(Key, bytes::Bytes)>], what: &str) {
        let disk = SimDisk::new();
        disk.put_file(path(), bytes.clone());
        let checked = check(&disk.shared(), path());
        assert!(disk.bytes(path()) == bytes, "a check changes nothing");
        let store = match Store::open(disk.shared(), path(), options()) {
            Ok(store) => store,
            Err(error) => {
                assert!(error.to_string().contains(crate::PATH), "{error}");
                self.refused += 1;
                return;
            }
        };
        let scrubbed = scrub(&store, 64 << 10);
        assert!(
            scrubbed.as_ref().err().is_none_or(|error| error.to_string().contains(crate::PATH))
        );
        match read(&store) {
            Ok(rows) => {
                assert_eq!(scrubbed.unwrap().1, store.live_bytes(), "{what}");
                assert!(rows == expected, "{what}: wrong rows were served");
                self.harmless += 1;
            }
            Err(error) => {
                assert!(scrubbed.is_err(), "{what}: {error}, which the scrub did not see");
                assert!(checked.is_err(), "{what}: {error}, which the check did not see");
                assert!(error.to_string().contains(crate::PATH), "{error}");
                self.failed += 1;
                return;
            }
        }
        // The next checkpoint must not overwrite anything live.
        let mut store = store;
        for key in 0..ROWS / 2 {
            store.put(Table::Index, key, value("later"));
        }
        let mut flushed = store.freeze(3).unwrap().run();
        if store.take_back(&mut flushed).is_ok() {
            assert_eq!(
                read(&store).unwrap()[Table::Body as usize],
                expected[Table::Body as usize],
                "{what}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_is_never_served() {
    let (good, expected) = killed();
    let mut tally = Tally::default();
    let places = (0..6 * 4096).step_by(149).chain((0..good.len()).step_by(3571));
    for place in places {
        let mut bytes = good.clone();
        bytes[place] ^= 1 << (place % 8);
        tally.try_one(bytes, &expected, &format!("byte {place}"));
    }
    assert!(tally.refused + tally.failed > 100 && tally.harmless > 50, "{tally:?}");
}

#[test]
fn a_zeroed_sector_is_never_served() {
    let (good, expected) = killed();
    let mut tally = Tally::default();
    for sector in (0..good.len() / SECTOR).step_by(7) {
        let mut bytes = good.clone();
        bytes[sector * SECTOR..][..SECTOR].fill(0);
        tally.try_one(bytes, &expected, &format!("sector {sector}"));
    }
    assert!(tally.refused + tally.failed > 50, "{tally:?}");
}

#[test]
fn a_cut_or_swapped_file_is_never_served() {
    let (good, expected) = killed();
    let mut tally = Tally::default();
    for blocks in (0..good.len() / 4096).step_by(29) {
        tally.try_one(good[..blocks * 4096].to_vec(), &expected, &format!("{blocks} blocks left"));
    }
    // Two blocks swapped: each is intact, but in the wrong place.
    for block in (2..good.len() / 4096 - 1).step_by(23) {
        let mut bytes = good.clone();
        let (left, right) = bytes.split_at_mut((block + 1) * 4096);
        left[block * 4096..].swap_with_slice(&mut right[..4096]);
        tally.try_one(bytes, &expected, &format!("blocks {block} and {} swapped", block + 1));
    }
    assert!(tally.refused + tally.failed > 10, "{tally:?}");
}

#[test]
fn a_scrub_continues_although_the_store_changes() {
    let disk = SimDisk::new();
    disk.put_file(path(), killed().0);
    let mut store = Store::open(disk.shared(), path(), options()).unwrap();
    let live = store.live_bytes();
    assert_eq!(scrub(&store, u64::MAX).unwrap(), (1, live));
    let (steps, bytes) = scrub(&store, 1_000).unwrap();
    assert!(steps > 100 && bytes == live, "{steps} {bytes} {live}");
    let first = store.scrub(ScrubPlace::default()).run(live / 4).unwrap();
    // Rows before and after the position change, and one that was verified is deleted.
    store.put(Table::Body, 0, value("before"));
    store.delete(Table::Body, 1);
    store.put(Table::Index, ROWS, value("behind"));
    checkpoint(&mut store, 3);
    let mut next = first.next;
    let mut behind = 0;
    while let Some(place) = next {
        let seen = store.scrub(place).run(live / 4).unwrap();
        (behind, next) = (behind + seen.bytes, seen.next);
    }
    assert_eq!(first.bytes + behind, live + 16 + 4 + "behind".len() as u64);
}

/// Bits rot at any time, not only before a start.
#[test]
fn damage_under_a_running_store_stops_its_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let good = killed().0;
    std::fs::write(&path, &good).unwrap();
    let disk: SharedDisk = Arc::new(RealDisk);
    // Hardly any cache, so that reads reach the file.
    let options = Options { cache_bytes: 16 << 10, ..options() };
    let store = Store::open(Arc::clone(&disk), &path, options).unwrap();
    read(&store).unwrap();
    // Everywhere, because older copies of the row are in blocks that are free now.
    let places = good.windows(10).enumerate().filter(|(_, window)| *window == b"body 1234 ");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for (place, _) in places {
        file.write_all_at(b"B", place as u64).unwrap();
    }
    let Err(error) = read(&store) else { panic!("damage was served") };
    let error = error.to_string();
    let parts = ["does not match its checksum", "restore it from a backup", path.to_str().unwrap()];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    let error = check(&disk, &path).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}
