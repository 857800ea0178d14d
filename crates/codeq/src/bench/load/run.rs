//! One run: connect, warm up, measure, let tasks in flight finish, and verify.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use super::super::process;
use super::http;
use super::ledger::Ledger;
use super::report::{Row, Spent};
use super::state::RunState;
use super::streams::{Addresses, Streams};
use super::{Args, plan::Plan};

/// Time for streams to end after the last response.
const FAREWELL: Duration = Duration::from_secs(2);

/// One run on the current thread. Returns an error if the run fails before its first task, or if the ledger cannot be
/// written; other failures are in the row.
pub async fn run(args: &Args, ledger: &mut Option<Ledger>) -> anyhow::Result<Row> {
    let state = RunState::new(Plan::new(args), ledger.take())?;
    let state = Rc::new(RefCell::new(state));
    let mut streams = None;
    if let Some(url) = &args.http_url {
        http::Target::new(url, &args.token).await?.open(&state).await?;
        state.borrow_mut().start();
        state.borrow().room.notify_waiters();
    } else {
        let (producer, worker) = (args.producer_addr.as_str(), args.worker_addr.as_str());
        let addresses = Addresses { producer, worker, token: &args.token };
        let opened = Streams::open(&state, &addresses).await?;
        state.borrow_mut().start();
        opened.0.borrow_mut().fill(&mut state.borrow_mut());
        streams = Some(opened);
    }
    let mut row = measure(args, &state).await;
    if let Some((streams, running)) = streams {
        streams.borrow_mut().close();
        let ends = async {
            for session in running {
                // A session that failed has already reported it.
                let _ = session.await;
            }
        };
        if row.failure.is_none() && tokio::time::timeout(FAREWELL, ends).await.is_err() {
            row.note("the streams did not end after both sides had said everything".to_owned());
        }
    }
    *ledger = state.borrow_mut().ledger.take();
    if let Some(ledger) = ledger {
        ledger.flush()?;
    }
    Ok(row)
}

async fn measure(args: &Args, state: &Rc<RefCell<RunState>>) -> Row {
    let window = state.borrow().plan.window();
    let mark = || spent(args, &state.borrow());
    // A run that fails early is measured from its start.
    let mut from = mark();
    wait(state, Duration::from_nanos(window.start)).await;
    if state.borrow().failure().is_none() {
        from = mark();
    }
    wait(state, Duration::from_nanos(window.end)).await;
    let to = mark();
    state.borrow_mut().stop();
    let until = state.borrow().elapsed() + state.borrow().plan.drain;
    while !state.borrow().is_done() && state.borrow().elapsed() < until {
        if state.borrow().failure().is_some() {
            break;
        }
        pause(state, until).await;
    }
    let state = state.borrow();
    let spent = Spent {
        time: to.time.saturating_sub(from.time),
        cycles: to.cycles - from.cycles,
        creates: to.creates - from.creates,
        client: to.client.saturating_sub(from.client),
        server: to.server.zip(from.server).map(|(to, from)| to.saturating_sub(from)),
        server_rss: to.server_rss,
    };
    Row::new(&state, &spent)
}

/// Waits until a moment of the run, or a failure, and prints progress every second.
async fn wait(state: &Rc<RefCell<RunState>>, until: Duration) {
    let mut last = state.borrow().tracker.counts();
    while state.borrow().failure().is_none() {
        let now = state.borrow().elapsed();
        if now >= until {
            return;
        }
        let second = Duration::from_secs(now.as_secs() + 1);
        pause(state, second.min(until)).await;
        let state = state.borrow();
        if state.plan.progress && state.elapsed() >= second {
            let counts = state.tracker.counts();
            let (done, made) = (counts.completed - last.completed, counts.created - last.created);
            let (outstanding, backlog) = (state.tracker.outstanding(), state.backlog());
            let late = if backlog > 1 { format!(", {backlog} late") } else { String::new() };
            let seconds = second.as_secs();
            // Continue if nobody reads the output any more.
            let _ = writeln!(
                std::io::stderr(),
                "{seconds:4} s  {done} cycles, {made} creates, {outstanding} on their way{late}"
            );
            last = counts;
        }
    }
}

/// Waits until a moment of the run, or an event.
async fn pause(state: &Rc<RefCell<RunState>>, until: Duration) {
    let (event, now) = (Rc::clone(&state.borrow().event), state.borrow().elapsed());
    // A timeout counts as an event.
    let _ = tokio::time::timeout(until.saturating_sub(now), event.notified()).await;
}

/// Work done and resources used since the start.
fn spent(args: &Args, state: &RunState) -> Spent {
    let counts = state.tracker.counts();
    Spent {
        time: state.elapsed(),
        cycles: counts.completed,
        creates: counts.created,
        client: process::cpu_of("self"),
        server: args.server_pid.map(process::cpu_of),
        server_rss: args.server_pid.map(process::rss_of),
    }
}
