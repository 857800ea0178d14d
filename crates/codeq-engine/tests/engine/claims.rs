//! Waiting claims: one wake-up per task, in order, without polling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use codeq_core::command::{Claim, Command, Selector};
use codeq_core::view::Task;
use codeq_engine::boundary::Mailbox;
use codeq_engine::options::WAITERS_PER_TENANT_MAX;
use codeq_engine::request::{ReplyTo, Request};
use codeq_engine::{Answer, EngineError, Options};
use tokio::sync::oneshot;

use crate::harness::{
    TENANT, block, claim, created, enqueue, eventually, eventually_async, new_task, open, put,
    small, take, waiting_claim,
};
use crate::start::start;

#[test]
fn a_task_wakes_exactly_one_of_many_waiting_claims_the_longest_waiting_first() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        let mut waiting = Vec::new();
        for n in 0..100 {
            waiting.push(waiting_claim(&engine, claim("q", 1), 60_000));
            // Each one is in line before the next comes.
            let engine = &engine;
            while engine.waiting_claims() <= n {
                tokio::task::yield_now().await;
            }
        }
        for n in 0..3 {
            let command = enqueue(vec![new_task("q", &n.to_string())], n);
            engine.propose(command).await.unwrap();
            let tasks = waiting.remove(0).await.unwrap();
            assert_eq!(tasks.len(), 1);
            assert_eq!(tasks[0].payload, n.to_string());
        }
        assert_eq!(engine.waiting_claims(), 97);
        engine.drain();
        for claim in waiting {
            assert!(claim.await.unwrap().is_empty());
        }
    });
}

#[test]
fn a_claim_for_any_queue_and_one_for_a_queue_that_does_not_exist_yet_are_woken() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        let any = Claim { from: Selector::Any, ..claim("", 1) };
        let any = waiting_claim(&engine, any, 60_000);
        let named = waiting_claim(&engine, claim("Later", 1), 60_000);
        eventually_async("both wait", || engine.waiting_claims() == 2).await;
        engine.propose(enqueue(vec![new_task("x", "1")], 1)).await.unwrap();
        assert_eq!(any.await.unwrap().len(), 1);
        engine.propose(enqueue(vec![new_task("LATER", "2")], 2)).await.unwrap();
        assert_eq!(named.await.unwrap().len(), 1);
    });
}

#[test]
fn a_wait_ends_and_a_delayed_task_wakes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        let nothing = engine.claim(claim("q", 1), 30).await.unwrap();
        assert!(crate::harness::claimed(nothing).is_empty());
        let waiting = waiting_claim(&engine, claim("q", 1), 60_000);
        let mut task = new_task("q", "1");
        task.delay = Some(50);
        let made = crate::harness::created(engine.propose(enqueue(vec![task], 1)).await.unwrap());
        let visible_at = made[0].visible_at.unwrap();
        let got = waiting.await.unwrap();
        assert_eq!(got[0].id, made[0].id);
        assert!(got[0].updated_at >= visible_at, "handed out early");
    });
}

#[test]
fn a_task_claimed_for_a_client_that_has_gone_comes_back_without_penalty() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        let gone = waiting_claim(&engine, claim("q", 1), 60_000);
        eventually_async("it waits", || engine.waiting_claims() == 1).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        engine.propose(enqueue(vec![new_task("q", "1")], 1)).await.unwrap();
        let reply = engine.claim(claim("q", 1), 60_000).await.unwrap();
        let task = crate::harness::claimed(reply).remove(0);
        assert_eq!(task.attempts, 0);
    });
}

/// A mailbox of a client that may leave.
#[derive(Default)]
struct Mail(AtomicBool);

impl Mailbox for Mail {
    fn deliver(&self, _: u64, answer: Answer) -> Result<(), Answer> {
        if self.is_closed() { Err(answer) } else { Ok(()) }
    }

    fn wake(&self) {}

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[test]
fn a_claim_of_a_client_that_has_gone_waits_no_more() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { shards: Some(shards), ..small() };
        let engine = Arc::new(start(dir.path(), options).unwrap());
        let each = usize::from(shards);
        block(async {
            let stays = waiting_claim(&engine, claim("q", 1), 60_000);
            eventually_async("it waits", || engine.waiting_claims() == each).await;
            let gone = waiting_claim(&engine, claim("q", 1), 60_000);
            eventually_async("both wait", || engine.waiting_claims() == 2 * each).await;
            gone.abort();
            eventually_async("one has gone", || engine.waiting_claims() == each).await;
            engine.propose(enqueue(vec![new_task("q", "1")], 1)).await.unwrap();
            assert_eq!(stays.await.unwrap().len(), 1);
            eventually_async("it waits nowhere", || engine.waiting_claims() == 0).await;
        });
    }
}

#[test]
fn claims_of_a_mailbox_that_nobody_reads_wait_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    let mails = [Arc::new(Mail::default()), Arc::new(Mail::default())];
    for number in 0..100 {
        for mail in &mails {
            let reply = ReplyTo::Mailbox(mail.clone(), number);
            let claim = Command::Claim(claim("q", 1));
            engine.post(&mut vec![Request::with(claim, reply, 600_000)]);
        }
    }
    eventually("they wait", || engine.waiting_claims() == 200);
    let mailbox: Arc<dyn Mailbox> = mails[0].clone();
    engine.mailbox_closed(&mailbox);
    engine.checkpoint().unwrap();
    assert_eq!(engine.waiting_claims(), 200, "somebody reads it");
    mails[0].0.store(true, Ordering::Release);
    engine.mailbox_closed(&mailbox);
    eventually("half of them wait", || engine.waiting_claims() == 100);
}

