//! `codeq webhook`: undelivered result callbacks, signatures and secrets.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Subcommand, ValueEnum};
use codeq_client::webhook::Verifier;
use codeq_client::{Delivery, DeliveryStatus};
use serde::Serialize;

use crate::cli::{
    About, Connection, Done, Failure, Noun, Session, Show, cell, duration, ended, input, seconds,
    talk,
};

#[derive(Subcommand)]
pub enum Verb {
    /// List result callbacks that have not been delivered.
    #[command(after_help = "\
Examples:
  codeq webhook deliveries
  codeq webhook deliveries --status failed -o name")]
    Deliveries {
        /// Only those that will be retried, or only those that have failed.
        #[arg(long, value_enum)]
        status: Option<State>,
        /// How many to list.
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
    },
    /// Send callbacks again, at once and with all attempts restored.
    #[command(after_help = "\
Examples:
  codeq webhook resend 0d2c0a8f-0000-7000-8000-000000000001
  codeq webhook resend --failed")]
    Resend {
        /// Ids of the tasks.
        #[arg(value_name = "ID", required_unless_present = "failed")]
        ids: Vec<String>,
        /// All callbacks that have failed.
        #[arg(long, conflicts_with = "ids")]
        failed: bool,
    },
    /// Check the signature of a call that you have received.
    #[command(after_help = "\
Needs no server. The headers are webhook-id, webhook-timestamp and webhook-signature. The body must be the bytes
as they were received.

Exit code: 0 the signature is good, 1 it is not.

Example:
  codeq webhook verify --secret-file hook.secret --body @body.json -H 'webhook-id: msg_1' \\
    -H 'webhook-timestamp: 1767225600' -H 'webhook-signature: v1,…' --any-time")]
    Verify(Box<Verify>),
    /// Set a new signing secret and print it. It is shown only once.
    #[command(after_help = "\
Calls are signed with both secrets for the overlap, so that receivers can change theirs.

Example:
  codeq webhook rotate --overlap 2h")]
    Rotate {
        /// File with the new secret. Default: the server generates one.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<String>,
        /// How long calls are signed with the previous secret as well. Default: 1d.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        overlap: Option<Duration>,
    },
}

#[derive(clap::Args)]
pub struct Verify {
    /// File with the secret: whsec_… or plain text.
    #[arg(long, value_name = "FILE", required_unless_present = "secret")]
    secret_file: Option<String>,
    /// The secret itself. Prefer a file: every user of this machine can see the process list.
    #[arg(long, value_name = "SECRET", conflicts_with = "secret_file")]
    secret: Option<String>,
    /// The body: text, @FILE, or - for stdin.
    #[arg(long, value_name = "BODY", default_value = "-")]
    body: String,
    /// A header, such as 'webhook-id: msg_1'.
    #[arg(long, short = 'H', value_name = "NAME: VALUE", required = true)]
    header: Vec<String>,
    /// Accept calls that were signed more than five minutes ago.
    #[arg(long)]
    any_time: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum State {
    /// Will be retried.
    Pending,
    /// Attempts used up, or refused by the receiver.
    Failed,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rotated {
    secret: String,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_expires_at: Option<String>,
}

#[derive(Serialize)]
struct Resent {
    resent: u64,
}

impl Show for Resent {
    const COLUMNS: &'static [&'static str] = &["RESENT"];

    fn cells(&self) -> Vec<String> {
        vec![self.resent.to_string()]
    }

    fn name(&self) -> String {
        self.resent.to_string()
    }
}

impl Show for Rotated {
    const COLUMNS: &'static [&'static str] = &["SECRET", "CREATED", "PREVIOUS EXPIRES"];

    fn cells(&self) -> Vec<String> {
        vec![self.secret.clone(), self.created_at.clone(), cell(self.previous_expires_at.as_ref())]
    }

    fn name(&self) -> String {
        self.secret.clone()
    }
}

