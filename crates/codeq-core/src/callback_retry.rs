//! Result callbacks: recording delivery attempts and scheduling retries.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use url::Url;

use crate::command::{Callback, Delivery};
use crate::effect::Effect;
use crate::keys::{self, QueueId, Seq, TimerKind};
use crate::kv::{Kv, KvError, Table};
use crate::lease::shorten;
use crate::limits::CALLBACK_RETRY_AFTER_MS_MAX;
use crate::moment::Millis;
use crate::reply::{Rejection, Reply};
use crate::rows::{BodyRow, OutboxRow, TaskRow};
use crate::settings::Settings;
use crate::step::Step;

pub use crate::state::CallbackCounts;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn callback(&mut self, command: &Callback) -> Result<Reply, KvError> {
        let Some(row) = self.find(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        let (seq, queue) = (command.id.seq(), row.queue);
        let ended_at = row.finish.map(|finish| finish.at);
        let is_latest = command.completed_at.is_none_or(|at| ended_at == Some(at));
        let outbox = OutboxRow::load(self.kv, keys::task(seq))?;
        let Some(was) = outbox.filter(|_| is_latest) else {
            return Ok(Reply::Rejected(Rejection::NoCallback));
        };
        let settings = &self.state.meta.settings;
        let next = match &command.delivery {
            Delivery::Delivered => None,
            Delivery::Failed { status, error, retry_after } => {
                let attempts = was.attempts.saturating_add(1);
                let asked = retry_after.unwrap_or(0).min(CALLBACK_RETRY_AFTER_MS_MAX);
                let pause = retry_delay(settings, attempts).max(asked);
                let again = attempts < settings.callback_attempts;
                Some(OutboxRow {
                    id: was.id,
                    attempts,
                    next_at: again.then(|| self.now.saturating_add(pause)),
                    last_status: *status,
                    last_error: Some(shorten(error.clone())),
                })
            }
            Delivery::Refused { status, error } => Some(OutboxRow {
                id: was.id,
                attempts: was.attempts.saturating_add(1),
                next_at: None,
                last_status: Some(*status),
                last_error: Some(shorten(error.clone())),
            }),
            Delivery::Resend => {
                Some(OutboxRow { attempts: 0, next_at: Some(self.now), ..was.clone() })
            }
        };
        self.set_callback(seq, queue, Some(&was), next)?;
        Ok(Reply::Done)
    }

    /// Adds the callback of a task that has just finished.
    pub(crate) fn add_callback(&mut self, seq: Seq, row: &TaskRow) -> Result<(), KvError> {
        let outbox = OutboxRow {
            id: row.id(seq),
            attempts: 0,
            next_at: Some(self.now),
            last_status: None,
            last_error: None,
        };
        self.set_callback(seq, row.queue, None, Some(outbox))
    }

    /// Drops the callback of a task that was replayed or removed.
    pub(crate) fn drop_callback(&mut self, seq: Seq, row: &TaskRow) -> Result<(), KvError> {
        if !row.has_webhook {
            return Ok(());
        }
        match OutboxRow::load(self.kv, keys::task(seq))? {
            Some(was) => self.set_callback(seq, row.queue, Some(&was), None),
            None => Ok(()),
        }
    }

    /// Same as [`Reader::awaits_callback`](crate::read::Reader::awaits_callback).
    pub(crate) fn awaits_callback(&self, seq: Seq, row: &TaskRow) -> Result<bool, KvError> {
        self.reader().awaits_callback(seq, row)
    }

    /// The only place that changes a callback: row, timer, counters and effect change together.
    fn set_callback(
        &mut self,
        seq: Seq,
        queue: QueueId,
        was: Option<&OutboxRow>,
        row: Option<OutboxRow>,
    ) -> Result<(), KvError> {
        self.changed = true;
        if let Some(was) = was {
            let slot = self.state.callbacks.slot(was);
            *slot = slot.saturating_sub(1);
            if let Some(at) = was.next_at {
                self.state.timers.disarm(self.kv, TimerKind::Callback, at, seq)?;
            }
        }
        let list = |row: &OutboxRow| keys::callback(queue, row.next_at.is_none(), seq);
        let (left, entered) = (was.map(list), row.as_ref().map(list));
        if left != entered {
            left.into_iter().for_each(|key| self.kv.delete(Table::Index, key));
            entered.into_iter().for_each(|key| self.kv.put(Table::Index, key, Bytes::new()));
        }
        let Some(row) = row else {
            self.kv.delete(Table::Outbox, keys::task(seq));
            return Ok(());
        };
        *self.state.callbacks.slot(&row) += 1;
        if let Some(at) = row.next_at {
            let callback_target = self.callback_target(seq, queue)?;
            self.state.timers.arm(self.kv, TimerKind::Callback, at, seq, callback_target);
            self.effects.push(Effect::CallbackDue { seq, at });
        }
        self.kv.put(Table::Outbox, keys::task(seq), row.encode());
        Ok(())
    }

    /// Packs the receiver and the tenant of a callback as hashes. They are stored with the timer, so that the sender
    /// can skip receivers that are down and share its time between tenants without reading the tasks.
    fn callback_target(&self, seq: Seq, queue: QueueId) -> Result<Bytes, KvError> {
        let body = self.kv.get(Table::Body, keys::task(seq))?.unwrap_or_default();
        let receiver = BodyRow::decode(seq, &body)?.webhook.map_or(0, receiver_of);
        let tenant = name_hash(&self.queue(queue)?.row.tenant);
        let both = (u128::from(tenant) << 64) | u128::from(receiver);
        Ok(Bytes::copy_from_slice(&both.to_le_bytes()))
    }
}

/// A hash of the URL's host and port, however the URL is spelled. It only affects scheduling: rows written by older
/// versions may hold a different hash for the same receiver and are still delivered.
pub fn receiver_of(url: &str) -> u64 {
    let host_and_port = Url::parse(url).ok().and_then(|url| {
        let host = url.host_str()?.trim_end_matches('.');
        Some(format!("{host}:{}", url.port_or_known_default()?))
    });
    name_hash(host_and_port.as_deref().unwrap_or(url))
}

/// A hash of a tenant's name, or of a host and port.
pub fn name_hash(text: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(text).into();
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn retry_delay(settings: &Settings, attempts: u32) -> Millis {
    let doublings = attempts.saturating_sub(1).min(32);
    settings.callback_base.saturating_mul(1 << doublings).min(settings.callback_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_a_host_and_port_however_the_url_is_spelled() {
        for [one, same] in [
            ["https://a.example:8443/x?y#z", "http://a.example:8443"],
            ["https://a.example:8443/x?y#z", "https://A.example:8443?q=/"],
            ["https://a.example:8443/x?y#z", "https://a.example.:08443#"],
            ["https://h/", "https://h:443/"],
            ["https://h", "HTTPS://H:0443/x"],
            ["http://H:80", "http://h./y"],
            ["http://h:80", "http://u:p@h/@x:1/"],
            ["http://[::1]:80/", "http://[0:0:0:0:0:0:0:1]/"],
            ["http://[2001:DB8::]/", "http://[2001:db8:0::0]:80"],
            ["https://b\u{fc}cher.example", "https://xn--bcher-kva.example:443"],
        ] {
            assert_eq!(receiver_of(one), receiver_of(same), "{one} {same}");
        }
        let one = receiver_of("https://a.example:8443/x?y#z");
        for other in ["https://a.example/x", "https://b.example:8443/x", "", "https://", "\0"] {
            assert_ne!(receiver_of(other), one, "{other}");
        }
        assert_ne!(receiver_of("http://h/"), receiver_of("https://h/"));
    }
}
