//! Invariant 14: replicas at the same log index are equal.
//!
//! A restarted shard, a shard that never restarted, and a copy in memory are all replicas: the same log produces the
//! same digest, however the rows got there.

use codeq_core::State;
use codeq_core::digest::digest;
use codeq_core::kv::for_each;
use codeq_core::kv::{Key, KvError, KvRead, Table};
use codeq_engine::shard::Shard;

use super::Violation;

/// Compares the shards of a process with references that applied the same commands.
pub fn check_shards<'a, 'b, B: KvRead + 'b>(
    what: &str,
    shards: impl Iterator<Item = &'a Shard>,
    references: impl Iterator<Item = (&'b State, &'b B)>,
) -> Result<Vec<Violation>, KvError> {
    let mut found = Vec::new();
    for (shard, reference) in shards.zip(references) {
        let data = shard.data().read();
        let what = format!("{what}, shard {}", shard.number);
        found.extend(check(&what, (&data.state, &data.store), reference)?);
    }
    Ok(found)
}

/// Compares two shards that applied the same commands, and reports the first row that differs.
pub fn check<A: KvRead + ?Sized, B: KvRead + ?Sized>(
    what: &str,
    ours: (&State, &A),
    theirs: (&State, &B),
) -> Result<Option<Violation>, KvError> {
    if digest(ours.0, ours.1)? == digest(theirs.0, theirs.1)? {
        return Ok(None);
    }
    let place = first_difference(ours, theirs)?;
    let text = format!("{what}: the same log produced a different state; {place}");
    Ok(Some(Violation::new(14, text)))
}

fn first_difference<A: KvRead + ?Sized, B: KvRead + ?Sized>(
    ours: (&State, &A),
    theirs: (&State, &B),
) -> Result<String, KvError> {
    if ours.0.meta() != theirs.0.meta() {
        let (left, right) = (ours.0.meta(), theirs.0.meta());
        return Ok(format!("the shard's row is {left:?}, expected {right:?}"));
    }
    let queues =
        |state: &State| -> Vec<_> { state.queues().map(|(id, row)| (id, row.clone())).collect() };
    let (left, right) = (queues(ours.0), queues(theirs.0));
    if let Some(at) = (0..left.len().max(right.len())).find(|at| left.get(*at) != right.get(*at)) {
        let (left, right) = (left.get(at), right.get(at));
        return Ok(format!("a queue is {left:?}, expected {right:?}"));
    }
    for table in Table::ALL {
        if matches!(table, Table::Queue | Table::Meta) {
            continue; // Compared above, in memory: these two tables may be older.
        }
        let (left, right) = (rows(ours.1, table)?, rows(theirs.1, table)?);
        if let Some(at) =
            (0..left.len().max(right.len())).find(|at| left.get(*at) != right.get(*at))
        {
            let name = |row: Option<&(Key, Vec<u8>)>| match row {
                Some((key, value)) => format!("{key:#x} with {} bytes", value.len()),
                None => "nothing".to_owned(),
            };
            let (left, right) = (name(left.get(at)), name(right.get(at)));
            return Ok(format!("table {table:?} holds {left}, expected {right}"));
        }
    }
    Ok("but all rows are equal".to_owned())
}

fn rows<K: KvRead + ?Sized>(kv: &K, table: Table) -> Result<Vec<(Key, Vec<u8>)>, KvError> {
    let mut all = Vec::new();
    for_each(kv, table, 0, Key::MAX, |key, value| {
        all.push((key, value.to_vec()));
        Ok(())
    })?;
    Ok(all)
}
