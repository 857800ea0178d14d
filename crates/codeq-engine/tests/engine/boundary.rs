//! Calls and answers are data, whether they are awaited or posted, for any number of shards.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use codeq_core::command::{
    Abandon, BulkFilter, BulkFrom, BulkPart, BulkWork, Cancel, Cleanup, Command, DeleteRecord,
    DeleteTopic, Enqueue, Heartbeat, Millis, Nack, NewTask, Outcome, Pause, PutRecord, PutTopic,
    Replay, ReplayTarget, Submit,
};
use codeq_core::id::{ShardId, TaskId};
use codeq_core::keys::Seq;
use codeq_core::record::RecordKind;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::topic::Policy;
use codeq_disk::RealDisk;
use codeq_engine::boundary::Mailbox;
use codeq_engine::clock::Clock;
use codeq_engine::request::{ReplyTo, Request};
use codeq_engine::{Answer, Call, Engine, EngineError, Options};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::harness::{TENANT, block, claim, claimed, created, eventually, new_task, small};
use crate::start::start_with;

/// A clock that stands still, so that two engines answer the same.
struct Still;

impl Clock for Still {
    fn wall(&self) -> Millis {
        1_700_000_000_000
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn boot(&self) -> Option<u64> {
        Some(1)
    }
}

fn open(dir: &Path, shards: u16) -> Engine {
    open_with(dir, Options { shards: Some(shards), ..small() })
}

fn open_with(dir: &Path, options: Options) -> Engine {
    start_with(Arc::new(RealDisk), dir, options, Arc::new(Still), 7).unwrap()
}

/// As if it had been sent to another process.
fn sent<T: Serialize + DeserializeOwned>(value: &T) -> T {
    postcard::from_bytes(&postcard::to_allocvec(value).unwrap()).unwrap()
}

fn keyed(key: &str) -> NewTask {
    NewTask { idempotency_key: Some(key.into()), ..new_task("q", "1") }
}

fn batch(tasks: Vec<NewTask>, atomic: bool) -> Call {
    Call::Propose(Command::Enqueue(Enqueue { tenant: TENANT.into(), tasks, atomic, seed: 3 }))
}

fn several() -> Call {
    batch((0..12).map(|n| keyed(&n.to_string())).collect(), false)
}

/// Two engines that get the same calls, the second one through serialisation. Both must answer the same, and the answer
/// must survive serialisation too.
struct Twins([Engine; 2]);

impl Twins {
    fn ask(&self, call: Call) -> Answer {
        let [here, there] = &self.0;
        let answer = block(there.call(sent(&call)));
        assert_eq!(block(here.call(call.clone())), answer, "{call:?}");
        assert_eq!(sent(&answer), answer, "{call:?}");
        answer
    }

