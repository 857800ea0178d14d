//! The function of the write digest.

use std::collections::BTreeSet;

use bytes::Bytes;
use codeq_core::digest::WriteDigest;
use codeq_core::kv::{Key, Kv, Table};

use crate::mem::Mem;

fn of(writes: &[(Table, Key, Option<&[u8]>)]) -> u64 {
    let (mut digest, mut kv) = (WriteDigest::default(), Mem::default());
    let mut kv = digest.over(&mut kv);
    for (table, key, value) in writes {
        match value {
            Some(value) => kv.put(*table, *key, Bytes::copy_from_slice(value)),
            None => kv.delete(*table, *key),
        }
    }
    digest.0
}

/// Kept in checkpoints and compared between releases: never changes.
#[test]
fn the_digest_function_never_changes() {
    let writes: [(Table, Key, Option<&[u8]>); 4] = [
        (Table::Task, 7, Some(b"a row of more than two words")),
        (Table::Index, 1 << 100, Some(b"")),
        (Table::Body, Key::MAX, Some(b"12345678")),
        (Table::Timer, 0, None),
    ];
    let seen: Vec<u64> = (0..=4).map(|count| of(&writes[..count])).collect();
    assert_eq!(
        seen,
        [
            0,
            0x2be6_8841_42af_50ca,
            0xa471_4fb3_8cbf_76ec,
            0x3c8a_3c3c_c377_8e56,
            0x3096_6092_dc32_35b4,
        ]
    );
}

#[test]
fn every_part_of_a_write_counts() {
    let value: Vec<u8> = (0..40).collect();
    let mut seen = BTreeSet::from([of(&[])]);
    let mut new = |digest| assert!(seen.insert(digest), "two writes with one digest");
    for table in Table::ALL {
        new(of(&[(table, 0, None)]));
    }
    for len in 1..=value.len() {
        new(of(&[(Table::Task, 0, Some(&value[..len]))]));
        new(of(&[(Table::Task, 0, Some(&vec![0; 60 + len]))]));
    }
    for bit in 0..128 {
        new(of(&[(Table::Task, 1 << bit, Some(&value))]));
    }
    for bit in 0..value.len() * 8 {
        let mut changed = value.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        new(of(&[(Table::Task, 0, Some(&changed))]));
    }
    let (one, two): ((Table, Key, Option<&[u8]>), _) =
        ((Table::Task, 1, Some(b"x")), (Table::Task, 2, Some(b"x" as &[u8])));
    new(of(&[one, two]));
    new(of(&[two, one]));
    new(of(&[one, one]));
}
