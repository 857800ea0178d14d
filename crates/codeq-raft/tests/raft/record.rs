//! The encoding of records: everything comes back as it was, and nothing else is accepted.

use std::collections::BTreeMap;

use bytes::Bytes;
use codeq_core::id::{ShardId, split_mix64};
use codeq_raft::journal_record::{
    ADDRESS_BYTES_MAX, HEADER_BYTES, Header, Kind, MEMBERS_MAX, RecordError, decode_entry,
    decode_header, decode_membership, decode_note, encode_entry, encode_mark, encode_membership,
    encode_note, entry_bytes, log_id,
};
use codeq_raft::types::{Digests, Entry, Member, Origin, Proposal, StoredMembership};
use openraft::{EntryPayload, Membership};

fn members(configs: &[&[u64]], learners: &[u64], address: usize) -> Membership<u64, Member> {
    let ids = configs.iter().flat_map(|voters| voters.iter()).chain(learners);
    let member = |id: &u64| (*id, Member { address: "ü".repeat(address / 2) });
    let nodes: BTreeMap<u64, Member> = ids.map(member).collect();
    Membership::new(configs.iter().map(|voters| voters.iter().copied().collect()).collect(), nodes)
}

fn proposal(
    records: &[&[u8]],
    digests: Option<Vec<u64>>,
) -> EntryPayload<codeq_raft::types::Types> {
    let origin = Origin { term: 1, node: u64::MAX, incarnation: 3, number: 4 };
    let records =
        (0..).map(ShardId).zip(records.iter().map(|it| Bytes::copy_from_slice(it))).collect();
    let digests = digests.map(|by_shard| Digests { index: 9, by_shard });
    EntryPayload::Normal(Proposal { origin, records, digests })
}

fn payloads() -> Vec<EntryPayload<codeq_raft::types::Types>> {
    vec![
        EntryPayload::Blank,
        proposal(&[], None),
        proposal(&[b"", b"some", &[0xFF; 300]], None),
        proposal(&[b"one"], Some(vec![])),
        proposal(&[b"one", b"two"], Some(vec![1, u64::MAX])),
        EntryPayload::Membership(Membership::default()),
        EntryPayload::Membership(members(&[&[1]], &[], 0)),
        EntryPayload::Membership(members(&[&[1, 2, 3], &[3, 4, 5]], &[9, u64::MAX], 30)),
    ]
}

fn entries() -> Vec<Entry> {
    let entry = |(number, payload)| Entry { log_id: log_id(u64::MAX, 2, number), payload };
    (0..).zip(payloads()).map(entry).collect()
}

fn text(entry: &Entry) -> String {
    format!("{entry:?}")
}

#[test]
fn entries_survive_encoding() {
    for entry in entries() {
        let bytes = Bytes::from(encode_entry(&entry).unwrap());
        let in_log = codeq_log::frame_len(&[(0, &bytes)]) as usize;
        assert!(entry_bytes(&entry) >= in_log);
        if matches!(entry.payload, EntryPayload::Normal(_)) {
            assert_eq!(entry_bytes(&entry), in_log);
        }
        let header = Header { kind: Kind::Entry, log_id: entry.log_id };
        assert_eq!(decode_header(&bytes), Ok(header));
        let read = decode_entry(&bytes).unwrap();
        assert_eq!(text(&read), text(&entry));
        // Without a copy.
        if let EntryPayload::Normal(proposal) = &read.payload {
            let range = bytes.as_ptr_range();
            let inside = |(_, record): &(ShardId, Bytes)| {
                record.is_empty() || range.contains(&record.as_ptr())
            };
            assert!(proposal.records.iter().all(inside));
        }
    }
    for kind in [Kind::Truncate, Kind::Jump, Kind::Committed] {
        let log_id = log_id(1, 2, 3);
        let bytes = encode_mark(kind, log_id);
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(decode_header(&bytes), Ok(Header { kind, log_id }));
        assert!(decode_entry(&bytes.into()).is_err());
    }
}

#[test]
fn memberships_survive_encoding() {
    for at in [None, Some(log_id(3, 4, 5))] {
        for membership in [Membership::default(), members(&[&[1, 2], &[2, 7]], &[8], 20)] {
            let stored = StoredMembership::new(at, membership);
            let bytes = encode_membership(&stored).unwrap();
            assert_eq!(decode_membership(&bytes), Ok(stored.clone()));
            let note = encode_note(at, &stored).unwrap();
            assert_eq!(decode_note(&note), Ok((at, stored)));
        }
    }
}

