//! `codeq queue`: depths and rates, pause and resume, purge, policies.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use codeq_client::{Queue, Topic, TopicPolicy};
use codeq_server::suggest::nearest;
use serde::Serialize;

use crate::bulk::Purge;
use crate::cli::{
    About, Confirm, Connection, Done, Exit, Failure, Noun, Session, Show, cell, duration, each,
    seconds, span, talk,
};

#[derive(Subcommand)]
pub enum Verb {
    /// List the queues with their depths and rates.
    #[command(after_help = "\
Examples:
  codeq queue list
  codeq queue list -o name")]
    List,
    /// Show a queue.
    #[command(
        visible_alias = "inspect",
        after_help = "\
Examples:
  codeq queue get resize
  codeq queue inspect resize -o json"
    )]
    Get {
        /// Name of the queue.
        queue: String,
    },
    /// Explain why a queue does or does not move.
    #[command(after_help = "Example:\n  codeq queue why resize")]
    Why {
        /// Name of the queue.
        queue: String,
    },
    /// Pause claims from queues. Enqueues continue.
    #[command(after_help = "\
A queue that the server does not know is most likely a typo, so nothing is paused: exit code 3. --create pauses it
before its first task.

Examples:
  codeq queue pause resize
  codeq queue pause resize-v2 --create")]
    Pause {
        /// Names of the queues.
        #[arg(required = true, value_name = "QUEUE")]
        queues: Vec<String>,
        /// Also pause queues that have no tasks yet.
        #[arg(long)]
        create: bool,
    },
    /// Resume claims from queues.
    #[command(after_help = "Example:\n  codeq queue resume resize")]
    Resume {
        /// Names of the queues.
        #[arg(required = true, value_name = "QUEUE")]
        queues: Vec<String>,
    },
    /// Cancel the ready and delayed tasks of a queue.
    #[command(after_help = "\
Running tasks continue. Asks for the queue's name unless --yes is given.

Examples:
  codeq queue purge resize --dry-run
  codeq queue purge resize --before 7d --yes")]
    Purge(Purge),
    /// Show, change or delete the policy of a queue.
    #[command(after_help = "\
Without options, prints the policy. Options that are not given keep their values.

Examples:
  codeq queue policy resize
  codeq queue policy resize --max-attempts 3 --max-consumers 20 --retention 7d
  codeq queue policy resize --delete --yes")]
    Policy(Policy),
}

#[derive(clap::Args)]
pub struct Policy {
    /// Name of the queue.
    queue: String,
    /// Default and upper limit for the attempts of new tasks, 1 to 100.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    max_attempts: Option<u32>,
    /// Upper limit of tasks in progress at once, up to 10,000; 0 means no limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=10_000))]
    max_consumers: Option<u64>,
    /// How long an attempt may run if its task sets no limit; 0s means no limit.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_run: Option<Duration>,
    /// How long finished tasks are kept; 0s means the server's setting.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retention: Option<Duration>,
    /// How long dead letters are kept; 0s means as long as --retention or, without that, the server's setting.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    dead_letter_retention: Option<Duration>,
    /// Dead letters are also enqueued in this queue.
    #[arg(long, value_name = "QUEUE")]
    dead_letter_queue: Option<String>,
    /// Allowed priorities, 0 to 10 (10 counts as 9), separated by commas.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=10))]
    priority_tiers: Option<Vec<u8>>,
    /// Delete the policy. The queue's tasks stay.
    #[arg(long, conflicts_with_all = [
        "max_attempts", "max_consumers", "max_run", "retention", "dead_letter_retention",
        "dead_letter_queue", "priority_tiers",
    ])]
    delete: bool,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Serialize)]
struct Paused {
    command: String,
    paused: bool,
}

impl Show for Paused {
    const COLUMNS: &'static [&'static str] = &["QUEUE", "PAUSED"];

    fn cells(&self) -> Vec<String> {
        vec![self.command.clone(), self.paused.to_string()]
    }

    fn name(&self) -> String {
        self.command.clone()
    }
}

