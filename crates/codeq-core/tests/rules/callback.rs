use codeq_core::command::{Callback, Command, Delivery, NewTask, Outcome};
use codeq_core::effect::Effect;
use codeq_core::limits::CALLBACK_RETRY_AFTER_MS_MAX;
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

fn failed(retry_after: Option<u64>) -> Delivery {
    Delivery::Failed { status: Some(503), error: text("busy"), retry_after }
}

#[test]
fn every_end_is_told() {
    let ends: [fn(&mut Harness, codeq_core::id::TaskId); 8] = [
        |h, id| drop(h.complete(id)),
        |h, id| drop(h.submit(id, Outcome::Failed(text("no")))),
        |h, id| drop(h.nack(id, None, None)),
        |h, id| drop(h.abandon(id, true)),
        |h, _| {
            h.pass(LEASE + 1);
            h.sweep(10);
        },
        |h, id| {
            h.pass(LEASE + 1);
            h.heartbeat(id, LEASE);
        },
        |h, id| {
            h.cancel(id);
            h.abandon(id, false);
        },
        |h, id| {
            h.abandon(id, false);
            h.cancel(id);
        },
    ];
    for (at, end) in ends.into_iter().enumerate() {
        let mut h = Harness::new();
        let run = h.running(codeq_core::command::NewTask { max_attempts: Some(1), ..hooked("a") });
        assert_eq!(h.callbacks().len(), 0);
        end(&mut h, run.id);
        assert!(h.get(run.id).place.is_terminal(), "end {at}");
        assert_eq!(h.callbacks_due(), [run.id], "end {at}");
        assert_eq!(h.state.next_callback(), Some(h.now));
        assert!(h.effects.contains(&Effect::CallbackDue { seq: run.id.seq() }));
        h.reload();
        let pending = h.callbacks();
        assert_eq!(pending.len(), 1, "a restart does not forget");
        assert_eq!(Some(&pending[0].result), h.result(run.id).as_ref());
        h.finish();
    }
}

#[test]
fn nobody_asked_nobody_is_told() {
    let mut h = Harness::new();
    let done = h.done(task("a"));
    assert_eq!(h.callbacks().len(), 0);
    assert_eq!(h.callback(done.id, Delivery::Delivered), refused(Rejection::NoCallback));
    assert_eq!(h.callback(done.id, Delivery::Resend), refused(Rejection::NoCallback));
}

#[test]
fn a_delivery_ends_it() {
    let mut h = Harness::new();
    let done = h.done(hooked("a"));
    assert_eq!(h.callback(done.id, Delivery::Delivered), Reply::Done);
    assert_eq!((h.callbacks().len(), h.state.next_callback()), (0, None));
    assert_eq!(h.callback(done.id, Delivery::Delivered), refused(Rejection::NoCallback));
    h.finish();
}

#[test]
fn five_attempts_with_doubling_pauses() {
    let mut h = Harness::new();
    let done = h.done(hooked("a"));
    for pause in [2_000, 4_000, 8_000, 16_000] {
        assert_eq!(h.callbacks_due(), [done.id]);
        assert_eq!(h.callback(done.id, failed(None)), Reply::Done);
        assert_eq!(h.state.next_callback(), Some(h.now + pause));
        h.pass(pause - 1);
        assert_eq!(h.callbacks_due(), []);
        h.pass(1);
    }
    h.callback(done.id, failed(None));
    assert_eq!(h.state.next_callback(), None);
    h.pass(HOUR);
    assert_eq!(h.callbacks_due(), [], "no further attempt");
    let kept = h.callbacks();
    let outbox = &kept[0].outbox;
    assert_eq!((outbox.attempts, outbox.next_at, outbox.last_status), (5, None, Some(503)));
    assert_eq!(outbox.last_error.as_deref(), Some("busy"));
    // A report that comes late changes no schedule.
    h.callback(done.id, failed(None));
    assert_eq!(h.state.next_callback(), None);
    assert_eq!(h.callback(done.id, Delivery::Resend), Reply::Done);
    assert_eq!(h.callbacks_due(), [done.id], "sent again, with fresh attempts");
    h.callback(done.id, failed(None));
    assert_eq!(h.state.next_callback(), Some(h.now + 2_000));
    h.callback(done.id, Delivery::Delivered);
    assert_eq!(h.callbacks().len(), 0);
    h.finish();
}

