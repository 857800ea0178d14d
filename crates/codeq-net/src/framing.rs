//! Strict HTTP/1 framing: checks where each request begins and ends.
//!
//! Two programs that disagree on where a request ends enable request smuggling. Hyper is lenient in
//! the places known for this: a bare LF ends a line, a Content-Length next to a Transfer-Encoding
//! is dropped, a repeated Content-Length is accepted. A parsed request shows none of this, so this
//! module checks the bytes as they arrive. It overwrites bad input with a NUL, which makes hyper
//! answer 400 and close the connection.

/// Bytes kept of each line. A length header or chunk size longer than this is refused.
const KEPT: usize = 64;

/// Follows the bytes of one connection.
#[derive(Debug, Default)]
pub struct Framing {
    part: Part,
    line: Line,
    head: Head,
}

/// The part of the request that the next byte belongs to.
#[derive(Debug, Default, Clone, Copy)]
enum Part {
    /// The request line, or empty lines before it.
    #[default]
    Start,
    Header,
    Body(u64),
    ChunkSize,
    /// A chunk and the CRLF after it.
    Chunk(u64),
    Trailer,
    /// The request was refused. Hyper reads no further.
    Refused,
}

/// How the request head describes the body.
#[derive(Debug, Default, Clone, Copy)]
struct Head {
    length: Option<u64>,
    chunked: bool,
}

/// The start of a line, collected over several reads.
#[derive(Debug)]
struct Line {
    kept: [u8; KEPT],
    len: usize,
    last: u8,
}

impl Default for Line {
    fn default() -> Self {
        Self { kept: [0; KEPT], len: 0, last: 0 }
    }
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        let room = self.kept.get_mut(self.len.min(KEPT)..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.len = self.len.saturating_add(bytes.len());
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// The line without its CR; `None` if the CR is missing.
    fn text(&self) -> Option<&[u8]> {
        if self.last != b'\r' {
            return None;
        }
        self.kept.get(..self.len.saturating_sub(1).min(KEPT))
    }

    fn is_cut(&self) -> bool {
        self.len > KEPT
    }
}

/// The request must not be served.
struct Refusal;

impl Framing {
    /// Checks the bytes just read, and corrupts them if the request must be refused.
    pub fn check(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            bytes = match self.part {
                Part::Refused => return,
                Part::Body(left) => self.skip(bytes, left, Part::Start, Part::Body),
                Part::Chunk(left) => self.skip(bytes, left, Part::ChunkSize, Part::Chunk),
                _ => self.line(bytes),
            };
        }
    }

    fn skip<'a>(
        &mut self,
        bytes: &'a mut [u8],
        left: u64,
        after: Part,
        during: fn(u64) -> Part,
    ) -> &'a mut [u8] {
        let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - n as u64;
        self.part = if left == 0 { after } else { during(left) };
        bytes.get_mut(n..).unwrap_or_default()
    }

    /// Consumes a line, or the part of it that has arrived.
    fn line<'a>(&mut self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let Some(at) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.push(bytes);
            return &mut [];
        };
        let (line, rest) = bytes.split_at_mut(at + 1);
        self.line.push(line.get(..at).unwrap_or_default());
        match self.line_ended() {
            Ok(part) => self.part = part,
            Err(Refusal) => {
                self.part = Part::Refused;
                corrupt(line);
            }
        }
        self.line.len = 0;
        self.line.last = 0;
        rest
    }

    fn line_ended(&mut self) -> Result<Part, Refusal> {
        let text = self.line.text().ok_or(Refusal)?;
        match (self.part, text.is_empty()) {
            (Part::Start, true) => Ok(Part::Start),
            (Part::Start, false) => {
                self.head = Head::default();
                Ok(Part::Header)
            }
            (Part::Header, false) => {
                self.head.header(text, self.line.is_cut())?;
                Ok(Part::Header)
            }
            (Part::Header, true) => Ok(self.head.body()),
            (Part::Trailer, false) => Ok(Part::Trailer),
            (Part::Trailer, true) => Ok(Part::Start),
            _ => match chunk_size(text, self.line.is_cut())? {
                0 => Ok(Part::Trailer),
                size => Ok(Part::Chunk(size.checked_add(2).ok_or(Refusal)?)),
            },
        }
    }
}

