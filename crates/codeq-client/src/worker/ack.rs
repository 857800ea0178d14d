//! The server's acknowledgements, converted to one type.

use codeq_proto::worker::{AbandonAck, HeartbeatAck, NackAck, ResultAck};

/// The server's acknowledgement of a message about a task.
pub(super) struct Ack {
    pub(super) task_id: String,
    pub(super) ok: bool,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) cancel_requested: bool,
    /// After a nack: the task is now a dead letter.
    pub(super) dead_letter: bool,
}

macro_rules! plain {
    ($($wire:ident),*) => {$(
        impl From<$wire> for Ack {
            fn from(ack: $wire) -> Ack {
                let $wire { task_id, ok, error_message, code, .. } = ack;
                let (cancel_requested, dead_letter) = (false, false);
                Ack { task_id, ok, code, message: error_message, cancel_requested, dead_letter }
            }
        }
    )*};
}

plain!(ResultAck, AbandonAck);

impl From<NackAck> for Ack {
    fn from(ack: NackAck) -> Ack {
        let NackAck { task_id, ok, error_message: message, code, dlq: dead_letter, .. } = ack;
        Ack { task_id, ok, code, message, cancel_requested: false, dead_letter }
    }
}

impl From<HeartbeatAck> for Ack {
    fn from(ack: HeartbeatAck) -> Ack {
        let HeartbeatAck { task_id, ok, error_message, code, cancel_requested, .. } = ack;
        Ack { task_id, ok, code, message: error_message, cancel_requested, dead_letter: false }
    }
}