impl Show for Delivery {
    const COLUMNS: &'static [&'static str] =
        &["TASK", "QUEUE", "STATUS", "ATTEMPTS", "NEXT", "LAST", "URL", "ERROR"];

    fn cells(&self) -> Vec<String> {
        let status = match self.status {
            DeliveryStatus::Pending => "pending",
            DeliveryStatus::Failed => "failed",
        };
        vec![
            self.id.clone(),
            self.event_type.clone(),
            status.to_owned(),
            self.attempts.to_string(),
            cell(self.next_attempt_at.as_ref()),
            cell(self.last_status),
            self.url.clone(),
            self.last_error.clone(),
        ]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    if let Verb::Verify(verify) = &noun.verb {
        return ended(verify.run());
    }
    noun.run(top, async |verb, session| match verb {
        Verb::Deliveries { status, limit } => deliveries(&session, status, limit).await,
        Verb::Resend { failed: true, .. } => resend_failed(&session).await,
        Verb::Resend { ids, .. } => {
            for id in &ids {
                session.http.resend_delivery(id).await.about(&format!("callback of task {id}"))?;
            }
            session.out.item(&Resent { resent: ids.len() as u64 })
        }
        Verb::Verify(verify) => verify.run(),
        Verb::Rotate { secret_file, overlap } => {
            let secret = secret_file.map(|file| secret(&file)).transpose()?;
            let made = session.http.rotate_webhook_secret(secret.as_deref(), overlap.map(seconds));
            let made = made.await.about("the signing secret")?;
            let (created_at, previous_expires_at) = (made.created_at, made.previous_expires_at);
            session.out.item(&Rotated { secret: made.secret, created_at, previous_expires_at })
        }
    })
}

async fn deliveries(session: &Session, status: Option<State>, limit: u64) -> Done {
    let status = status.map(|status| match status {
        State::Pending => DeliveryStatus::Pending,
        State::Failed => DeliveryStatus::Failed,
    });
    let mut list = session.out.list();
    let mut cursor: Option<String> = None;
    let more = loop {
        let page = session.http.deliveries(status, cursor.as_deref()).await;
        let mut page = page.about("the list of deliveries")?;
        let left = usize::try_from(limit.saturating_sub(list.printed())).unwrap_or(usize::MAX);
        page.items.truncate(left);
        list.page(&page.items)?;
        cursor = page.next_cursor;
        if cursor.is_none() || list.printed() >= limit {
            break cursor.is_some();
        }
    };
    list.end()?;
    match list.printed() {
        0 => talk("no undelivered callbacks"),
        n if more => talk(&format!("{n} deliveries listed, there are more: raise --limit")),
        _ => {}
    }
    Ok(())
}

async fn resend_failed(session: &Session) -> Done {
    let (mut resent, mut cursor) = (0, None::<String>);
    loop {
        let done = session.http.resend_failed_deliveries(None, cursor.as_deref()).await;
        let done = done.about("failed callbacks")?;
        resent += done.resent;
        cursor = done.next_cursor;
        if cursor.is_none() {
            return session.out.item(&Resent { resent });
        }
    }
}

fn secret(file: &str) -> Done<String> {
    let bytes = input(&format!("@{file}"))?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

impl Verify {
    fn run(&self) -> Done {
        let secret = match (&self.secret, &self.secret_file) {
            (Some(secret), _) => secret.clone(),
            (None, Some(file)) => secret(file)?,
            (None, None) => String::new(),
        };
        let verifier = Verifier::new(&secret).map_err(|error| {
            Failure::usage(error.to_string(), "use the secret as `codeq webhook rotate` printed it")
        })?;
        let header = |wanted: &str| {
            let pairs = self.header.iter().filter_map(|header| header.split_once(':'));
            let mut found = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
            found.next().map(|(_, value)| value.trim().to_owned())
        };
        let signed = header("webhook-timestamp").and_then(|text| text.parse().ok());
        let signed = signed.and_then(|at| UNIX_EPOCH.checked_add(Duration::from_secs(at)));
        let now = signed.filter(|_| self.any_time).unwrap_or_else(SystemTime::now);
        verifier.verify(header, &input(&self.body)?, now).map_err(|error| {
            let hint = match error {
                codeq_client::webhook::Unverified::Time => "add --any-time to check an older call",
                codeq_client::webhook::Unverified::Header(_) => {
                    "pass the header as it was received"
                }
                _ => "check the secret, and that the body is byte for byte as received",
            };
            Failure::error(error.to_string(), hint)
        })?;
        talk("the signature is good");
        Ok(())
    }
}
