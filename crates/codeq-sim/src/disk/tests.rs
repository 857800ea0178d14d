//! The guarantees of the simulated disk.

use super::*;

fn path(name: &str) -> PathBuf {
    Path::new("/d").join(name)
}

/// A disk with a durable directory and one durable file.
fn disk(seed: u64) -> (SimDisk, Box<dyn DiskFile>) {
    let disk = SimDisk::new(seed);
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let file = disk.create(&path("a")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    (disk, file)
}

fn page(fill: u8) -> Vec<u8> {
    vec![fill; PAGE as usize]
}

#[test]
fn synced_bytes_survive_every_crash() {
    for seed in 0..50 {
        let (disk, file) = disk(seed);
        file.write_all_at(b"hello", 4_094).unwrap();
        file.sync_data().unwrap();
        disk.power_cut();
        let mut bytes = disk.bytes(&path("a")).unwrap();
        assert_eq!(bytes.len(), 4_099);
        assert_eq!(bytes.split_off(4_094), b"hello");
        assert!(file.read_exact_at(&mut [0], 0).is_err(), "the handle is invalid");
    }
}

#[test]
fn unsynced_pages_are_old_new_or_torn_each_on_its_own() {
    let (mut old, mut new, mut torn, mut mixed) = (0, 0, 0, 0);
    for seed in 0..200 {
        let (disk, file) = disk(seed);
        file.write_all_at(&page(1).repeat(4), 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&page(2).repeat(4), 0).unwrap();
        disk.power_cut();
        let bytes = disk.bytes(&path("a")).unwrap();
        let pages: Vec<&[u8]> = bytes.chunks(PAGE as usize).collect();
        assert_eq!(pages.len(), 4);
        let is = |fill: u8| move |page: &&&[u8]| page.iter().all(|byte| *byte == fill);
        let (olds, news) = (pages.iter().filter(is(1)).count(), pages.iter().filter(is(2)).count());
        old += olds;
        new += news;
        torn += 4 - olds - news;
        mixed += usize::from(olds > 0 && news > 0);
        for sector in bytes.chunks(SECTOR) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
        }
    }
    assert!(old > 100 && new > 100 && torn > 50 && mixed > 50);
}

#[test]
fn what_survives_does_not_depend_on_the_order_of_writes() {
    for seed in 0..50 {
        let after = |order: &[u64]| {
            let (disk, file) = disk(seed);
            for number in order {
                file.write_all_at(&page(*number as u8 + 1), number * PAGE).unwrap();
            }
            disk.power_cut();
            disk.bytes(&path("a")).unwrap()
        };
        assert_eq!(after(&[0, 1, 2, 3]), after(&[3, 1, 0, 2]));
    }
}

#[test]
fn a_kill_loses_nothing_that_was_written() {
    let (disk, file) = disk(1);
    file.write_all_at(b"x", 0).unwrap();
    disk.create(&path("b")).unwrap();
    disk.kill();
    assert_eq!(disk.bytes(&path("a")).unwrap(), b"x");
    assert!(disk.exists(&path("b")).unwrap());
    // ... but it is still not durable.
    let lost = (0..50).any(|seed| {
        let (disk, file) = self::disk(seed);
        file.write_all_at(b"x", 0).unwrap();
        disk.kill();
        disk.power_cut();
        disk.bytes(&path("a")).unwrap() != b"x"
    });
    assert!(lost);
}

