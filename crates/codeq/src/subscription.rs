//! `codeq subscription`: notifications about new work.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use codeq_client::{DeliveryMode, NewSubscription, Subscribed, Subscription};

use crate::cli::{About, Connection, Done, Noun, Show, cell, duration, seconds, talk};

#[derive(Subcommand)]
pub enum Verb {
    /// List subscriptions: your own, or with an admin token all of the tenant's.
    #[command(after_help = "Example:\n  codeq subscription list")]
    List,
    /// Show a subscription.
    #[command(after_help = "Example:\n  codeq subscription get 6f1c0a52")]
    Get {
        /// The subscription's id.
        id: String,
    },
    /// Make the server call a URL when queues have work. Adding the same subscription again renews it.
    #[command(after_help = "\
Example:
  codeq subscription add http://127.0.0.1:9000/wake --queue resize --ttl 1h")]
    Add(Box<Add>),
    /// Renew a subscription.
    #[command(after_help = "Example:\n  codeq subscription renew 6f1c0a52 --ttl 1h")]
    Renew {
        /// The subscription's id.
        id: String,
        /// How long it lives from now. Default: its original lifetime.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Remove subscriptions.
    #[command(after_help = "Example:\n  codeq subscription remove 6f1c0a52")]
    Remove {
        /// The subscriptions' ids.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(clap::Args)]
pub struct Add {
    /// URL that receives the notifications.
    callback_url: String,
    /// Queues to watch. Default: all that the token allows.
    #[arg(long, value_name = "QUEUE")]
    queue: Vec<String>,
    /// How long it lives unless it is renewed. Default: 5m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
    /// Which subscriptions of a queue are notified. Default: fanout, or group with --group.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// The group's name, in group mode.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Minimum time between two notifications. Default: 5s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    min_interval: Option<Duration>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Every subscription.
    Fanout,
    /// One of each group, in rotation.
    Group,
    /// One, chosen by a hash of the queue's name.
    Hash,
}

fn mode(mode: DeliveryMode) -> &'static str {
    match mode {
        DeliveryMode::Fanout => "fanout",
        DeliveryMode::Group => "group",
        DeliveryMode::Hash => "hash",
        _ => "other",
    }
}

impl Show for Subscription {
    const COLUMNS: &'static [&'static str] = &["ID", "WORKER", "QUEUES", "MODE", "EXPIRES", "URL"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.subscription_id.clone(),
            self.worker_id.clone(),
            self.event_types.join(","),
            mode(self.delivery_mode).to_owned(),
            self.expires_at.clone(),
            self.callback_url.clone(),
        ]
    }

    fn name(&self) -> String {
        self.subscription_id.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Id", self.subscription_id.clone()),
            ("Worker", self.worker_id.clone()),
            ("URL", self.callback_url.clone()),
            ("Queues", self.event_types.join(", ")),
            ("Mode", mode(self.delivery_mode).to_owned()),
            ("Group", cell(self.group_id.as_ref())),
            ("Min interval", format!("{}s", self.min_interval_seconds)),
            ("Lifetime", format!("{}s", self.ttl_seconds)),
            ("Created", self.created_at.clone()),
            ("Expires", self.expires_at.clone()),
        ]
    }
}

impl Show for Subscribed {
    const COLUMNS: &'static [&'static str] = &["ID", "EXPIRES"];

    fn cells(&self) -> Vec<String> {
        vec![self.subscription_id.clone(), self.expires_at.clone()]
    }

    fn name(&self) -> String {
        self.subscription_id.clone()
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    noun.run(top, async |verb, session| -> Done {
        let http = &session.http;
        let of = |id: &str| format!("subscription {id}");
        match verb {
            Verb::List => {
                let subscriptions =
                    http.subscriptions().await.about("the list of subscriptions")?;
                if subscriptions.is_empty() {
                    talk("no subscriptions: add one with `codeq subscription add URL`");
                }
                session.out.items(&subscriptions)
            }
            Verb::Get { id } => session.out.item(&http.subscription(&id).await.about(&of(&id))?),
            Verb::Add(add) => {
                let new = add.new_subscription();
                let subject = format!("subscription of {}", new.callback_url);
                session.out.item(&http.subscribe(&new).await.about(&subject)?)
            }
            Verb::Renew { id, ttl } => {
                let renewed = http.renew_subscription(&id, ttl.map(whole)).await;
                session.out.item(&renewed.about(&of(&id))?)
            }
            Verb::Remove { ids } => {
                for id in ids {
                    http.unsubscribe(&id).await.about(&of(&id))?;
                    talk(&format!("{} removed", of(&id)));
                }
                Ok(())
            }
        }
    })
}

impl Add {
    fn new_subscription(self) -> NewSubscription {
        NewSubscription {
            callback_url: self.callback_url,
            event_types: self.queue,
            ttl_seconds: self.ttl.map(whole),
            delivery_mode: self.mode.map(|mode| match mode {
                Mode::Fanout => DeliveryMode::Fanout,
                Mode::Group => DeliveryMode::Group,
                Mode::Hash => DeliveryMode::Hash,
            }),
            group_id: self.group,
            min_interval_seconds: self.min_interval.map(whole),
        }
    }
}

fn whole(duration: Duration) -> u32 {
    u32::try_from(seconds(duration)).unwrap_or(u32::MAX)
}
