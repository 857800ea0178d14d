//! Rows exported from one store and imported into another.

use std::path::Path;

use bytes::Bytes;
use codeq_core::kv::{Key, Kv, Table};
use codeq_disk::Disk as _;
use codeq_store::{
    CHUNK_BYTES, Export, Import, Imported, Options, Owner, Store, StoreError, check,
};

use crate::sim_disk::{Coin, Faults, SimDisk};
use crate::{checkpoint, contents, options, path, value};

type Contents = Vec<Vec<(Key, Bytes)>>;

/// The longest row that the tests write.
const LONGEST: usize = CHUNK_BYTES * 3 / 2;

fn incoming() -> &'static Path {
    Path::new("/shard/store.incoming")
}

fn owned(shard: u16, log_id: u64) -> Options {
    Options { owner: Some(Owner { shard, shards: 3, log_id }), ..options() }
}

fn chunks(mut export: Export) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    while let Some(chunk) = export.next_chunk().unwrap() {
        assert!(chunk.len() <= CHUNK_BYTES + LONGEST + 64, "{} bytes", chunk.len());
        chunks.push(chunk);
    }
    assert!(export.next_chunk().unwrap().is_none());
    chunks
}

fn import<C: AsRef<[u8]>>(disk: &SimDisk, chunks: &[C]) -> Result<Imported, StoreError> {
    let mut import = Import::begin(disk.shared(), incoming(), owned(1, 8))?;
    chunks.iter().try_for_each(|chunk| import.add(chunk.as_ref()))?;
    import.finish()
}

fn is_empty(disk: &SimDisk) -> bool {
    disk.list(Path::new("/shard")).unwrap().is_empty()
}

/// Changes some random rows, among them the first and the last possible keys.
fn scribble(store: &mut Store, coin: &mut Coin) {
    for _ in 0..120 {
        let table = Table::ALL[coin.next() as usize % Table::ALL.len()];
        let key = match coin.next() % 20 {
            0 => 0,
            1 => Key::MAX,
            2..10 => Key::from(coin.next() % 50),
            _ => Key::from(coin.next()) << (coin.next() % 90),
        };
        let len = match coin.next() % 60 {
            0 => coin.next() as usize % LONGEST,
            1..10 => 0,
            _ => coin.next() as usize % 2_000,
        };
        match coin.next() % 4 {
            0 => store.delete(table, key),
            _ => store.put(table, key, Bytes::from(vec![coin.next() as u8; len])),
        }
    }
}

/// A store of shard 1 of a few chunks, with some rows only in memory, and what was checkpointed.
fn small() -> (SimDisk, Store, Contents) {
    filled(200)
}

fn filled(count: Key) -> (SimDisk, Store, Contents) {
    let disk = SimDisk::new();
    let mut store = Store::create(disk.shared(), path(), owned(1, 7)).unwrap();
    for key in 0..count {
        store.insert(Table::Body, key, value(format!("body {key} ").repeat(900)));
        store.insert(Table::Index, key << 64, value(""));
    }
    store.put(Table::Meta, 0, value("meta"));
    checkpoint(&mut store, 41);
    let rows = contents(&store);
    store.put(Table::Meta, 0, value("only in memory"));
    (disk, store, rows)
}

#[test]
fn an_imported_store_has_the_same_rows() {
    for seed in 0..4 {
        let mut coin = Coin(seed);
        let target = SimDisk::new();
        for shard in 0..3 {
            let disk = SimDisk::new();
            let mut store = Store::create(disk.shared(), path(), owned(shard, 7)).unwrap();
            for position in 1..=seed {
                scribble(&mut store, &mut coin);
                let job = store.freeze_with(position * 10 + u64::from(shard), 5 + position);
                store.take_back(&mut job.unwrap().run()).unwrap();
            }
            let (expected, digest) = (contents(&store), store.digest());
            let mut export = store.export();
            let mut chunks = Vec::from_iter(export.next_chunk().unwrap());
            // The store goes on meanwhile, and is even rewritten.
            scribble(&mut store, &mut coin);
            checkpoint(&mut store, 1_000);
            while let Some(job) = store.maintain() {
                store.take_back(&mut job.run()).unwrap();
            }
            while let Some(chunk) = export.next_chunk().unwrap() {
                assert!(chunk.len() <= CHUNK_BYTES + LONGEST + 64);
                chunks.push(chunk);
            }
            let place = format!("/shard-{shard}/store.incoming");
            let options = owned(shard, 8);
            let mut import =
                Import::begin(target.shared(), Path::new(&place), options.clone()).unwrap();
            chunks.iter().for_each(|chunk| import.add(chunk).unwrap());
            let imported = import.finish().unwrap();
            let rows: usize = expected.iter().map(Vec::len).sum();
            assert_eq!((imported.position, imported.rows), (export.position(), rows as u64));
            let report = check(&target.shared(), Path::new(&place)).unwrap();
            assert_eq!((report.position, report.owner), (export.position(), options.owner));
            let store = Store::open(target.shared(), Path::new(&place), options).unwrap();
            assert!(contents(&store) == expected, "seed {seed}, shard {shard}");
            assert_eq!(store.digest(), digest);
        }
    }
}

