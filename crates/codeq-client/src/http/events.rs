//! The event stream: transitions of tasks as they happen.

use reqwest::{Method, Response};
use serde::{Deserialize, Serialize};

use super::types::Status;
use super::{HttpClient, failed};
use crate::error::Error;

/// Longest event that is read. The server's events are shorter than a kilobyte.
const EVENT_MAX: usize = 1 << 20;

/// A transition of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskEvent {
    /// The task's id.
    pub task_id: String,
    /// The queue, in lowercase.
    pub command: String,
    /// What happened, such as `created` or `claimed`; see [`Transition::event`](crate::Transition::event).
    pub event: String,
    /// The previous location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The new location; absent if the task was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The status after the transition; absent if the task was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// When it happened.
    pub at: String,
}

/// An item of the event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A task changed.
    Task(TaskEvent),
    /// Transitions were missed because the server no longer keeps them: list the tasks again.
    Missed,
}

/// An open event stream.
#[derive(Debug)]
pub struct Events {
    response: Response,
    buffer: Vec<u8>,
    last_id: Option<String>,
}

impl HttpClient {
    /// Opens the stream of transitions of the tenant's tasks, optionally of one queue. It begins now, or after the
    /// event `after`, which is [`Events::last_id`] of an earlier stream.
    pub async fn events(
        &self,
        command: Option<&str>,
        after: Option<&str>,
    ) -> Result<Events, Error> {
        let request = self.request(Method::GET, &["events"])?.query(&[("command", command)]);
        let response = request.last_event_id(after).answer(None).await?;
        let last_id = after.map(str::to_owned);
        Ok(Events { response, buffer: Vec::new(), last_id })
    }
}

impl Events {
    /// The next event; `None` once the server has ended the stream. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            while let Some(end) = end_of_block(&self.buffer) {
                let block: Vec<u8> = self.buffer.drain(..end).collect();
                let (id, event) = parse(&String::from_utf8_lossy(&block))?;
                self.last_id = id.or(self.last_id.take());
                if event.is_some() {
                    return Ok(event);
                }
            }
            if self.buffer.len() > EVENT_MAX {
                return Err(Error::TooLarge(format!("an event has more than {EVENT_MAX} bytes")));
            }
            match self.response.chunk().await.map_err(failed)? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// The id of the last event, to continue after it.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }
}

fn end_of_block(buffer: &[u8]) -> Option<usize> {
    buffer.windows(2).position(|two| two == b"\n\n").map(|at| at + 2)
}

/// The id and the event of a block. Comments and unknown kinds of events are skipped.
fn parse(block: &str) -> Result<(Option<String>, Option<Event>), Error> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
    let id = field("id: ").map(str::to_owned);
    let event = match (field("event: "), field("data: ")) {
        (Some("task"), Some(data)) => {
            Some(Event::Task(serde_json::from_str(data).map_err(Error::Decode)?))
        }
        (Some("missed"), _) => Some(Event::Missed),
        _ => None,
    };
    Ok((id, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_parsed_and_comments_skipped() {
        assert_eq!(parse("retry: 1000\n: connected\n\n").unwrap(), (None, None));
        let missed = parse("id: 3-4\nevent: missed\ndata: {}\n\n").unwrap();
        assert_eq!(missed, (Some("3-4".to_owned()), Some(Event::Missed)));
        let data = r#"{"taskId":"t","command":"mail","event":"created","to":"PENDING_LIST","status":"PENDING","attempts":0,"at":"now"}"#;
        let (id, event) = parse(&format!("id: 5\nevent: task\ndata: {data}\n\n")).unwrap();
        let Some(Event::Task(task)) = event else { panic!("no task") };
        assert_eq!((id.as_deref(), task.task_id.as_str()), (Some("5"), "t"));
        assert_eq!(task.status, Some(Status::Pending));
        assert!(parse("event: task\ndata: {\n\n").is_err());
        assert_eq!(end_of_block(b"a\nb\n\nc"), Some(5));
    }
}
