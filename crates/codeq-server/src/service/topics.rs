//! Reads and writes the policies of queues. A topic is a queue that has one; see [`codeq_core::topic`].

use std::sync::Arc;

use codeq_core::command::{Command, DeleteTopic, PutTopic};
use codeq_core::reply::{Rejection, Reply};
use codeq_core::topic::{Policy, Topic, is_dns_label};

use super::permission::MayAdminister;
use super::{Service, ServiceError};

/// The outcome of writing a policy.
pub struct TopicWritten {
    /// The topic after the write.
    pub topic: Topic,
    /// False if the write replaced an existing policy.
    pub created: bool,
}

impl Service {
    /// Creates or updates a policy.
    pub async fn put_topic(
        &self,
        caller: MayAdminister<'_>,
        name: &str,
        mut policy: Policy,
    ) -> Result<TopicWritten, ServiceError> {
        // The order of tiers carries no meaning, so store one canonical order.
        policy.priority_tiers.sort_unstable();
        let (tenant, name) = (caller.tenant.clone(), name.into());
        match self.propose(Command::PutTopic(PutTopic { tenant, name, policy })).await? {
            Reply::Topic { topic, created } => Ok(TopicWritten { topic: *topic, created }),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }

    /// The tenant's topics by name: the queues that have a policy.
    pub async fn topics(
        &self,
        caller: MayAdminister<'_>,
    ) -> Result<Vec<(Arc<str>, Topic)>, ServiceError> {
        let queues = self.queues_of(&caller.tenant).await?;
        Ok(queues.into_iter().filter_map(|queue| Some((queue.name, queue.topic?))).collect())
    }

    /// Returns a policy.
    pub async fn topic(
        &self,
        caller: MayAdminister<'_>,
        name: &str,
    ) -> Result<Topic, ServiceError> {
        if !is_dns_label(name) {
            return Err(Rejection::InvalidTopicName.into());
        }
        let queue = self.engine.queue(&caller.tenant, name).await?;
        let topic = queue.and_then(|queue| queue.topic);
        topic.ok_or_else(|| ServiceError::not_found("topic not found"))
    }

    /// Removes a policy; the queue and its tasks stay. Removing a missing policy succeeds.
    pub async fn delete_topic(
        &self,
        caller: MayAdminister<'_>,
        name: &str,
    ) -> Result<(), ServiceError> {
        if !is_dns_label(name) {
            return Err(Rejection::InvalidTopicName.into());
        }
        let (tenant, name) = (caller.tenant.clone(), name.into());
        match self.propose(Command::DeleteTopic(DeleteTopic { tenant, name })).await? {
            Reply::Rejected(Rejection::NotFound) => Ok(()),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Ok(()),
        }
    }
}
