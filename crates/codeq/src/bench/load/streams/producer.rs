//! A stream that creates tasks.

use codeq_proto::producer::producer_event::Event as Say;
use codeq_proto::producer::producer_stream_client::ProducerStreamClient;
use codeq_proto::producer::server_event::Event as Heard;
use codeq_proto::producer::{
    CreateAck, CreateTask, CreateTaskBatch, Hello, ProducerEvent, ServerEvent,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::Streaming;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;

use super::super::state::{Failure, RunState};
use super::{MESSAGE, connect, describe, greeting};

/// A stream that creates tasks.
pub struct Producer {
    out: UnboundedSender<ProducerEvent>,
    /// Creates without a response.
    in_flight: usize,
}

impl Producer {
    /// Opens a stream and sends Hello.
    pub async fn open(
        address: &str,
        token: &str,
    ) -> anyhow::Result<(Producer, Streaming<ServerEvent>)> {
        let channel = connect(address, "producer").await?;
        let (out, outgoing) = unbounded_channel();
        let producer = Producer { out, in_flight: 0 };
        producer.say(Say::Hello(Hello { token: token.to_owned() }));
        let client = ProducerStreamClient::new(channel);
        let mut client = client.max_decoding_message_size(MESSAGE);
        let answer = client.stream(UnboundedReceiverStream::new(outgoing)).await;
        let answer = answer.map_err(|status| {
            anyhow::anyhow!("the producer stream was refused: {}", describe(&status))
        });
        let mut incoming = answer?.into_inner();
        match greeting(&mut incoming, "producer").await?.event {
            Some(Heard::HelloAck(_)) => Ok((producer, incoming)),
            other => anyhow::bail!("the producer stream answered the hello with {other:?}"),
        }
    }

    fn say(&self, event: Say) {
        // That a stream is gone shows when its answers end.
        let _ = self.out.send(ProducerEvent { event: Some(event) });
    }

    /// Creates the tasks allowed now; returns whether there were any.
    pub fn create(&mut self, state: &mut RunState) -> bool {
        if self.in_flight + state.plan.create_batch > state.plan.in_flight {
            return false;
        }
        let mut numbers = state.take();
        self.in_flight += (numbers.end - numbers.start) as usize;
        if state.plan.create_batch > 1 {
            let tasks: Vec<CreateTask> = numbers.map(|number| task(state, number)).collect();
            let any = !tasks.is_empty();
            if any {
                self.say(Say::CreateBatch(CreateTaskBatch { tasks }));
            }
            return any;
        }
        let Some(number) = numbers.next() else {
            return false;
        };
        self.say(Say::Create(task(state, number)));
        true
    }

    /// Handles a message.
    pub fn handle(&mut self, state: &mut RunState, event: ServerEvent) -> Result<(), Failure> {
        match event.event {
            Some(Heard::CreateAck(ack)) => self.acknowledged(state, &ack),
            Some(Heard::CreateAckBatch(batch)) => {
                batch.acks.iter().for_each(|ack| self.acknowledged(state, ack));
            }
            Some(Heard::Error(error)) => {
                let (code, message) = (error.code, error.message);
                return Err(Failure::Refused(format!(
                    "the producer stream said {code}: {message}"
                )));
            }
            Some(Heard::HelloAck(_)) | None => {
                state.error("a message on the producer stream that was not asked for".to_owned());
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, state: &mut RunState, ack: &CreateAck) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if ack.ok {
            state.created(ack.seq, &ack.task_id);
        } else {
            state.refused(ack.seq, &ack.error_message);
        }
    }
}

fn task(state: &mut RunState, number: u64) -> CreateTask {
    CreateTask {
        seq: number,
        command: state.plan.command.clone(),
        payload: state.payloads.make(number),
        webhook: state.plan.webhook.clone(),
        ..CreateTask::default()
    }
}
