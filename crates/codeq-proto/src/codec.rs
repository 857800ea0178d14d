//! Checks messages before decoding them: an item takes a few bytes on the wire but hundreds in memory, so a message of
//! megabytes could take gigabytes.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, Encoder};
use tonic_prost::ProstCodec;

/// Most items per event: the tasks or results of a batch, or the commands of a `Ready`.
pub const ITEMS_MAX: usize = 10_000;

/// The codec of both streams; limits the items of a message.
#[derive(Debug)]
pub struct Checked<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Checked<T, U> {
    fn default() -> Checked<T, U> {
        Checked(PhantomData)
    }
}

impl<T, U> Codec for Checked<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = CheckedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        CheckedDecoder(PhantomData)
    }
}

/// Decodes messages with at most [`ITEMS_MAX`] items.
#[derive(Debug)]
pub struct CheckedDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for CheckedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode(from, ITEMS_MAX).map(Some)
    }
}

/// Decodes a contiguous message with at most `most` items.
pub fn decode<U: Message + Default>(from: impl Buf, most: usize) -> Result<U, Status> {
    // `None` if the buffer is not contiguous: then nothing is counted.
    let whole = from.chunk().get(..from.remaining());
    // An item takes at least two bytes, so most messages are too short to have that many.
    let whole = whole.filter(|message| message.len() > 2 * most);
    // One more, for the field of the event that holds the items.
    if whole.is_some_and(|message| items(message, most + 1) > most + 1) {
        let text = format!("a message has more than {most} items: send several messages");
        return Err(Status::invalid_argument(text));
    }
    U::decode(from).map_err(|error| Status::internal(error.to_string()))
}

/// Encodes the server's messages.
pub fn encoder<T: Message + Send + 'static>() -> impl Encoder<Item = T, Error = Status> {
    Checked::<T, ()>::default().encoder()
}

/// Counts the fields two levels down, which is where items repeat. Stops once the count exceeds `most`, or at bytes
/// that are not a valid message: the decoder reports what is wrong with them.
fn items(message: &[u8], most: usize) -> usize {
    let mut count = 0;
    for_each_field(message, |inner| {
        for_each_field(inner, |_| {
            count += 1;
            count <= most
        });
        // Fields of the event itself can repeat as well: all are decoded before the last one wins.
        count += 1;
        count <= most
    });
    count
}

/// Calls `each` with the bytes of each field, empty for a number, until it returns false.
fn for_each_field(mut bytes: &[u8], mut each: impl FnMut(&[u8]) -> bool) {
    while !bytes.is_empty() {
        let Some(key) = varint(&mut bytes) else { return };
        let len = match key & 7 {
            0 => match varint(&mut bytes) {
                Some(_) => 0,
                None => return,
            },
            1 => 8,
            2 => match varint(&mut bytes) {
                Some(len) => usize::try_from(len).unwrap_or(usize::MAX),
                None => return,
            },
            5 => 4,
            _ => return,
        };
        let Some((field, rest)) = bytes.split_at_checked(len) else { return };
        bytes = rest;
        if !each(if key & 7 == 2 { field } else { &[] }) {
            return;
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::producer_event::Event;
    use crate::producer::{CreateTask, CreateTaskBatch, ProducerEvent};
    use crate::worker::{Ready, WorkerEvent, worker_event};

    fn batch(tasks: usize, task: &CreateTask) -> Vec<u8> {
        let tasks = vec![task.clone(); tasks];
        ProducerEvent { event: Some(Event::CreateBatch(CreateTaskBatch { tasks })) }.encode_to_vec()
    }

    #[test]
    fn items_are_counted_where_they_repeat() {
        let full = CreateTask { seq: 7, payload: vec![b'0'; 300].into(), ..CreateTask::default() };
        assert_eq!(items(&batch(1_000, &full), ITEMS_MAX), 1_001);
        assert!(items(&batch(8_000_000, &CreateTask::default()), ITEMS_MAX) > ITEMS_MAX);
        let one = ProducerEvent { event: Some(Event::Create(full)) };
        assert_eq!(items(&one.encode_to_vec(), ITEMS_MAX), 3);
        let commands = vec!["c".to_owned(); 1_000];
        let ready = Ready { commands, lease_seconds: 30, count: 1 };
        let ready = WorkerEvent { event: Some(worker_event::Event::Ready(ready)) };
        assert_eq!(items(&ready.encode_to_vec(), ITEMS_MAX), 1_003);
        // The same event repeated: each is decoded before the last one wins.
        assert!(items(&one.encode_to_vec().repeat(5_000), ITEMS_MAX) > ITEMS_MAX);
    }

    #[test]
    fn bytes_that_make_no_sense_are_left_to_the_decoder() {
        for bytes in [
            &b"\xff"[..],
            b"\x0a",
            b"\x0a\x05a",
            b"\x0b\x0c",
            &[0x80; 20],
            b"\x0a\xff\xff\xff\xff\x0f",
        ] {
            assert!(items(bytes, ITEMS_MAX) <= 1, "{bytes:?}");
        }
    }
}