    fn propose(&self, command: Command) -> Answer {
        self.ask(Call::Propose(command))
    }
}

#[test]
fn calls_and_answers_survive_serialisation() {
    for shards in [1, 3] {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        // Enough room in the log for a batch that exceeds the limit of tasks.
        let options = Options { shards: Some(shards), segment_bytes: 8 << 20, ..small() };
        let twins = Twins([&dirs[0], &dirs[1]].map(|dir| open_with(dir.path(), options.clone())));
        let (tenant, worker) = (|| TENANT.into(), || "w".into());
        let tasks = created(twins.ask(several()).unwrap());
        assert_eq!(tasks.len(), 12);
        // Again: they are the same tasks.
        assert_eq!(created(twins.ask(several()).unwrap())[3].id, tasks[3].id);
        let other = NewTask { payload: "2".into(), ..keyed("3") };
        twins.ask(batch(vec![other, new_task("", "1")], false)).unwrap();
        let spans = twins.ask(batch((0..12).map(|n| keyed(&format!("a{n}"))).collect(), true));
        assert_eq!(spans.is_err(), shards > 1);
        let too_long = twins.ask(batch(vec![new_task("q", "1"); 1_001], false));
        assert!(matches!(too_long, Ok(Reply::Rejected(Rejection::InvalidBatch { .. }))));

        let waiting = Call::Claim { claim: claim("q", 2), wait: 60_000 };
        let id = claimed(twins.ask(waiting).unwrap())[0].id;
        let beat = |id| Heartbeat { tenant: tenant(), id, worker: worker(), extend: 5_000 };
        assert!(matches!(twins.propose(Command::Heartbeat(beat(id))), Ok(Reply::Extended { .. })));
        let nowhere = TaskId::new(Seq(1), 1);
        assert_eq!(
            twins.propose(Command::Heartbeat(beat(nowhere))),
            Ok(Reply::Rejected(Rejection::NotFound))
        );
        let submit = Submit {
            tenant: tenant(),
            id,
            worker: worker(),
            outcome: Outcome::Completed("{}".into()),
            artifacts: Vec::new(),
        };
        assert!(matches!(twins.propose(Command::Submit(submit)), Ok(Reply::Submitted(_))));
        let next = || {
            let claim = Command::Claim(claim("q", 1));
            claimed(twins.propose(claim).unwrap())[0].id
        };
        let nack = Nack {
            tenant: tenant(),
            id: next(),
            worker: worker(),
            delay: Some(1_000),
            reason: Some("no".into()),
            seed: 5,
        };
        twins.propose(Command::Nack(nack)).unwrap();
        let (id, penalty, fence) = (next(), false, None);
        let abandon = Abandon { tenant: tenant(), id, worker: worker(), penalty, fence };
        twins.propose(Command::Abandon(abandon)).unwrap();
        let by = || "op".into();
        let id = tasks[11].id;
        twins.propose(Command::Cancel(Cancel { tenant: tenant(), id, by: by() })).unwrap();
        let target = ReplayTarget::One(id);
        twins.propose(Command::Replay(Replay { tenant: tenant(), target, by: by() })).unwrap();

        let pause = Pause { tenant: tenant(), command: "q".into(), paused: true };
        assert_eq!(twins.propose(Command::Pause(pause)), Ok(Reply::Done));
        let nothing = twins.propose(Command::Claim(claim("q", 100))).unwrap();
        assert!(claimed(nothing).is_empty());
        let put = |max_consumers| {
            let policy = Policy { max_consumers, ..Policy::default() };
            Command::PutTopic(PutTopic { tenant: tenant(), name: "q".into(), policy })
        };
        let Ok(Reply::Topic { topic, created: true }) = twins.propose(put(7)) else { panic!() };
        assert_eq!(topic.policy.max_consumers, 7);
        assert_eq!(twins.propose(put(1)).is_err(), shards > 1);
        let refused = twins.propose(put(u32::MAX)).unwrap();
        let field = "maxConsumers".into();
        assert_eq!(refused, Reply::Rejected(Rejection::InvalidTopic { field }));
        let delete = DeleteTopic { tenant: tenant(), name: "q".into() };
        twins.propose(Command::DeleteTopic(delete)).unwrap();

        let (kind, name) = (RecordKind::Subscription, || "r".into());
        let put = PutRecord {
            tenant: tenant(),
            kind,
            name: name(),
            value: "v".into(),
            ttl: Some(1_000),
            expected: None,
        };
        assert!(matches!(twins.propose(Command::PutRecord(put)), Ok(Reply::Record(_))));
        let delete = DeleteRecord { tenant: tenant(), kind, name: name(), expected: Some(9) };
        twins.propose(Command::DeleteRecord(delete)).unwrap();

        let part = BulkPart {
            tenant: tenant(),
            work: BulkWork::PurgeWaiting { command: "q".into() },
            filter: BulkFilter::default(),
            from: BulkFrom::default(),
            take: 100,
            look: 1_000,
            by: by(),
        };
        let parts = (0..=shards).map(ShardId).map(|shard| {
            let part = part.clone();
            twins.ask(Call::BulkPart { shard, part: Box::new(part) })
        });
        let mut done: Vec<_> = parts.collect();
        assert_eq!(done.pop(), Some(Err(EngineError::Closed)), "there is no such shard");
        assert!(done.iter().all(|part| matches!(part, Ok(Reply::BulkPart(_)))), "{done:?}");
        let whole = Cleanup { tenant: tenant(), before: u64::MAX, limit: 1 };
        assert_eq!(twins.propose(Command::Cleanup(whole)).is_err(), shards > 1);
    }
}

/// A mailbox of a client that may leave.
#[derive(Default)]
struct Mail {
    answers: Mutex<Vec<(u64, Answer)>>,
    woken: AtomicUsize,
    closed: AtomicBool,
}

impl Mailbox for Mail {
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer> {
        if self.is_closed() {
            return Err(answer);
        }
        self.answers.lock().push((number, answer));
        Ok(())
    }

