use codeq_core::command::{BulkFrom, Callback, Command, Delivery, NewTask, Outcome};
use codeq_core::effect::Effect;
use codeq_core::id::TaskId;
use codeq_core::limits::{CALLBACK_RETRY_AFTER_MS_MAX, CALLBACK_SCAN_MAX};
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

fn failed(retry_after: Option<u64>) -> Delivery {
    Delivery::Failed { status: Some(503), error: text("busy"), retry_after }
}

#[test]
fn every_way_to_finish_adds_a_callback() {
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
        assert!(h.effects.contains(&Effect::CallbackDue { seq: run.id.seq(), at: h.now }));
        h.reload();
        let pending = h.callbacks();
        assert_eq!(pending.len(), 1, "a restart does not forget");
        let whole = h.reader().callback(run.id.seq()).unwrap().map(|callback| callback.result);
        assert_eq!(whole, h.result(run.id));
        h.finish();
    }
}

#[test]
fn a_task_without_webhook_has_no_callback() {
    let mut h = Harness::new();
    let done = h.done(task("a"));
    assert_eq!(h.callbacks().len(), 0);
    assert_eq!(h.callback(done.id, Delivery::Delivered), refused(Rejection::NoCallback));
    assert_eq!(h.callback(done.id, Delivery::Resend), refused(Rejection::NoCallback));
}