#[test]
fn a_flipped_bit_is_refused_and_leaves_nothing() {
    let (_, store, _) = small();
    let chunks = chunks(store.export());
    assert!(chunks.len() > 2, "{}", chunks.len());
    let mut coin = Coin(3);
    for damaged in 0..chunks.len() {
        let bits = chunks[damaged].len() * 8;
        // Every bit of the header, and some of the rows.
        for bit in (0..32 * 8).chain((0..40).map(|_| coin.next() as usize % bits)) {
            let disk = SimDisk::new();
            let mut import = Import::begin(disk.shared(), incoming(), owned(1, 8)).unwrap();
            chunks[..damaged].iter().for_each(|chunk| import.add(chunk).unwrap());
            let mut chunk = chunks[damaged].clone();
            chunk[bit / 8] ^= 1 << (bit % 8);
            let error = import.add(&chunk).unwrap_err();
            let said = format!(
                "rows for store /shard/store.incoming were refused at chunk {damaged}: \
                 its checksum does not match"
            );
            assert_eq!(error.to_string(), said);
            assert!(is_empty(&disk), "its space is given back at once");
            assert!(import.add(&chunks[damaged]).is_err(), "it cannot be continued");
            assert!(import.finish().is_err());
        }
    }
}

#[test]
fn only_the_whole_stream_in_order_is_accepted() {
    let (_, mut store, rows) = small();
    let whole = chunks(store.export());
    let disk = SimDisk::new();
    assert_eq!(import(&disk, &whole).unwrap().position, 41);
    let opened = Store::open(disk.shared(), incoming(), owned(1, 8)).unwrap();
    assert!(contents(&opened) == rows);

    let refused = |chunks: &[Vec<u8>], reason: &str| {
        let disk = SimDisk::new();
        let error = import(&disk, chunks).unwrap_err();
        assert!(error.to_string().ends_with(reason), "{error}");
        assert!(is_empty(&disk));
    };
    for cut in 0..whole.len() {
        refused(&whole[..cut], "the last chunk is missing");
        let mut chunks = whole.clone();
        chunks.remove(cut);
        let last = cut + 1 == whole.len();
        let missing =
            if last { "the last chunk is missing" } else { "it does not follow the one before" };
        refused(&chunks, missing);
        let mut chunks = whole.clone();
        chunks.insert(cut, whole[cut].clone());
        let repeated =
            if last { "it comes after the last one" } else { "it does not follow the one before" };
        refused(&chunks, repeated);
    }
    let mut cut = whole.clone();
    cut[1].pop();
    refused(&cut, "its checksum does not match");

    // A stream of a later checkpoint, and one of another shard.
    checkpoint(&mut store, 42);
    let later = chunks(store.export());
    refused(&[&whole[..1], &later[1..]].concat(), "it belongs to another checkpoint");
    let disk = SimDisk::new();
    let other = Store::create(disk.shared(), path(), owned(2, 7)).unwrap();
    refused(&chunks(other.export()), "it belongs to another shard");
}

#[test]
fn an_existing_store_is_not_overwritten() {
    let (disk, store, rows) = small();
    let error = Import::begin(disk.shared(), path(), owned(1, 7)).err().unwrap();
    assert!(error.to_string().contains(crate::PATH), "{error}");
    drop(store);
    let opened = Store::open(disk.shared(), path(), owned(1, 7)).unwrap();
    assert!(contents(&opened) == rows);
}

#[test]
fn an_import_leaves_the_store_or_nothing_wherever_the_power_fails() {
    let (_, store, rows) = filled(15);
    let chunks = chunks(store.export());
    let mut moments = 0;
    loop {
        let disk = SimDisk::new();
        disk.set_faults(Faults { power_cut_after: Some(moments), ..Faults::default() });
        let imported = import(&disk, &chunks).is_ok();
        for seed in [moments * 2 + 1, moments * 2 + 1_000_004] {
            let left = disk.after_power_cut(Coin(seed).next());
            if !left.exists(incoming()).unwrap() {
                assert!(!imported, "an import that was reported is lost");
                // Unfinished remains do not open under any name, and are in nobody's way.
                for name in left.list(Path::new("/shard")).unwrap() {
                    let path = Path::new("/shard").join(name);
                    assert!(check(&left.shared(), &path).is_err() || is_whole(&left, &path, &rows));
                }
                import(&left, &chunks).unwrap();
            }
            check(&left.shared(), incoming()).unwrap();
            assert!(is_whole(&left, incoming(), &rows));
        }
        if imported {
            break;
        }
        moments += 1;
    }
    assert!(moments > 20, "only {moments} moments to fail at");
}

