//! Sets and removes a queue's policy; see [`crate::topic`].

use crate::command::{DeleteTopic, PutTopic};
use crate::kv::{Kv, KvError};
use crate::reply::{Rejection, Reply};
use crate::step::Step;
use crate::topic::{Topic, is_dns_label};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn put_topic(&mut self, command: &PutTopic) -> Result<Reply, KvError> {
        if !is_dns_label(&command.name) {
            return Ok(Reply::Rejected(Rejection::InvalidTopicName));
        }
        if let Err(rejection) = command.policy.check(&command.name) {
            return Ok(Reply::Rejected(rejection));
        }
        let id = match self.queue_or_new(&command.tenant, &command.name) {
            Ok(id) => id,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        let known = self.queue(id)?.row.topic.as_ref();
        let created = known.is_none();
        if let Some(topic) = known.filter(|topic| topic.policy == command.policy) {
            let topic = Box::new(topic.clone());
            return Ok(Reply::Topic { topic, created });
        }
        let topic = Topic {
            policy: command.policy.clone(),
            version: known.map_or(1, |topic| topic.version + 1),
            created_at: known.map_or(self.wall, |topic| topic.created_at),
            updated_at: self.wall,
        };
        self.queue_mut(id)?.row.topic = Some(topic.clone());
        self.reindex_head(id)?;
        Ok(Reply::Topic { topic: Box::new(topic), created })
    }

    pub(crate) fn delete_topic(&mut self, command: &DeleteTopic) -> Result<Reply, KvError> {
        let Some(id) = self.state.queue_id(&command.tenant, &command.name) else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        if self.queue(id)?.row.topic.is_none() {
            return Ok(Reply::Rejected(Rejection::NotFound));
        }
        self.queue_mut(id)?.row.topic = None;
        self.reindex_head(id)?;
        self.forget_if_unused(id);
        Ok(Reply::Done)
    }
}
