//! Converts commands and replies to ledger lines.

use codeq_core::command::{
    BulkWork, Command, Delivery, Outcome as Ending, PurgeTarget, ReplayTarget, RunWhen,
};
use codeq_core::id::TaskId;
use codeq_core::names::queue_name;
use codeq_core::place::Status;
use codeq_core::reply::{Enqueued, Reply, Returned};
use codeq_core::view::{ResultRecord, Task};

use crate::ledger::{
    Answer, Back, Delivered, Digest, Made, NotBefore, Op, Queue, Ref, Seen, Wanted, both_digest,
    digest, error_digest, result_digest,
};

/// The operation that a command requests.
pub fn op(command: &Command) -> Op {
    let task = |tenant: &str, worker: &str, id: TaskId| Ref {
        tenant: tenant.to_owned(),
        worker: worker.to_owned(),
        id,
    };
    let queue = |tenant: &str, command: &str| Queue {
        tenant: tenant.to_owned(),
        command: queue_name(command).into_owned(),
    };
    match command {
        Command::Enqueue(c) => Op::Enqueue {
            tenant: c.tenant.to_string(),
            tasks: c
                .tasks
                .iter()
                .map(|task| Wanted {
                    command: task.command.to_string(),
                    payload: digest(&task.payload),
                    key: task.idempotency_key.as_deref().map(str::to_owned),
                    webhook: task.webhook.is_some(),
                    max_attempts: task.max_attempts,
                    max_run: task.max_run.filter(|limit| *limit > 0),
                    not_before: match (task.run_at, task.delay) {
                        (Some(at), _) => Some(NotBefore::At(at)),
                        (None, Some(delay)) => Some(NotBefore::After(delay)),
                        (None, None) => None,
                    },
                })
                .collect(),
        },
        Command::EnqueueByValue(c) => op(&Command::Enqueue(c.enqueue.clone())),
        Command::Claim(c) => Op::Claim {
            tenant: c.tenant.to_string(),
            worker: c.worker.to_string(),
            commands: match &c.from {
                codeq_core::command::Selector::Any => None,
                codeq_core::command::Selector::Commands(names) => {
                    Some(names.iter().map(ToString::to_string).collect())
                }
            },
        },
        Command::Heartbeat(c) => Op::Heartbeat(task(&c.tenant, &c.worker, c.id)),
        Command::Submit(c) => {
            Op::Submit(task(&c.tenant, &c.worker, c.id), outcome_digest(&c.outcome))
        }
        Command::Nack(c) => Op::Nack(task(&c.tenant, &c.worker, c.id)),
        Command::Abandon(c) => Op::Abandon(task(&c.tenant, &c.worker, c.id), c.penalty),
        Command::UnderLease(c) => op(&Command::from((*c.action).clone())),
        Command::Cancel(c) => Op::Cancel(task(&c.tenant, &c.by, c.id)),
        Command::Reschedule(c) => {
            let when = c.when.map(|when| match when {
                RunWhen::After(delay) => NotBefore::After(delay),
                RunWhen::At(date) => NotBefore::At(date),
            });
            Op::Reschedule(task(&c.tenant, &c.by, c.id), when)
        }
        Command::Replay(c) => match &c.target {
            ReplayTarget::One(id) => Op::ReplayOne(task(&c.tenant, &c.by, *id)),
            ReplayTarget::Queue { command, .. } => Op::ReplayQueue(queue(&c.tenant, command)),
        },
        Command::Purge(c) => match c.target {
            PurgeTarget::Dead => Op::PurgeDead(queue(&c.tenant, &c.command)),
            PurgeTarget::Waiting => Op::PurgeWaiting(queue(&c.tenant, &c.command)),
        },
        Command::Cleanup(c) => Op::Cleanup { tenant: c.tenant.to_string() },
        Command::BulkPart(c) => match &c.work {
            BulkWork::Cleanup { .. } => Op::Cleanup { tenant: c.tenant.to_string() },
            BulkWork::PurgeDead { command } => Op::PurgeDead(queue(&c.tenant, command)),
            BulkWork::PurgeWaiting { command } | BulkWork::Cancel { command, .. } => {
                Op::PurgeWaiting(queue(&c.tenant, command))
            }
            BulkWork::Replay { command, .. } => Op::ReplayQueue(queue(&c.tenant, command)),
        },
        Command::Callback(c) => {
            let how = match c.delivery {
                Delivery::Delivered => Delivered::Yes,
                Delivery::Failed { .. } | Delivery::Refused { .. } => Delivered::No,
                Delivery::Resend => Delivered::Resend,
            };
            Op::Callback(task(&c.tenant, "sender", c.id), how)
        }
        Command::EnqueueV1(_) | Command::EnqueueByValueV1(_) | Command::BulkPartV1(_) => {
            Op::Other("only in older logs".to_owned())
        }
        Command::Pause(_) => Op::Other("pause".to_owned()),
        Command::PutTopicV1(_)
        | Command::PutTopicV2(_)
        | Command::PutTopic(_)
        | Command::DeleteTopic(_) => Op::Other("topic".to_owned()),
        Command::PutRecord(_) | Command::DeleteRecord(_) => Op::Other("record".to_owned()),
        Command::ConfigureV1(_) | Command::Configure(_) => Op::Other("configure".to_owned()),
        Command::Sweep(_) => Op::Other("sweep".to_owned()),
    }
}