/// Whether a store has these rows.
fn is_whole(disk: &SimDisk, path: &Path, rows: &Contents) -> bool {
    Store::open(disk.shared(), path, owned(1, 8)).is_ok_and(|store| contents(&store) == *rows)
}

#[test]
fn a_full_disk_ends_the_import_and_gets_its_space_back() {
    let (_, store, _) = small();
    let chunks = chunks(store.export());
    let disk = SimDisk::new();
    disk.set_faults(Faults { capacity: Some(900 << 10), ..Faults::default() });
    let error = import(&disk, &chunks).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(is_empty(&disk));
    disk.set_faults(Faults::default());
    import(&disk, &chunks).unwrap();
}

#[test]
fn damage_in_the_source_never_becomes_a_store() {
    let (disk, store, rows) = small();
    drop(store);
    let bytes = disk.bytes(path());
    let mut coin = Coin(5);
    let mut refused = 0;
    for _ in 0..150 {
        let mut bytes = bytes.clone();
        let bit = coin.next() as usize % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let disk = SimDisk::new();
        disk.put_file(path(), bytes);
        let Ok(store) = Store::open(disk.shared(), path(), owned(1, 7)) else {
            refused += 1;
            continue;
        };
        let target = SimDisk::new();
        let mut import = Import::begin(target.shared(), incoming(), owned(1, 8)).unwrap();
        let mut export = store.export();
        let outcome = loop {
            match export.next_chunk() {
                Ok(Some(chunk)) => import.add(&chunk).unwrap(),
                Ok(None) => break import.finish().map(drop),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            Ok(()) => assert!(is_whole(&target, incoming(), &rows)),
            Err(error) => {
                assert!(error.to_string().contains(crate::PATH), "{error}");
                assert!(!target.exists(incoming()).unwrap());
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "{refused} refused");
}

/// The stream of version 1, byte for byte. Never changes.
#[test]
fn the_first_version_is_still_read_and_written() {
    let disk = SimDisk::new();
    let mut store = Store::create(disk.shared(), path(), owned(1, 7)).unwrap();
    store.put(Table::Task, 0x0102, value("row"));
    store.put(Table::Record, Key::MAX, value(""));
    let job = store.freeze_with(9, 0x1122_3344_5566_7788);
    store.take_back(&mut job.unwrap().run()).unwrap();
    let stream = chunks(store.export());
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(stream.iter().map(hex).collect::<Vec<_>>(), FIRST);
    let target = SimDisk::new();
    assert_eq!(import(&target, &stream).unwrap(), Imported { position: 9, rows: 2 });

    let mut newer = stream[0].clone();
    newer[4] = 2;
    let crc = crc32c::crc32c(&newer[4..]).to_le_bytes();
    newer[..4].copy_from_slice(&crc);
    let error = import(&SimDisk::new(), &[newer]).unwrap_err();
    assert!(error.to_string().ends_with("a newer release made it: upgrade the receiver first"));
}

const FIRST: [&str; 2] = [
    "a26a30840100010009000000000000000000000000000000887766554433221101020100000000000000000000\
     0000000003000000726f7709ffffffffffffffffffffffffffffffff00000000",
    "cda8d85e01010100090000000000000001000000a26a3084887766554433221102000000000000002300000000000000",
];

#[test]
fn a_digest_is_kept_with_its_checkpoint() {
    let disk = SimDisk::new();
    let mut store = Store::create(disk.shared(), path(), owned(1, 7)).unwrap();
    assert_eq!(store.digest(), 0);
    for key in 0..300 {
        store.insert(Table::Body, key, value("x".repeat(1000)));
    }
    let save = |store: &mut Store, position, digest| {
        let job = store.freeze_with(position, digest);
        store.take_back(&mut job.unwrap().run()).unwrap();
    };
    save(&mut store, 1, u64::MAX);
    assert_eq!(store.digest(), u64::MAX);
    (0..290).for_each(|key| store.delete(Table::Body, key));
    save(&mut store, 2, 77);
    while let Some(job) = store.maintain() {
        store.take_back(&mut job.run()).unwrap();
    }
    assert_eq!(disk.renames(), 2, "it was rewritten");
    drop(store);
    let mut store = crate::open(&disk);
    assert_eq!((store.position(), store.digest()), (2, 77));
    // A checkpoint by somebody who keeps no digest.
    save(&mut store, 3, 0);
    drop(store);
    assert_eq!(crate::open(&disk).digest(), 0);
}