#[test]
fn names_are_durable_after_the_directory_is_synced() {
    let mut seen = BTreeMap::new();
    for seed in 0..100 {
        let (disk, file) = disk(seed);
        file.sync_data().unwrap();
        disk.rename(&path("a"), &path("b")).unwrap();
        disk.create(&path("c")).unwrap();
        disk.power_cut();
        let names = disk.list(Path::new("/d")).unwrap();
        let moved = names.iter().filter(|name| *name == "a" || *name == "b").count();
        assert_eq!(moved, 1, "a rename is atomic");
        *seen.entry(names).or_insert(0) += 1;

        let (disk, _) = self::disk(seed);
        disk.rename(&path("a"), &path("b")).unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.power_cut();
        assert_eq!(disk.list(Path::new("/d")).unwrap(), ["b"]);
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn a_directory_whose_entry_was_not_synced_is_lost_with_its_contents() {
    let gone = (0..50).any(|seed| {
        let disk = SimDisk::new(seed);
        disk.create_dir_all(Path::new("/d/e")).unwrap();
        disk.create(Path::new("/d/e/f")).unwrap().sync_data().unwrap();
        disk.sync_dir(Path::new("/d/e")).unwrap();
        disk.power_cut();
        !disk.exists(Path::new("/d/e/f")).unwrap()
    });
    assert!(gone);
}

#[test]
fn unsynced_lengths_are_lost() {
    let mut lens = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let (disk, file) = disk(seed);
        file.write_all_at(&page(1), 0).unwrap();
        file.sync_data().unwrap();
        file.set_len(3 * PAGE).unwrap();
        disk.power_cut();
        lens.insert(disk.open(&path("a")).unwrap().len().unwrap());
    }
    assert!(lens.contains(&PAGE) && lens.contains(&(3 * PAGE)));
    let (disk, file) = disk(1);
    file.write_all_at(&page(7), 0).unwrap();
    file.set_len(10).unwrap();
    file.set_len(20).unwrap();
    let mut expected = vec![7; 10];
    expected.resize(20, 0);
    assert_eq!(disk.bytes(&path("a")).unwrap(), expected);
}

#[test]
fn faults_come_when_planned_and_by_class() {
    let (disk, file) = disk(1);
    let seg = disk.create(&path("0000000000000001.seg")).unwrap();
    disk.plan(Faults {
        fail_write: Some((Class::Log, 2)),
        fail_sync: Some((Class::Store, 1)),
        ..Faults::default()
    });
    seg.write_all_at(b"1", 0).unwrap();
    assert!(seg.write_all_at(b"2", 1).is_err());
    seg.write_all_at(b"3", 2).unwrap();
    seg.sync_data().unwrap();
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();

    disk.plan(Faults { capacity: Some(disk.used()), ..Faults::default() });
    seg.write_all_at(b"inside", 0).unwrap();
    let full = file.write_all_at(&page(1), 8 * PAGE).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);

    disk.plan(Faults { cut_at_sync: Some(1), sync_cost: 7, ..Faults::default() });
    assert!(seg.sync_data().is_err() && disk.is_dead());
    assert!(disk.open(&path("a")).is_err() && file.len().is_err());
    assert_eq!((disk.take_cost(), disk.take_cost()), (7, 0));
    disk.power_cut();
    assert!(disk.open(&path("a")).is_ok());
}

#[test]
fn a_lying_sync_makes_nothing_durable() {
    let lost = (0..20).any(|seed| {
        let (disk, file) = disk(seed);
        disk.lie(Class::Store);
        file.write_all_at(b"x", 0).unwrap();
        file.sync_data().unwrap();
        disk.power_cut();
        disk.bytes(&path("a")).unwrap() != b"x"
    });
    assert!(lost);
}

#[test]
fn a_copy_has_what_is_synced_and_nothing_else() {
    let (disk, file) = disk(1);
    let synced = |disk: &SimDisk| disk.is_synced(|_| true);
    file.write_all_at(&page(1), 0).unwrap();
    assert!(!synced(&disk));
    file.sync_data().unwrap();
    assert!(synced(&disk));
    file.write_all_at(&page(2), 0).unwrap();
    disk.create(&path("b")).unwrap();
    assert!(!synced(&disk));
    assert!(disk.is_synced(|path| path == Path::new("c")));
    let copy = disk.synced_copy(|_| true);
    assert!(synced(&copy));
    assert_eq!(copy.bytes(&path("a")).unwrap(), page(1));
    assert!(!copy.exists(&path("b")).unwrap());
    assert_eq!(disk.bytes(&path("a")).unwrap(), page(2), "the disk itself did not change");
    assert!(disk.synced_copy(|_| false).bytes(&path("a")).is_err());
}