/// What a reply says, or the text of a refusal.
pub fn answer(reply: &Reply) -> Result<Answer, String> {
    Ok(match reply {
        Reply::Enqueued(made) => Answer::Enqueued(
            made.iter()
                .map(|one| match one {
                    Enqueued::Created(task) => Made::Created(seen(task)),
                    Enqueued::Repeated(task) => Made::Repeated(seen(task)),
                    Enqueued::Rejected(why) => Made::Refused(why.to_string()),
                })
                .collect(),
        ),
        Reply::Claimed(tasks) => Answer::Claimed(tasks.iter().map(seen).collect()),
        Reply::Extended { lease_until, .. } => Answer::Extended(*lease_until),
        Reply::Submitted(record) => Answer::Result(record_digest(record)),
        Reply::Returned(back) => Answer::Returned(match back {
            Returned::Requeued { delay } => Back::Requeued(*delay),
            Returned::Dead => Back::Dead,
            Returned::Cancelled => Back::Cancelled,
        }),
        Reply::Cancelled(task)
        | Reply::CancelRequested(task)
        | Reply::Replayed(task)
        | Reply::Rescheduled(task) => Answer::Task(seen(task)),
        Reply::Rejected(why) => return Err(why.to_string()),
        Reply::Done
        | Reply::Bulk(_)
        | Reply::BulkPart(_)
        | Reply::Topic { .. }
        | Reply::Record(_)
        | Reply::Swept(_) => Answer::Done,
    })
}

/// A task as a client sees it.
pub fn seen(task: &Task) -> Seen {
    Seen {
        id: task.id,
        tenant: task.tenant.to_string(),
        command: task.command.to_string(),
        payload: digest(&task.payload),
        priority: task.priority,
        status: task.place.status().as_str().to_owned(),
        worker: task.worker.as_deref().map(str::to_owned),
        lease_until: task.lease_until,
        fence: Some(task.fence),
        attempts: task.attempts,
        max_attempts: task.max_attempts,
        visible_at: task.visible_at,
        run_until: task.run_until,
        updated_at: task.updated_at,
    }
}

/// The digest of a stored result.
pub fn record_digest(record: &ResultRecord) -> Digest {
    match (&record.result, &record.error) {
        (Some(result), Some(error)) => {
            both_digest(record.status == Status::Completed, result, error)
        }
        (Some(result), None) => result_digest(result),
        (None, Some(error)) => error_digest(error),
        (None, None) => 0,
    }
}

fn outcome_digest(outcome: &Ending) -> Digest {
    match outcome {
        Ending::Completed(result) if result.is_empty() => result_digest(b"{}"),
        Ending::Completed(result) => result_digest(result),
        Ending::Failed(error) => error_digest(error),
        Ending::Both { completed, result, error } => both_digest(*completed, result, error),
    }
}
