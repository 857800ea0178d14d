//! What a command does is part of the format: all nodes of a cluster, of whatever release, must do the same.
//!
//! The fixture is a log with commands of every kind, and after each group the digest of all rows written so far. If a
//! digest no longer agrees, a command has another outcome than before: the nodes of a cluster would diverge while they are
//! upgraded one after the other. Give the new outcome a command of its own or make it depend on a level (a numbered version
//! of what all commands do), and add a fixture for it; never change this one. `CODEQ_WRITE_FIXTURE=1` writes a fixture that
//! does not exist yet.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use codeq_core::State;
use codeq_core::codec::{begin_record, push_command, read_record};
use codeq_core::command::{
    BulkPartV1, BulkWork, BulkWorkV1, Cleanup, Command, EnqueueByValueV1, EnqueueV1, NewTask,
    NewTaskV1, Purge, PurgeTarget, PutTopicV1, PutTopicV2,
};
use codeq_core::digest::WriteDigest;
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_core::settings::SettingsV1;
use codeq_core::topic::{PolicyV1, PolicyV2};
use codeq_sim::cluster::script::{Setup, play};
use codeq_store::MemStore;
use openraft::EntryPayload;

use super::traps::SECOND;

/// Runs whose logs make up the fixture. They differ in what clients do.
const SEEDS: [u64; 4] = [3, 4, 8, 11];
/// Groups of each run.
const GROUPS: usize = 60;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/outcomes-level-1")
}

/// A new kind of command does not compile until it has a name here, and does not pass until a fixture has it.
fn name(command: &Command) -> &'static str {
    match command {
        Command::ConfigureV1(_) => "ConfigureV1",
        Command::EnqueueV1(_) => "EnqueueV1",
        Command::Claim(_) => "Claim",
        Command::Heartbeat(_) => "Heartbeat",
        Command::Submit(_) => "Submit",
        Command::Nack(_) => "Nack",
        Command::Abandon(_) => "Abandon",
        Command::Cancel(_) => "Cancel",
        Command::Replay(_) => "Replay",
        Command::Purge(_) => "Purge",
        Command::Pause(_) => "Pause",
        Command::PutTopicV1(_) => "PutTopicV1",
        Command::DeleteTopic(_) => "DeleteTopic",
        Command::Cleanup(_) => "Cleanup",
        Command::Sweep(_) => "Sweep",
        Command::Callback(_) => "Callback",
        Command::PutRecord(_) => "PutRecord",
        Command::DeleteRecord(_) => "DeleteRecord",
        Command::BulkPartV1(_) => "BulkPartV1",
        Command::Configure(_) => "Configure",
        Command::PutTopicV2(_) => "PutTopicV2",
        Command::BulkPart(_) => "BulkPart",
        Command::UnderLease(_) => "UnderLease",
        Command::EnqueueByValueV1(_) => "EnqueueByValueV1",
        Command::Enqueue(_) => "Enqueue",
        Command::EnqueueByValue(_) => "EnqueueByValue",
        Command::PutTopic(_) => "PutTopic",
        Command::Reschedule(_) => "Reschedule",
    }
}

const KINDS: usize = 28;

/// A shard that keeps a digest of its writes.
struct Replayed {
    state: State,
    store: MemStore,
    digest: WriteDigest,
}

impl Replayed {
    fn new() -> Replayed {
        let store = MemStore::new();
        let state = State::load(&store, ShardId(0), 1).unwrap();
        Replayed { state, store, digest: WriteDigest::default() }
    }

    fn apply(&mut self, record: &[u8]) -> Vec<Command> {
        let (at, commands) = read_record(record).unwrap();
        for command in &commands {
            let mut tables = self.digest.over(&mut self.store);
            self.state.apply(&mut tables, at, command, &mut Vec::new()).unwrap();
        }
        commands
    }
}

fn old_task(task: NewTask) -> NewTaskV1 {
    NewTaskV1 {
        command: task.command,
        payload: task.payload,
        priority: task.priority,
        max_attempts: task.max_attempts,
        webhook: task.webhook,
        idempotency_key: task.idempotency_key,
        run_at: task.run_at,
        delay: task.delay,
        trace_parent: task.trace_parent,
        trace_state: task.trace_state,
    }
}

