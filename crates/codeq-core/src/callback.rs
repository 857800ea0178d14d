//! Result callbacks: what became of a delivery, and when to try again.

use bytes::Bytes;

use crate::command::{Callback, Delivery, Millis};
use crate::effect::Effect;
use crate::keys::{self, TimerKind};
use crate::kv::{Kv, KvError, Table};
use crate::lease::shorten;
use crate::limits::CALLBACK_RETRY_AFTER_MS_MAX;
use crate::reply::{Rejection, Reply};
use crate::rows::OutboxRow;
use crate::settings::Settings;
use crate::step::Step;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn callback(&mut self, command: &Callback) -> Result<Reply, KvError> {
        let Some(row) = self.find(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        let seq = command.id.seq();
        let ended_at = row.finish.map(|finish| finish.at);
        let meant = command.completed_at.is_none_or(|at| ended_at == Some(at));
        let outbox = OutboxRow::load(self.kv, keys::task(seq))?;
        let Some(mut outbox) = outbox.filter(|_| meant) else {
            return Ok(Reply::Rejected(Rejection::NoCallback));
        };
        if let Some(at) = outbox.next_at.take() {
            self.state.timers.disarm(self.kv, TimerKind::Callback, at, seq)?;
        }
        self.changed = true;
        let settings = &self.state.meta.settings;
        match &command.delivery {
            Delivery::Delivered => {
                self.kv.delete(Table::Outbox, keys::task(seq));
                return Ok(Reply::Done);
            }
            Delivery::Failed { status, error, retry_after } => {
                outbox.attempts = outbox.attempts.saturating_add(1);
                outbox.last_status = *status;
                outbox.last_error = Some(shorten(error.clone()));
                if outbox.attempts < settings.callback_attempts {
                    let asked = retry_after.unwrap_or(0).min(CALLBACK_RETRY_AFTER_MS_MAX);
                    let pause = pause(settings, outbox.attempts).max(asked);
                    outbox.next_at = Some(self.now.saturating_add(pause));
                }
            }
            Delivery::Resend => {
                outbox.attempts = 0;
                outbox.next_at = Some(self.now);
            }
        }
        if let Some(at) = outbox.next_at {
            self.state.timers.arm(self.kv, TimerKind::Callback, at, seq, Bytes::new());
            self.effects.push(Effect::CallbackDue { seq });
        }
        self.kv.put(Table::Outbox, keys::task(seq), outbox.encode());
        Ok(Reply::Done)
    }
}

fn pause(settings: &Settings, attempts: u32) -> Millis {
    let doublings = attempts.saturating_sub(1).min(32);
    settings.callback_base.saturating_mul(1 << doublings).min(settings.callback_max)
}
