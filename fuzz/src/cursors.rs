//! Cursors of lists and of bulk calls.

use codeq_core::command::BulkFrom;
use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use codeq_core::read::ListQuery;
use codeq_server::service::cursor::{decode, decode_from, encode, encode_from};

/// Any text is either refused as a cursor or decoded, and a cursor made of any position decodes to that position.
pub fn run(data: &[u8]) {
    let query = ListQuery { tenant: "acme".into(), ..ListQuery::default() };
    let about = [Some("acme".to_owned()), None];
    let positions = data.as_chunks().0.iter().map(|at| Seq(u64::from_le_bytes(*at)));
    let positions: Vec<Seq> = positions.collect();
    let shards = positions.len() as u16;
    assert_eq!(decode(&encode(&positions, &query), &query, shards), Ok(positions));
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = (decode(text, &query, 2), decode_from(text, &about));
        if text.len() < 100 {
            let queue = (!text.is_empty()).then(|| text.into());
            let from = BulkFrom { queue, list: 3, after: Seq(data.len() as u64) };
            assert_eq!(
                decode_from(&encode_from(ShardId(7), &from, &about), &about),
                Ok((ShardId(7), from))
            );
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let query = ListQuery { tenant: "acme".into(), ..ListQuery::default() };
    let from = BulkFrom { queue: Some("resize".into()), list: 1, after: Seq(99) };
    let cursors = [
        encode(&[Seq(7), Seq::MAX], &query),
        encode_from(ShardId(3), &from, &[Some("acme".to_owned()), None]),
    ];
    cursors.map(String::into_bytes).to_vec()
}
