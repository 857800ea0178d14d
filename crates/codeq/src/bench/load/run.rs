//! One run: connect, warm up, measure, let tasks in flight finish, and verify.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use super::super::process;
use super::core::Core;
use super::http;
use super::ledger::Ledger;
use super::report::{Row, Spent};
use super::streams::{Addresses, Streams};
use super::{Args, plan::Plan};

/// Time for streams to end after the last response.
const FAREWELL: Duration = Duration::from_secs(2);

/// One run on the current thread. Returns an error if the run fails before its first task, or if the ledger cannot be
/// written; other failures are in the row.
pub async fn run(args: &Args, ledger: &mut Option<Ledger>) -> anyhow::Result<Row> {
    let core = Core::new(Plan::new(args), ledger.take())?;
    let core = Rc::new(RefCell::new(core));
    let mut streams = None;
    if let Some(url) = &args.http_url {
        http::Target::new(url, &args.token).await?.open(&core).await?;
        core.borrow_mut().start();
        core.borrow().room.notify_waiters();
    } else {
        let (producer, worker) = (args.producer_addr.as_str(), args.worker_addr.as_str());
        let addresses = Addresses { producer, worker, token: &args.token };
        let opened = Streams::open(&core, &addresses).await?;
        core.borrow_mut().start();
        opened.0.borrow_mut().fill(&mut core.borrow_mut());
        streams = Some(opened);
    }
    let mut row = measure(args, &core).await;
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
    *ledger = core.borrow_mut().ledger.take();
    if let Some(ledger) = ledger {
        ledger.flush()?;
    }
    Ok(row)
}

async fn measure(args: &Args, core: &Rc<RefCell<Core>>) -> Row {
    let window = core.borrow().plan.window();
    let mark = || spent(args, &core.borrow());
    // A run that fails early is measured from its start.
    let mut from = mark();
    wait(core, Duration::from_nanos(window.start)).await;
    if core.borrow().failure().is_none() {
        from = mark();
    }
    wait(core, Duration::from_nanos(window.end)).await;
    let to = mark();
    core.borrow_mut().stop();
    let until = core.borrow().elapsed() + core.borrow().plan.drain;
    while !core.borrow().is_done() && core.borrow().elapsed() < until {
        if core.borrow().failure().is_some() {
            break;
        }
        pause(core, until).await;
    }
    let core = core.borrow();
    let spent = Spent {
        time: to.time.saturating_sub(from.time),
        cycles: to.cycles - from.cycles,
        creates: to.creates - from.creates,
        client: to.client.saturating_sub(from.client),
        server: to.server.zip(from.server).map(|(to, from)| to.saturating_sub(from)),
        server_rss: to.server_rss,
    };
    Row::new(&core, &spent)
}

/// Waits until a moment of the run, or a failure, and prints progress every second.
async fn wait(core: &Rc<RefCell<Core>>, until: Duration) {
    let mut last = core.borrow().tracker.counts();
    while core.borrow().failure().is_none() {
        let now = core.borrow().elapsed();
        if now >= until {
            return;
        }
        let second = Duration::from_secs(now.as_secs() + 1);
        pause(core, second.min(until)).await;
        let core = core.borrow();
        if core.plan.progress && core.elapsed() >= second {
            let counts = core.tracker.counts();
            let (done, made) = (counts.completed - last.completed, counts.created - last.created);
            let (outstanding, backlog) = (core.tracker.outstanding(), core.backlog());
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
async fn pause(core: &Rc<RefCell<Core>>, until: Duration) {
    let (event, now) = (Rc::clone(&core.borrow().event), core.borrow().elapsed());
    // A timeout counts as an event.
    let _ = tokio::time::timeout(until.saturating_sub(now), event.notified()).await;
}

/// Work done and resources used since the start.
fn spent(args: &Args, core: &Core) -> Spent {
    let counts = core.tracker.counts();
    Spent {
        time: core.elapsed(),
        cycles: counts.completed,
        creates: counts.created,
        client: process::cpu_of("self"),
        server: args.server_pid.map(process::cpu_of),
        server_rss: args.server_pid.map(process::rss_of),
    }
}