impl Show for Queue {
    const COLUMNS: &'static [&'static str] = &[
        "QUEUE",
        "READY",
        "DELAYED",
        "RUNNING",
        "DEAD",
        "OLDEST",
        "IN/S",
        "OUT/S",
        "PAUSED",
        // A narrow terminal leaves these out.
        "FAILED",
        "CANCELLED",
        "COMPLETED",
    ];

    fn cells(&self) -> Vec<String> {
        let stats = &self.stats;
        vec![
            stats.command.clone(),
            stats.ready.to_string(),
            stats.delayed.to_string(),
            stats.in_progress.to_string(),
            stats.dlq.to_string(),
            oldest(self),
            format!("{:.1}", self.enqueued_per_second),
            format!("{:.1}", self.finished_per_second),
            if self.paused { "yes" } else { "" }.to_owned(),
            stats.failed.to_string(),
            stats.cancelled.to_string(),
            stats.completed.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.stats.command.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let stats = &self.stats;
        vec![
            ("Queue", stats.command.clone()),
            ("Tenant", self.tenant_id.clone()),
            ("Ready", stats.ready.to_string()),
            ("Delayed", stats.delayed.to_string()),
            ("Running", stats.in_progress.to_string()),
            ("Completed", stats.completed.to_string()),
            ("Failed", stats.failed.to_string()),
            ("Cancelled", stats.cancelled.to_string()),
            ("Dead", stats.dlq.to_string()),
            ("Oldest ready", oldest(self)),
            ("Enqueued/s", format!("{:.1}", self.enqueued_per_second)),
            ("Claimed/s", format!("{:.1}", self.claimed_per_second)),
            ("Finished/s", format!("{:.1}", self.finished_per_second)),
            ("Payload bytes", self.bytes.to_string()),
            ("Paused", if self.paused { "yes" } else { "no" }.to_owned()),
        ]
    }
}

/// Age of the oldest claimable task; empty if there is none.
pub fn oldest(queue: &Queue) -> String {
    let age = Duration::try_from_secs_f64(queue.oldest_ready_seconds).unwrap_or_default();
    if queue.stats.ready == 0 { String::new() } else { span(age) }
}

impl Show for Topic {
    fn name(&self) -> String {
        self.topic_name.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut lines =
            vec![("Queue", self.topic_name.clone()), ("Version", self.version.to_string())];
        lines.extend(settings(&self.policy));
        lines.push(("Updated", self.updated_at.clone()));
        lines
    }
}

/// A policy as it would be without --dry-run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Planned<'a> {
    topic_name: &'a str,
    policy: &'a TopicPolicy,
    dry_run: bool,
}

impl Show for Planned<'_> {
    fn name(&self) -> String {
        self.topic_name.to_owned()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("Queue", self.topic_name.to_owned())];
        lines.extend(settings(self.policy));
        lines
    }
}

fn settings(policy: &TopicPolicy) -> Vec<(&'static str, String)> {
    let or_default = |seconds: u64| match seconds {
        0 => "server's setting".to_owned(),
        seconds => span(Duration::from_secs(seconds)),
    };
    let tiers = policy.priority_tiers.iter().flatten().map(u8::to_string);
    let consumers = match policy.max_consumers {
        0 => "no limit".to_owned(),
        limit => limit.to_string(),
    };
    let max_run = match policy.max_run_seconds {
        0 => "no limit".to_owned(),
        seconds => span(Duration::from_secs(seconds)),
    };
    vec![
        ("Max attempts", cell(policy.max_attempts)),
        ("Max consumers", consumers),
        ("Max run time", max_run),
        ("Retention", or_default(policy.retention_seconds)),
        (
            "Dead letters kept",
            or_default(match policy.dead_letter_retention_seconds {
                0 => policy.retention_seconds,
                own => own,
            }),
        ),
        ("Dead-letter queue", cell(policy.dead_letter_topic_ref.as_ref())),
        ("Priority tiers", tiers.collect::<Vec<_>>().join(", ")),
    ]
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    noun.run(top, async |verb, session| match verb {
        Verb::List => {
            let queues = session.http.queues().await.about("the list of queues")?;
            if queues.is_empty() {
                talk("no queues: a queue appears with its first task");
            }
            session.out.items(&queues)
        }
        Verb::Get { queue } => session.out.item(&find(&session, &queue).await?),
        Verb::Why { queue } => {
            find(&session, &queue).await?;
            crate::why::queue(&session, &queue).await
        }
        Verb::Pause { queues, create } => pause(&session, &queues, create).await,
        Verb::Resume { queues } => resume(&session, &queues).await,
        Verb::Purge(purge) => {
            find(&session, &purge.queue).await?;
            let what = format!("cancel the ready and delayed tasks of queue {}", purge.queue);
            purge
                .run(&session.out, &what, async |options| {
                    session.http.purge_queue(&purge.queue, &options).await
                })
                .await
        }
        Verb::Policy(policy) => policy.run(&session).await,
    })
}

/// The queue with its rates. A command about a queue that the server does not know is most likely a typo.
pub async fn find(session: &Session, name: &str) -> Done<Queue> {
    let mut queues = session.http.queues().await.about(&format!("queue {name}"))?;
    match queues.iter().position(|queue| is_named(queue, name)) {
        Some(at) => Ok(queues.swap_remove(at)),
        None => Err(unknown(&queues, name)),
    }
}

