//! Converts the server's acknowledgements to one type.

use codeq_proto::worker::{AbandonAck, HeartbeatAck, NackAck, ResultAck};

use super::leased::Ack;

macro_rules! plain {
    ($($wire:ident),*) => {$(
        impl From<$wire> for Ack {
            fn from(ack: $wire) -> Ack {
                let $wire { task_id, ok, error_message, code, .. } = ack;
                Ack { task_id, ok, code, message: error_message, cancel_requested: false }
            }
        }
    )*};
}

plain!(ResultAck, NackAck, AbandonAck);

impl From<HeartbeatAck> for Ack {
    fn from(ack: HeartbeatAck) -> Ack {
        let HeartbeatAck { task_id, ok, error_message, code, cancel_requested, .. } = ack;
        Ack { task_id, ok, code, message: error_message, cancel_requested }
    }
}