#[test]
fn the_encoding_never_changes() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let head = |kind: &str| {
        format!("01{kind}0000{}{}{}", "0500000000000000", "0600000000000000", "0700000000000000")
    };
    let id = log_id(5, 6, 7);
    let entry = |payload| Entry { log_id: id, payload };
    assert_eq!(hex(&encode_mark(Kind::Truncate, id)), head("02"));
    assert_eq!(hex(&encode_mark(Kind::Jump, id)), head("03"));
    assert_eq!(hex(&encode_mark(Kind::Committed, id)), head("04"));
    let blank = encode_entry(&entry(EntryPayload::Blank)).unwrap();
    assert_eq!(hex(&blank), head("01") + "00");
    let origin = "0100000000000000ffffffffffffffff03000000000000000400000000000000";
    let proposal = encode_entry(&entry(proposal(&[b"ab"], Some(vec![2])))).unwrap();
    let expected = head("01") + "01" + origin + "0109000000000000000100" + "0200000000000000";
    assert_eq!(hex(&proposal), expected + "0100" + "0000020000006162");
    let members = members(&[&[1]], &[2], 2);
    let membership = encode_entry(&entry(EntryPayload::Membership(members))).unwrap();
    let expected = head("01") + "02" + "0101000100000000000000" + "0200";
    let expected = expected + "01000000000000000200c3bc" + "02000000000000000200c3bc";
    assert_eq!(hex(&membership), expected);
}

#[test]
fn decoders_accept_only_what_encoders_write() {
    let mut seeds: Vec<Vec<u8>> =
        entries().iter().map(|entry| encode_entry(entry).unwrap()).collect();
    seeds.push(encode_mark(Kind::Jump, log_id(1, 2, 3)));
    let accepted = |bytes: &[u8]| {
        let header = decode_header(bytes);
        let entry = decode_entry(&Bytes::copy_from_slice(bytes));
        if let Ok(entry) = &entry {
            assert_eq!(encode_entry(entry).unwrap(), bytes, "another way to write {entry:?}");
        } else if let Ok(Header { kind, log_id }) = header
            && kind != Kind::Entry
        {
            assert_eq!(encode_mark(kind, log_id), bytes);
        }
    };
    for seed in &seeds {
        for len in 0..seed.len() {
            let cut = Bytes::copy_from_slice(&seed[..len]);
            assert!(decode_entry(&cut).is_err(), "{len} bytes of {seed:?}");
        }
        accepted(&[seed.as_slice(), b"x"].concat());
        assert!(decode_entry(&[seed.as_slice(), b"x"].concat().into()).is_err());
        for bit in 0..seed.len() * 8 {
            let mut changed = seed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            accepted(&changed);
        }
    }
    let mut draws = 0_u64;
    let mut draw = |below: u64| {
        draws += 1;
        split_mix64(draws) % below
    };
    for _ in 0..20_000 {
        let mut bytes = seeds[draw(seeds.len() as u64) as usize].clone();
        for _ in 0..=draw(4) {
            let at = draw(bytes.len() as u64 + 1) as usize;
            match draw(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, draw(256) as u8),
                2 => bytes.extend_from_within(at..),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = draw(256) as u8),
            }
            bytes.truncate(4_000);
        }
        accepted(&bytes);
        let (_, _) = (decode_membership(&bytes), decode_note(&bytes));
        let random: Vec<u8> = (0..draw(200)).map(|_| draw(256) as u8).collect();
        accepted(&random);
        let (_, _) = (decode_membership(&random), decode_note(&random));
    }
}

#[test]
fn newer_versions_and_unknown_kinds_are_told_apart() {
    let bytes = encode_mark(Kind::Jump, log_id(1, 2, 3));
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        decode_header(&bytes).unwrap_err()
    };
    assert_eq!(with(0, 2), RecordError::Newer { found: 2 });
    assert!(matches!(with(0, 0), RecordError::Invalid(_)));
    assert!(matches!(with(1, 5), RecordError::Invalid(_)));
    assert!(matches!(with(2, 1), RecordError::Invalid(_)));
}

#[test]
fn oversized_entries_are_not_encoded() {
    let ids: Vec<u64> = (0..=MEMBERS_MAX as u64).collect();
    let encode = |membership| encode_membership(&StoredMembership::new(None, membership));
    assert!(encode(members(&[&ids[1..]], &[], 2)).is_ok());
    assert!(encode(members(&[&ids], &[], 2)).is_err());
    assert!(encode(members(&[&[1]], &ids, 2)).is_err());
    assert!(encode(members(&[&[1]], &[], ADDRESS_BYTES_MAX)).is_ok());
    assert!(encode(members(&[&[1]], &[], ADDRESS_BYTES_MAX + 2)).is_err());
    assert!(encode(members(&[&ids[1..]], &[], 200)).is_err(), "all together are too long");
}