impl Head {
    /// A length header must appear once, without the other kind, and in its plain form.
    fn header(&mut self, line: &[u8], cut: bool) -> Result<(), Refusal> {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Ok(()) };
        let (name, value) = line.split_at(colon);
        let length = name.eq_ignore_ascii_case(b"content-length");
        if !length && !name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Ok(());
        }
        if cut || self.chunked || self.length.is_some() {
            return Err(Refusal);
        }
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if length {
            self.length = Some(digits(value, 10)?);
        } else {
            self.chunked = value.eq_ignore_ascii_case(b"chunked");
            if !self.chunked {
                return Err(Refusal);
            }
        }
        Ok(())
    }

    fn body(self) -> Part {
        match (self.chunked, self.length) {
            (true, _) => Part::ChunkSize,
            (false, None | Some(0)) => Part::Start,
            (false, Some(length)) => Part::Body(length),
        }
    }
}

/// Parses a chunk size, which must be whole. Leaves a chunk extension to hyper.
fn chunk_size(line: &[u8], cut: bool) -> Result<u64, Refusal> {
    let end = line.iter().position(|byte| *byte == b';');
    if cut && end.is_none() {
        return Err(Refusal);
    }
    let size = line.get(..end.unwrap_or(line.len())).unwrap_or_default();
    digits(size.trim_ascii_end(), 16)
}

/// Parses digits only: no sign, no spaces, not empty.
fn digits(text: &[u8], radix: u32) -> Result<u64, Refusal> {
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'));
    u64::from_str_radix(text.ok_or(Refusal)?, radix).map_err(|_| Refusal)
}

/// Corrupts a line but keeps its LF if possible: hyper looks for the end of the head before it
/// parses the head.
fn corrupt(line: &mut [u8]) {
    let last = line.len().saturating_sub(1);
    if let Some(byte) = line.get_mut(last.saturating_sub(1)) {
        *byte = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a stream in pieces of `step` bytes. Returns whether it was refused, and the bytes for
    /// hyper.
    fn feed(stream: &[u8], step: usize) -> (bool, Vec<u8>) {
        let mut framing = Framing::default();
        let mut seen = stream.to_vec();
        for piece in seen.chunks_mut(step) {
            framing.check(piece);
        }
        (matches!(framing.part, Part::Refused), seen)
    }

    #[test]
    fn valid_streams_pass_untouched_however_they_are_cut() {
        let extension = "x".repeat(KEPT);
        let extended = format!(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;{extension}\r\n\n\r\n0\r\n\r\n"
        );
        let streams: [&[u8]; 8] = [
            extended.as_bytes(),
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"\r\n\r\nGET / HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n\n\n\nGET / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\ncontent-length:0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\nt: v\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\n",
            b"POST / HTTP/1.1\r\nx-content-length: a\r\ncontent-length: 00000000000000000000000000003\r\n\r\nabc",
        ];
        for stream in streams {
            for step in 1..=stream.len() {
                let (refused, seen) = feed(stream, step);
                assert!(!refused, "step {step}: {}", stream.escape_ascii());
                assert_eq!(seen, stream);
            }
        }
    }

    #[test]
    fn ambiguous_streams_are_corrupted_however_they_are_cut() {
        let pad = " ".repeat(KEPT);
        let padded = format!("POST / HTTP/1.1\r\nContent-Length:{pad}1\r\n\r\na");
        let zeros = "0".repeat(KEPT);
        let long_size =
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{zeros}5\r\n");
        let streams: [&[u8]; 14] = [
            b"GET / HTTP/1.1\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\n\n",
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ncontent-LENGTH: 1\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na",
            b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\na",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            padded.as_bytes(),
            long_size.as_bytes(),
        ];
        for stream in streams {
            for step in 1..=stream.len() {
                let (refused, seen) = feed(stream, step);
                assert!(refused, "step {step}: {}", stream.escape_ascii());
                assert_ne!(seen, stream);
                assert_eq!(seen.iter().filter(|byte| **byte == 0).count(), 1);
            }
        }
    }

    #[test]
    fn a_request_after_another_is_checked_too() {
        for first in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n\r\n\r\na",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ] {
            let second =
                b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
            let stream = [first, second].concat();
            for step in [1, 7, stream.len()] {
                let (refused, seen) = feed(&stream, step);
                assert!(refused);
                assert_eq!(&seen[..first.len()], first);
            }
        }
    }
}
