//! The state file: no single fault costs anything that was acted upon.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use codeq_disk::RealDisk;
use codeq_raft::journal_record::log_id;
use codeq_raft::state_file::{State, StateError, StateFile, path};
use codeq_raft::types::{Member, StoredMembership, Vote};
use openraft::Membership;

fn state(change: u64) -> State {
    let members = BTreeMap::from([(7, Member { address: format!("node-{change}:7000") })]);
    let membership = Membership::new(vec![[7].into()], members);
    State {
        cluster_id: 1,
        node_id: 7,
        log_id: 3,
        first_frame: change,
        vote: Some(Vote::new(change, 7)),
        purged: Some(log_id(1, 7, change)),
        membership: StoredMembership::new(Some(log_id(1, 7, change)), membership),
    }
}

fn open(dir: &Path) -> Result<State, StateError> {
    StateFile::open(&RealDisk, dir).map(|file| file.unwrap().state().clone())
}

#[test]
fn the_last_write_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    assert!(StateFile::open(&RealDisk, dir.path()).unwrap().is_none());
    let empty =
        State { vote: None, purged: None, membership: StoredMembership::default(), ..state(0) };
    drop(StateFile::create(&RealDisk, dir.path(), empty.clone()).unwrap());
    assert_eq!(open(dir.path()).unwrap(), empty);
    for change in 1..5 {
        let mut file = StateFile::open(&RealDisk, dir.path()).unwrap().unwrap();
        file.update(|it| *it = state(change)).unwrap();
        assert_eq!(file.state(), &state(change));
        let committed = Vote::new_committed(change, 8);
        file.update(|it| it.vote = Some(committed)).unwrap();
        assert_eq!(open(dir.path()).unwrap(), State { vote: Some(committed), ..state(change) });
    }
}

#[test]
fn one_damaged_slot_does_no_harm_and_two_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = StateFile::create(&RealDisk, dir.path(), state(1)).unwrap();
    file.update(|it| *it = state(2)).unwrap();
    drop(file);
    let path = path(dir.path());
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 32 << 10);
    // All bits that mean something; the rest of a slot is not read.
    let used = bytes.iter().take(16 << 10).rposition(|byte| *byte != 0).unwrap() + 1;
    for slot in [0, 16 << 10] {
        for bit in 0..used * 8 {
            let (at, mask) = (slot + bit / 8, 1 << (bit % 8));
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[bytes[at] ^ mask], at as u64).unwrap();
            assert_eq!(open(dir.path()).unwrap(), state(2), "bit {bit} of the slot at {slot}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "it was repaired");
        }
    }
    for len in (0..bytes.len()).step_by(97) {
        std::fs::write(&path, &bytes[..len]).unwrap();
        match open(dir.path()) {
            Ok(found) => assert_eq!(found, state(2), "{len} bytes"),
            Err(StateError::Damaged { .. }) => assert!(len < used, "{len} bytes"),
            Err(error) => panic!("{len} bytes: {error}"),
        }
    }
    let mut both = bytes.clone();
    both[30] ^= 1;
    both[(16 << 10) + 40] ^= 1;
    std::fs::write(&path, &both).unwrap();
    assert!(matches!(open(dir.path()), Err(StateError::Damaged { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), both, "nothing was changed");
}

#[test]
fn a_newer_version_is_not_reported_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    drop(StateFile::create(&RealDisk, dir.path(), state(1)).unwrap());
    let path = path(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 2;
    let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let crc = crc32c::crc32c(&[&bytes[..16], &bytes[20..20 + len]].concat());
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(open(dir.path()), Err(StateError::Newer { found: 2, .. })));
}
