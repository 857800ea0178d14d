//! Dispatches each command to the file that implements it.

use crate::command::{Command, Holder};
use crate::effect::Effect;
use crate::kv::{Kv, KvError};
use crate::moment::Moment;
use crate::state::{Applied, State};
use crate::step::Step;

impl State {
    /// Applies one command at a moment. An error means that the store could not be read: the state may be half changed
    /// and must not be used any more.
    pub fn apply<K: Kv>(
        &mut self,
        kv: &mut K,
        at: Moment,
        command: &Command,
        effects: &mut Vec<Effect>,
    ) -> Result<Applied, KvError> {
        self.run(kv, at, command, effects, false)
    }

    /// Same as [`State::apply`], for a command whose answer nobody waits for, because it comes from the log or from another
    /// node. The rows, the state and the effects are the same. Returns whether anything changed.
    pub fn apply_quietly<K: Kv>(
        &mut self,
        kv: &mut K,
        at: Moment,
        command: &Command,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, KvError> {
        self.run(kv, at, command, effects, true).map(|applied| applied.changed)
    }

    fn run<K: Kv>(
        &mut self,
        kv: &mut K,
        at: Moment,
        command: &Command,
        effects: &mut Vec<Effect>,
        quiet: bool,
    ) -> Result<Applied, KvError> {
        let (now, wall) = (self.meta.now.max(at.now), at.wall);
        let mut step = Step { state: self, kv, now, wall, effects, changed: false, quiet };
        let reply = match command {
            Command::ConfigureV1(settings) => step.configure(&settings.clone().into()),
            Command::Configure(settings) => step.configure(settings),
            Command::EnqueueV1(command) => step.enqueue(&command.clone().into(), None)?,
            Command::EnqueueByValueV1(command) => step.enqueue_by_value(&command.clone().into())?,
            Command::Enqueue(command) => step.enqueue(command, None)?,
            Command::EnqueueByValue(command) => step.enqueue_by_value(command)?,
            Command::Claim(command) => step.claim(command)?,
            Command::Heartbeat(command) => {
                step.heartbeat(command, Holder::plain(&command.worker))?
            }
            Command::Submit(command) => step.submit(command, Holder::plain(&command.worker))?,
            Command::Nack(command) => step.nack(command, Holder::plain(&command.worker))?,
            Command::Abandon(command) => step.abandon(command, Holder::plain(&command.worker))?,
            Command::Cancel(command) => step.cancel(command)?,
            Command::Replay(command) => step.replay(command)?,
            Command::Purge(command) => step.purge(command)?,
            Command::Pause(command) => step.pause(command)?,
            Command::PutTopicV1(command) => step.put_topic(&command.clone().into())?,
            Command::PutTopicV2(command) => step.put_topic(&command.clone().into())?,
            Command::PutTopic(command) => step.put_topic(command)?,
            Command::DeleteTopic(command) => step.delete_topic(command)?,
            Command::Cleanup(command) => step.cleanup(command)?,
            Command::Sweep(command) => step.sweep(command)?,
            Command::Callback(command) => step.callback(command)?,
            Command::PutRecord(command) => step.put_record(command)?,
            Command::DeleteRecord(command) => step.delete_record(command)?,
            Command::BulkPartV1(command) => step.bulk_part(&command.clone().into())?,
            Command::BulkPart(command) => step.bulk_part(command)?,
            Command::UnderLease(command) => step.under_lease(command)?,
            Command::Reschedule(command) => step.reschedule(command)?,
        };
        let changed = step.changed;
        if changed {
            self.meta.now = now;
            self.meta.wall = wall;
        }
        Ok(Applied { reply, changed })
    }
}