#[test]
fn a_delivered_callback_is_removed() {
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
    // A late report does not change the schedule.
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
fn retry_delays_are_capped() {
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
fn the_earliest_callback_is_next() {
    let mut h = Harness::new();
    let first = h.done(hooked("a"));
    h.pass(10);
    let second = h.done(hooked("a"));
    assert_eq!(h.state.next_callback(), Some(h.now - 10));
    h.callback(first.id, failed(None));
    assert_eq!(h.state.next_callback(), Some(h.now));
    h.callback(second.id, Delivery::Delivered);
    assert_eq!(h.state.next_callback(), Some(h.now + 2_000));
    let from = BulkFrom { queue: Some(text("a")), list: 0, after: first.id.seq() };
    let after = h.reader().callbacks(T, None, &from, 10).unwrap();
    assert_eq!((after.items.len(), after.next), (0, None));
    h.finish();
}

#[test]
fn a_callback_refused_for_good_is_kept_as_failed() {
    let mut h = Harness::new();
    let done = h.done(hooked("a"));
    let refused = || Delivery::Refused { status: 410, error: "gone".into() };
    h.callback(done.id, refused());
    assert_eq!(h.state.next_callback(), None);
    let kept = h.callbacks();
    assert_eq!((kept[0].outbox.attempts, kept[0].outbox.last_status), (1, Some(410)));
    h.callback(done.id, Delivery::Resend);
    assert_eq!(h.callbacks_due(), [done.id]);
    h.callback(done.id, refused());
    h.callback(done.id, Delivery::Delivered);
    assert_eq!(h.callbacks().len(), 0);
    h.finish();
}

#[test]
fn pending_and_failed_callbacks_are_counted() {
    let mut h = Harness::new();
    let counts = |h: &Harness| (h.state.callbacks().pending, h.state.callbacks().failed);
    let done: Vec<_> = (0..3).map(|_| h.done(hooked("a"))).collect();
    assert_eq!(counts(&h), (3, 0));
    h.callback(done[0].id, failed(None));
    h.callback(done[1].id, Delivery::Refused { status: 410, error: "gone".into() });
    h.callback(done[2].id, Delivery::Delivered);
    assert_eq!(counts(&h), (1, 1));
    h.callback(done[1].id, Delivery::Resend);
    assert_eq!(counts(&h), (2, 0));
    let dead = h.dead(NewTask { max_attempts: Some(1), ..hooked("a") });
    assert_eq!(counts(&h), (3, 0));
    h.replay(dead.id);
    assert_eq!(counts(&h), (2, 0), "that end is undone");
    h.finish();
}

#[test]
fn due_callbacks_are_read_from_a_position_with_their_receivers() {
    let mut h = Harness::new();
    let to = |url: &str| NewTask { webhook: Some(url.into()), ..task("a") };
    let first = h.done(to("https://one.example/a"));
    h.pass(1);
    let second = h.done(to("https://two.example/a"));
    let third = h.done(to("https://ONE.example/b"));
    let due = h.reader().callbacks_due((0, Seq(0)), 10).unwrap();
    let seqs: Vec<Seq> = due.iter().map(|due| due.seq).collect();
    assert_eq!(seqs, [first.id.seq(), second.id.seq(), third.id.seq()]);
    assert_eq!(due[0].receiver, due[2].receiver);
    assert_ne!(due[0].receiver, due[1].receiver);
    let rest = h.reader().callbacks_due((due[1].at, due[1].seq), 10).unwrap();
    assert_eq!(rest, due[1..]);
    assert_eq!(h.reader().callbacks_due((0, Seq(0)), 1).unwrap(), due[..1]);
    h.callback(second.id, failed(None));
    let later = h.reader().callbacks_due((h.now + 1, Seq(0)), 10).unwrap();
    assert_eq!((later[0].seq, later[0].at), (second.id.seq(), h.now + 2_000));
    assert_eq!(later[0].receiver, due[1].receiver, "also when it is tried again");
    h.finish();
}

#[test]
fn a_tenant_lists_only_its_own_callbacks() {
    let mut h = Harness::new();
    let ids: Vec<_> = (0..4).map(|_| h.done(hooked("a")).id).collect();
    h.callback(ids[1], Delivery::Refused { status: 410, error: "gone".into() });
    let list = |h: &Harness, tenant, failed, from: &BulkFrom, limit| {
        let page = h.reader().callbacks(tenant, failed, from, limit).unwrap();
        (page.items.iter().map(|it| it.task.id).collect::<Vec<_>>(), page.next)
    };
    let start = BulkFrom::default();
    let after = |list, id: TaskId| BulkFrom { queue: Some(text("a")), list, after: id.seq() };
    assert_eq!(list(&h, T, None, &start, 10), (vec![ids[0], ids[2], ids[3], ids[1]], None));
    assert_eq!(list(&h, T, Some(true), &start, 10), (vec![ids[1]], None));
    let next = after(0, ids[2]);
    assert_eq!(list(&h, T, Some(false), &start, 2), (vec![ids[0], ids[2]], Some(next.clone())));
    assert_eq!(list(&h, T, Some(false), &next, 2), (vec![ids[3]], None));
    assert_eq!(list(&h, T, None, &next, 9), (vec![ids[3], ids[1]], None));
    assert_eq!(list(&h, "x", None, &start, 10), (vec![], None));
    h.callback(ids[1], Delivery::Resend);
    assert_eq!(list(&h, T, Some(true), &start, 10), (vec![], None));
}

#[test]
fn a_page_reads_nothing_of_other_tenants_and_is_bounded() {
    let mut h = Harness::new();
    h.every = 2_000;
    for _ in 0..CALLBACK_SCAN_MAX {
        let made = h.add_for("other", hooked("a"));
        h.cancel_as("other", made.id);
    }
    let mine: Vec<_> = (0..300).map(|n| h.done(hooked(&format!("q{n:03}"))).id).collect();
    let (mut got, mut from, mut pages) = (Vec::new(), Some(BulkFrom::default()), 0);
    while let Some(at) = from {
        h.kv.reads.set(0);
        let page = h.reader().callbacks(T, None, &at, 1_000).unwrap();
        assert!(h.kv.reads.get() <= CALLBACK_SCAN_MAX, "{} rows", h.kv.reads.get());
        got.extend(page.items.iter().map(|it| it.task.id));
        (from, pages) = (page.next, pages + 1);
    }
    assert_eq!(got, mine);
    // Two lists per queue, and one callback in each queue.
    assert!(pages >= (3 * mine.len()).div_ceil(CALLBACK_SCAN_MAX), "{pages} pages");
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