    fn wake(&self) {
        self.woken.fetch_add(1, Ordering::AcqRel);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

fn post(engine: &Engine, mail: &Arc<Mail>, calls: Vec<(u64, Call)>) {
    let request = |(number, call)| Request::new(call, ReplyTo::Mailbox(mail.clone(), number));
    engine.post(&mut calls.into_iter().map(request).collect());
}

fn waiting() -> Call {
    Call::Claim { claim: claim("q", 1), wait: 600_000 }
}

#[test]
fn posted_calls_are_split_and_their_answers_combined() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), shards);
        let each = usize::from(shards);
        let mail = Arc::new(Mail::default());
        let now = || Call::Propose(Command::Claim(claim("q", 1)));
        post(&engine, &mail, vec![(1, now()), (2, waiting()), (3, waiting())]);
        eventually("two wait", || {
            engine.waiting_claims() == 2 * each && mail.answers.lock().len() == 1
        });
        let (number, nothing) = mail.answers.lock().remove(0);
        assert_eq!((number, claimed(nothing.unwrap()).len()), (1, 0));
        // Twelve tasks over all shards: two go to the waiting claims, which then wait in no shard.
        post(&engine, &mail, vec![(4, several())]);
        eventually("all are answered", || mail.answers.lock().len() == 3);
        eventually("nobody waits", || engine.waiting_claims() == 0);
        let mut answers = std::mem::take(&mut *mail.answers.lock());
        answers.sort_by_key(|(number, _)| *number);
        assert!(mail.woken.load(Ordering::Acquire) > 0);
        let mut answers = answers.into_iter().map(|(_, answer)| answer.unwrap());
        for _ in 0..2 {
            assert_eq!(claimed(answers.next().unwrap()).len(), 1);
        }
        let tasks = created(answers.next().unwrap());
        let again = created(engine.call_blocking(several()).unwrap());
        assert!(tasks.iter().map(|task| task.id).eq(again.iter().map(|task| task.id)), "in order");
        // The other ten are found in whichever shard they are, once each.
        let claims = (0..12).map(|number| (number, now())).collect();
        post(&engine, &mail, claims);
        eventually("all are answered", || mail.answers.lock().len() == 12);
        let answers = std::mem::take(&mut *mail.answers.lock());
        let got: usize = answers.into_iter().map(|(_, tasks)| claimed(tasks.unwrap()).len()).sum();
        assert_eq!(got, 10);
    }
}

#[test]
fn a_mailbox_that_nobody_reads_takes_no_task_from_others() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), shards);
        let [gone, stays] = [Arc::new(Mail::default()), Arc::new(Mail::default())];
        let each = usize::from(shards);
        post(&engine, &gone, (0..50).map(|number| (number, waiting())).collect());
        post(&engine, &stays, vec![(1, waiting())]);
        eventually("they wait", || engine.waiting_claims() == 51 * each);
        gone.closed.store(true, Ordering::Release);
        let mailbox: Arc<dyn Mailbox> = gone.clone();
        engine.mailbox_closed(&mailbox);
        eventually("one waits", || engine.waiting_claims() == each);
        engine.call_blocking(batch(vec![new_task("q", "1")], false)).unwrap();
        eventually("it has the task", || stays.answers.lock().len() == 1);
        assert!(gone.answers.lock().is_empty());
        let got = stays.answers.lock().remove(0).1;
        assert_eq!(claimed(got.unwrap()).len(), 1);
    }
}

#[test]
fn an_oversized_call_does_not_fail_the_others() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), shards);
        let mail = Arc::new(Mail::default());
        let large = batch(vec![new_task("q", &"1".repeat(1 << 20))], false);
        post(&engine, &mail, vec![(1, large), (2, several())]);
        eventually("both are answered", || mail.answers.lock().len() == 2);
        let mut answers = std::mem::take(&mut *mail.answers.lock());
        answers.sort_by_key(|(number, _)| *number);
        let [(_, large), (_, small)] = answers.try_into().unwrap();
        assert!(matches!(large, Err(EngineError::TooLarge { .. })), "{large:?}");
        assert_eq!(created(small.unwrap()).len(), 12);
    }
}

#[test]
fn calls_made_together_are_answered_in_their_order() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), shards);
        let one = |n: usize| batch(vec![new_task("q", &n.to_string())], false);
        let mut calls: Vec<Call> = (0..20).map(one).collect();
        calls[7] = batch(vec![new_task("q", &"1".repeat(1 << 20))], false);
        for (n, answer) in block(engine.call_all(calls)).into_iter().enumerate() {
            match answer {
                Ok(reply) => assert_eq!(*created(reply)[0].payload, *n.to_string().as_bytes()),
                Err(error) => {
                    assert!(n == 7 && matches!(error, EngineError::TooLarge { .. }), "{n}: {error}")
                }
            }
        }
        assert!(block(engine.call_all(Vec::new())).is_empty());
        engine.shutdown();
        let answers = block(engine.call_all((0..3).map(one).collect()));
        assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 3);
    }
}