/// Names ignore ASCII case.
fn is_named(queue: &Queue, name: &str) -> bool {
    queue.stats.command.eq_ignore_ascii_case(name)
}

/// There is no such queue; perhaps another one was meant.
fn unknown(queues: &[Queue], name: &str) -> Failure {
    let names = queues.iter().map(|queue| queue.stats.command.as_str());
    let hint = match nearest(name, names.map(|name| (name, name))) {
        Some(near) => format!("did you mean '{near}'? `codeq queue list` lists the queues"),
        None => "list the queues: codeq queue list; a queue exists while it has tasks, a policy or a pause".to_owned(),
    };
    Failure::new(Exit::NotFound, format!("there is no queue '{name}'"), hint)
}

async fn pause(session: &Session, queues: &[String], create: bool) -> Done {
    if !create {
        // All or none: a typo in the second name does not pause the first.
        let known = session.http.queues().await.about("the list of queues")?;
        let is_unknown = |name: &&String| !known.iter().any(|queue| is_named(queue, name));
        if let Some(name) = queues.iter().find(is_unknown) {
            let failure = unknown(&known, name);
            let hint = format!("{}; --create pauses it before its first task", failure.hint());
            return Err(Failure::new(Exit::NotFound, failure.what(), hint));
        }
    }
    each(session.out, queues, async |queue| {
        session.http.pause_queue(queue).await.about(&format!("queue {queue}"))?;
        Ok(Paused { command: queue.to_owned(), paused: true })
    })
    .await
}

async fn resume(session: &Session, queues: &[String]) -> Done {
    each(session.out, queues, async |queue| {
        find(session, queue).await?;
        session.http.resume_queue(queue).await.about(&format!("queue {queue}"))?;
        Ok(Paused { command: queue.to_owned(), paused: false })
    })
    .await
}

impl Policy {
    async fn run(self, session: &Session) -> Done {
        let subject = format!("policy of queue {}", self.queue);
        if self.delete {
            self.confirm.ask(&format!("delete the {subject}"), &self.queue)?;
            let topic = session.http.topic(&self.queue).await.about(&subject)?;
            if !self.confirm.dry_run {
                session.http.delete_topic(&self.queue).await.about(&subject)?;
                talk(&format!("the {subject} is deleted"));
            } else {
                talk(&format!("the {subject} would be deleted:"));
            }
            return session.out.item(&topic);
        }
        let current = match session.http.topic(&self.queue).await {
            Err(error) if error.code() == Some("not_found") => None,
            other => Some(other.about(&subject)?),
        };
        let mut policy = current.as_ref().map_or_else(TopicPolicy::default, |it| it.policy.clone());
        let before = policy.clone();
        self.apply(&mut policy);
        match current {
            Some(topic) if policy == before => session.out.item(&topic),
            None if policy == before => {
                let hint = format!("set one: codeq queue policy {} --max-attempts 3", self.queue);
                let what = format!("queue {} has no policy", self.queue);
                Err(Failure::new(Exit::NotFound, what, hint))
            }
            _ if self.confirm.dry_run => {
                talk(&format!("the {subject} would become:"));
                session.out.item(&Planned {
                    topic_name: &self.queue,
                    policy: &policy,
                    dry_run: true,
                })
            }
            current => {
                let topic = session.http.put_topic(&self.queue, &policy).await.about(&subject)?;
                // The server replaces the whole policy, including what somebody else changed meanwhile.
                let expected = current.map_or(0, |topic| topic.version) + 1;
                if topic.version > expected {
                    talk(&format!(
                        "the {subject} was changed by somebody else at the same time, and this change replaced theirs: \
                         check it"
                    ));
                }
                session.out.item(&topic)
            }
        }
    }

    fn apply(&self, policy: &mut TopicPolicy) {
        let set = |to: &mut u64, given: Option<u64>| *to = given.unwrap_or(*to);
        set(&mut policy.max_consumers, self.max_consumers);
        set(&mut policy.max_run_seconds, self.max_run.map(seconds));
        set(&mut policy.retention_seconds, self.retention.map(seconds));
        set(&mut policy.dead_letter_retention_seconds, self.dead_letter_retention.map(seconds));
        policy.max_attempts = self.max_attempts.or(policy.max_attempts);
        if let Some(queue) = &self.dead_letter_queue {
            policy.dead_letter_topic_ref = Some(queue.clone());
        }
        if let Some(tiers) = &self.priority_tiers {
            policy.priority_tiers = Some(tiers.clone());
        }
    }
}