#[test]
fn pauses_are_capped() {
    let mut h = Harness::with(codeq_core::settings::Settings {
        callback_attempts: 100,
        ..Default::default()
    });
    let done = h.done(hooked("a"));
    for attempt in 1..=99 {
        h.callback(done.id, failed(None));
        let pause = h.state.next_callback().expect("another attempt") - h.now;
        assert!(pause <= 60_000 && (attempt < 6 || pause == 60_000), "{attempt}: {pause}");
    }
    h.callback(done.id, failed(None));
    assert_eq!(h.state.next_callback(), None);
}

#[test]
fn the_receiver_may_ask_for_a_pause_but_not_for_ever() {
    let mut h = Harness::new();
    let done = h.done(hooked("a"));
    h.callback(done.id, failed(Some(30_000)));
    assert_eq!(h.state.next_callback(), Some(h.now + 30_000));
    h.callback(done.id, failed(Some(1)));
    assert_eq!(h.state.next_callback(), Some(h.now + 4_000));
    h.callback(done.id, failed(Some(u64::MAX)));
    assert_eq!(h.state.next_callback(), Some(h.now + CALLBACK_RETRY_AFTER_MS_MAX));
    h.finish();
}

#[test]
fn the_earliest_is_next() {
    let mut h = Harness::new();
    let first = h.done(hooked("a"));
    h.pass(10);
    let second = h.done(hooked("a"));
    assert_eq!(h.state.next_callback(), Some(h.now - 10));
    h.callback(first.id, failed(None));
    assert_eq!(h.state.next_callback(), Some(h.now));
    h.callback(second.id, Delivery::Delivered);
    assert_eq!(h.state.next_callback(), Some(h.now + 2_000));
    assert_eq!(h.reader().callbacks(first.id.seq(), 10).unwrap().len(), 0);
    h.finish();
}

#[test]
fn another_tenants_callback_is_not_there() {
    let mut h = Harness::new();
    let done = h.done(hooked("a"));
    for delivery in [Delivery::Delivered, Delivery::Resend, failed(None)] {
        assert_eq!(h.callback_as("x", done.id, delivery), refused(Rejection::NotFound));
    }
    assert_eq!(h.callbacks_due(), [done.id]);
    let gone = codeq_core::id::TaskId::new(done.id.seq(), done.id.salt() ^ 1);
    assert_eq!(h.callback(gone, Delivery::Delivered), refused(Rejection::NotFound));
}

#[test]
fn a_late_report_about_an_earlier_end_does_not_touch_the_callback_of_the_next() {
    let mut h = Harness::new();
    let dead = h.dead(NewTask { max_attempts: Some(1), ..hooked("a") });
    let first = h.result(dead.id).unwrap().completed_at;
    h.replay(dead.id);
    h.pass(5);
    let again = h.claim("a").unwrap();
    h.complete(again.id);
    let second = h.result(dead.id).unwrap().completed_at;
    let report = |completed_at| {
        let (tenant, id) = (again.tenant.clone(), again.id);
        let completed_at = Some(completed_at);
        Command::Callback(Callback { tenant, id, completed_at, delivery: Delivery::Delivered })
    };
    assert_eq!(h.apply(report(first)), refused(Rejection::NoCallback));
    assert_eq!(h.callbacks_due(), [dead.id]);
    assert_eq!(h.apply(report(second)), Reply::Done);
    assert_eq!(h.callbacks().len(), 0);
}