#[test]
fn claims_of_a_thousand_queues_that_wake_together_do_not_stop_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    // Together more than the log accepts at once: 64 of 24 KiB, with segments of 256 KiB.
    let mut commands: Vec<Arc<str>> =
        (0..200).map(|at| format!("{at}-{}", "x".repeat(100)).into()).collect();
    commands.push("q".into());
    let claim = Claim { from: Selector::Commands(commands), ..claim("", 1) };
    block(async {
        let waiting: Vec<_> =
            (0..64).map(|_| waiting_claim(&engine, claim.clone(), 60_000)).collect();
        eventually_async("they wait", || engine.waiting_claims() == 64).await;
        let tasks = (0..64).map(|at| new_task("q", &at.to_string())).collect();
        engine.propose(enqueue(tasks, 1)).await.unwrap();
        for claim in waiting {
            assert_eq!(claim.await.unwrap().len(), 1);
        }
        assert_eq!((engine.waiting_claims(), engine.failure()), (0, None));
    });
}

#[test]
fn a_client_that_hangs_up_no_longer_waits_for_a_result() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(start(dir.path(), Options { shards: Some(3), ..small() }).unwrap());
    let tasks: Vec<Task> = (0..30)
        .flat_map(|seed| {
            let command = enqueue(vec![new_task("q", "1")], seed);
            created(engine.propose_blocking(command).unwrap())
        })
        .collect();
    block(async {
        let wait = |task: &Task| {
            let (engine, tenant, id) = (Arc::clone(&engine), task.tenant.clone(), task.id);
            tokio::spawn(async move { engine.finished(&tenant, id).await })
        };
        let waiting: Vec<_> = tasks.iter().map(wait).collect();
        eventually_async("all wait", || engine.result_waiters() == 30).await;
        waiting.iter().skip(10).for_each(|wait| wait.abort());
        eventually_async("some have gone", || engine.result_waiters() == 10).await;
        let stopping = Arc::clone(&engine);
        std::thread::spawn(move || stopping.shutdown()).join().unwrap();
        for wait in waiting.into_iter().take(10) {
            wait.await.unwrap().unwrap();
        }
        assert_eq!(engine.result_waiters(), 0);
    });
}

#[test]
fn a_client_waiting_for_a_result_is_woken_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    let task = put(&engine, "q", "1");
    block(async {
        let waiter = Arc::clone(&engine);
        let waiting = tokio::spawn(async move { waiter.finished(&task.tenant, task.id).await });
        eventually_async("somebody waits", || engine.result_waiters() == 1).await;
        let worker = Arc::clone(&engine);
        std::thread::spawn(move || {
            let got = take(&worker, "q", 1).remove(0);
            crate::harness::submit(&worker, got.id, "{}").unwrap();
        })
        .join()
        .unwrap();
        waiting.await.unwrap().unwrap();
        let (_, result) = engine.result(TENANT, task.id).await.unwrap().unwrap();
        assert!(result.is_some());
    });
}

/// What a reader sees is durable already: neither a waiting claim nor one that timed out may make it wait.
#[test]
fn claims_without_a_task_do_not_delay_reads() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    let limit = std::time::Duration::from_secs(20);
    block(async {
        for n in 0..20 {
            for _ in 0..3 {
                engine.propose(enqueue(vec![new_task("q", "1")], n)).await.unwrap();
            }
            let reply = engine.claim(claim("empty", 1), 1).await.unwrap();
            assert!(crate::harness::claimed(reply).is_empty());
            tokio::time::timeout(limit, engine.queues(TENANT)).await.unwrap().unwrap();
        }
        let waiting = waiting_claim(&engine, claim("empty", 1), 60_000);
        eventually_async("it waits", || engine.waiting_claims() == 1).await;
        tokio::time::timeout(limit, engine.queues(TENANT)).await.unwrap().unwrap();
        engine.drain();
        assert!(waiting.await.unwrap().is_empty());
    });
}

#[test]
fn no_tenant_has_more_than_half_of_the_claims_that_wait() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        let mut answers = Vec::new();
        while answers.len() < WAITERS_PER_TENANT_MAX {
            // As many as the inbox accepts.
            let mut requests: Vec<Request> = (0..10_000)
                .map(|_| {
                    let (sender, answer) = oneshot::channel();
                    answers.push(answer);
                    let claim = Command::Claim(claim("q", 1));
                    Request::with(claim, ReplyTo::One(sender), 600_000)
                })
                .collect();
            engine.post(&mut requests);
            let wanted = answers.len();
            eventually_async("they wait", || engine.waiting_claims() == wanted).await;
        }
        let refused = engine.claim(claim("q", 1), 600_000).await;
        assert_eq!(refused, Err(EngineError::TooManyWaiting));
        let other = Claim { tenant: "other".into(), ..claim("q", 1) };
        let other = waiting_claim(&engine, other, 600_000);
        let all = WAITERS_PER_TENANT_MAX + 1;
        eventually_async("another tenant waits", || engine.waiting_claims() == all).await;
        engine.drain();
        assert!(other.await.unwrap().is_empty());
    });
}
