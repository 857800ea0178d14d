//! Converts the server's acknowledgements to one type.

use codeq_proto::worker::{AbandonAck, HeartbeatAck, NackAck, ResultAck};

use super::leased::Ack;

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
