//! Where HTTP/1 requests begin and end.

use codeq_net::Framing;

/// The verdict does not depend on how the bytes are split. A refusal overwrites one byte; otherwise no byte changes.
pub fn run(data: &[u8]) {
    let spoiled = |step| {
        let checked = checked(data, step);
        checked.iter().zip(data).filter(|(now, before)| now != before).count()
    };
    let whole = spoiled(data.len().max(1));
    for step in [1, 2, 7] {
        let pieces = spoiled(step);
        assert!(pieces <= 1 && whole <= 1);
        // The byte is overwritten with a NUL, which cannot be seen if it was one already.
        assert!(pieces == whole || data.contains(&0), "in pieces of {step} bytes");
    }
}

fn checked(data: &[u8], step: usize) -> Vec<u8> {
    let (mut framing, mut bytes) = (Framing::default(), data.to_vec());
    bytes.chunks_mut(step).for_each(|piece| framing.check(piece));
    bytes
}

pub fn seeds() -> Vec<Vec<u8>> {
    let streams = [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n\n\n\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\nt: v\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    streams.map(|stream| stream.as_bytes().to_vec()).to_vec()
}