/// Some commands as logs of older versions have them, and what clients of the simulator never send.
fn of_older_logs(number: usize, command: Command, more: &mut Vec<Command>) -> Command {
    let old = number.is_multiple_of(3);
    match command {
        Command::Enqueue(enqueue) if old => {
            let tenant = enqueue.tenant.clone();
            let kind = enqueue.tasks.first().map_or("work".into(), |task| task.command.clone());
            if number.is_multiple_of(9) {
                let target =
                    if number.is_multiple_of(2) { PurgeTarget::Dead } else { PurgeTarget::Waiting };
                let (command, by) = (kind, "ops".into());
                more.push(Command::Purge(Purge { tenant, command, target, limit: 2, by }));
            } else if number.is_multiple_of(5) {
                more.push(Command::Cleanup(Cleanup { tenant, before: u64::MAX, limit: 3 }));
            }
            let tasks = enqueue.tasks.into_iter().map(old_task).collect();
            let (tenant, atomic, seed) = (enqueue.tenant, enqueue.atomic, enqueue.seed);
            Command::EnqueueV1(EnqueueV1 { tenant, tasks, atomic, seed })
        }
        Command::EnqueueByValue(by_value) if old => {
            let (enqueue, fingerprints) = (by_value.enqueue, by_value.fingerprints);
            let tasks = enqueue.tasks.into_iter().map(old_task).collect();
            let (tenant, atomic, seed) = (enqueue.tenant, enqueue.atomic, enqueue.seed);
            let enqueue = EnqueueV1 { tenant, tasks, atomic, seed };
            Command::EnqueueByValueV1(EnqueueByValueV1 { enqueue, fingerprints })
        }
        Command::Configure(settings) if number.is_multiple_of(2) => {
            Command::ConfigureV1(SettingsV1 {
                max_attempts: settings.max_attempts,
                backoff: settings.backoff,
                retention: settings.retention,
                callback_attempts: settings.callback_attempts,
                callback_base: settings.callback_base,
                callback_max: settings.callback_max,
            })
        }
        Command::PutTopic(put) if number % 3 == 1 => {
            let policy = put.policy;
            let policy = PolicyV1 {
                priority_tiers: policy.priority_tiers,
                max_attempts: policy.max_attempts,
                dead_letter_topic: policy.dead_letter_topic,
                retention: policy.retention,
                max_consumers: policy.max_consumers,
            };
            Command::PutTopicV1(PutTopicV1 { tenant: put.tenant, name: put.name, policy })
        }
        Command::PutTopic(put) if number % 3 == 2 => {
            let policy = put.policy;
            let policy = PolicyV2 {
                priority_tiers: policy.priority_tiers,
                max_attempts: policy.max_attempts,
                dead_letter_topic: policy.dead_letter_topic,
                retention: policy.retention,
                max_consumers: policy.max_consumers,
                dead_letter_retention: policy.dead_letter_retention,
            };
            Command::PutTopicV2(PutTopicV2 { tenant: put.tenant, name: put.name, policy })
        }
        Command::BulkPart(part) if number.is_multiple_of(2) => {
            let error_contains = part.filter.error_contains.clone();
            let work = match part.work.clone() {
                BulkWork::Cleanup { .. } => BulkWorkV1::Cleanup { before: u64::MAX },
                BulkWork::PurgeDead { command } => BulkWorkV1::PurgeDead { command },
                BulkWork::PurgeWaiting { command } | BulkWork::Cancel { command, .. } => {
                    BulkWorkV1::PurgeWaiting { command }
                }
                BulkWork::Replay { command, .. } => BulkWorkV1::Replay { command, error_contains },
            };
            let part = *part;
            let (tenant, from, by) = (part.tenant, part.from, part.by);
            let (take, look) = (part.take, part.look);
            Command::BulkPartV1(BulkPartV1 { tenant, work, from, take, look, by })
        }
        other => other,
    }
}

/// The commands of a run, group by group.
fn groups(seed: u64) -> Vec<(Moment, Vec<Command>)> {
    let mut groups = Vec::new();
    play(&Setup { nodes: 1, seed, ..Setup::default() }, |script| {
        script.work(6);
        script.pass(SECOND * 20);
        let leader = script.leader();
        for entry in script.entries(leader) {
            let EntryPayload::Normal(proposal) = entry.payload else { continue };
            groups.extend(proposal.records.iter().map(|(_, record)| read_record(record).unwrap()));
        }
    });
    groups.truncate(GROUPS);
    groups
}

fn write() -> String {
    let mut text = String::new();
    for seed in SEEDS {
        writeln!(text, "log {seed}").unwrap();
        let (mut shard, mut number) = (Replayed::new(), 0);
        for (at, commands) in groups(seed) {
            let (mut record, mut more) = (Vec::new(), Vec::new());
            begin_record(at, &mut record);
            for command in commands {
                number += 1;
                push_command(&of_older_logs(number, command, &mut more), &mut record);
            }
            more.iter().for_each(|command| push_command(command, &mut record));
            shard.apply(&record);
            let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{:016x} {hex}", shard.digest.0).unwrap();
        }
    }
    text
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn no_command_has_another_outcome_than_before() {
    let path = path();
    if std::env::var_os("CODEQ_WRITE_FIXTURE").is_some() && !path.exists() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, write()).unwrap();
    }
    let (mut shard, mut kinds) = (Replayed::new(), BTreeSet::new());
    for (number, line) in (1..).zip(std::fs::read_to_string(&path).unwrap().lines()) {
        match line.split_once(' ').unwrap() {
            ("log", _) => shard = Replayed::new(),
            (digest, record) => {
                let commands = shard.apply(&bytes(record));
                let digest = u64::from_str_radix(digest, 16).unwrap();
                assert_eq!(
                    shard.digest.0, digest,
                    "line {number}: one of these commands has another outcome than before, which needs a new level: \
                     {commands:?}"
                );
                kinds.extend(commands.iter().map(name));
            }
        }
    }
    assert_eq!(kinds.len(), KINDS, "not in the fixture: {kinds:?}");
}
