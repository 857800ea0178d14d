//! `codeq task watch`: transitions as they happen.

use std::time::Duration;

use codeq_client::{Event, Events, Status, TaskEvent};

use crate::cli::{About, Done, Session, talk};

/// Pause before the stream is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Follows one task until it is finished. Prints its history, which says who and why, and uses events only to learn of
/// changes.
pub async fn one(session: &Session, id: &str) -> Done {
    let subject = format!("task {id}");
    // Opened before the history is read, so that nothing is missed in between.
    let events = session.http.events(None, None).await.about(&subject)?;
    let mut list = session.out.streamed();
    let mut seen = 0;
    let mut print_new = async |session: &Session| {
        let history = session.http.history(id).await.about(&subject)?;
        let total = history.dropped + history.items.len() as u64;
        let new = usize::try_from(total.saturating_sub(seen)).unwrap_or(usize::MAX);
        let from = history.items.len().saturating_sub(new);
        seen = total;
        list.page(history.items.get(from..).unwrap_or_default())?;
        Ok(history.items.last().is_some_and(|step| !is_final(step.status)))
    };
    if !print_new(session).await? {
        return Ok(());
    }
    follow(session, events, None, async |session, event| match event {
        Some(event) if event.task_id != id => Ok(true),
        // Without an event, the last transition may be among those that were missed, and no further event comes.
        _ => print_new(session).await,
    })
    .await
}

/// Follows all tasks of the tenant, or those of a queue, until interrupted.
pub async fn all(session: &Session, queue: Option<&str>) -> Done {
    let events = session.http.events(queue, None).await.about("the event stream")?;
    talk("watching; Ctrl-C ends it");
    let mut list = session.out.streamed();
    follow(session, events, queue, async |_, event| {
        list.page(event.as_slice())?;
        Ok(true)
    })
    .await
}

/// Calls `each` for every event while it returns true, and with `None` where events may have been missed. Reconnects if
/// the stream ends.
async fn follow(
    session: &Session,
    mut events: Events,
    queue: Option<&str>,
    mut each: impl AsyncFnMut(&Session, Option<TaskEvent>) -> Done<bool>,
) -> Done {
    loop {
        let event = match events.next().await {
            Ok(Some(Event::Task(event))) => Some(event),
            Ok(Some(_)) => {
                talk("some transitions are no longer kept and were missed");
                None
            }
            Err(error) if !error.is_transient() => return Err(error).about("the event stream"),
            Ok(None) | Err(_) => {
                talk("the stream ended; connecting again");
                events = reopen(session, events.last_id(), queue).await?;
                None
            }
        };
        if !each(session, event).await? {
            return Ok(());
        }
    }
}

/// Opens the stream again after the last event, waiting for a server that is down.
async fn reopen(session: &Session, after: Option<&str>, queue: Option<&str>) -> Done<Events> {
    loop {
        tokio::time::sleep(PAUSE).await;
        match session.http.events(queue, after).await {
            Err(error) if error.is_transient() => {}
            opened => return opened.about("the event stream"),
        }
    }
}

fn is_final(status: Status) -> bool {
    matches!(status, Status::Completed | Status::Failed)
}
