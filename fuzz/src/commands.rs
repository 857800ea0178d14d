//! Groups of commands, as the log holds them.

use codeq_core::codec::{begin_record, push_command, read_record};
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Selector, Sweep};
use codeq_core::moment::Moment;

/// A group that decodes is encoded to bytes that decode to the same group.
pub fn run(data: &[u8]) {
    if let Ok((at, commands)) = read_record(data) {
        assert_eq!(read_record(&written(at, &commands)), Ok((at, commands)));
    }
}

fn written(at: Moment, commands: &[Command]) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin_record(at, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    bytes
}

pub fn seeds() -> Vec<Vec<u8>> {
    let tenant = || "acme".into();
    let task = NewTask {
        command: "resize".into(),
        payload: r#"{"image":7}"#.into(),
        webhook: Some("https://example.com/done".into()),
        idempotency_key: Some("k".into()),
        delay: Some(5_000),
        ..NewTask::default()
    };
    let tasks = vec![task.clone(), task];
    let commands = [
        Command::Enqueue(Enqueue { tenant: tenant(), tasks, atomic: true, seed: u64::MAX }),
        Command::Claim(Claim {
            tenant: tenant(),
            worker: "w".into(),
            from: Selector::Commands(vec!["resize".into(), "mail".into()]),
            lease: 60_000,
            count: 10,
        }),
        Command::Sweep(Sweep { limit: 100, seed: 7 }),
    ];
    let at = Moment { now: 42, wall: 4_200 };
    let each = commands.chunks(1).map(|command| written(at, command));
    let stored = [
        &include_bytes!("../../crates/codeq-core/tests/fixtures/commands-v1")[..],
        include_bytes!("../../crates/codeq-core/tests/fixtures/commands-v2"),
        include_bytes!("../../crates/codeq-core/tests/fixtures/bulk-commands-v2"),
        include_bytes!("../../crates/codeq-core/tests/fixtures/lease-commands-v1"),
        include_bytes!("../../crates/codeq-core/tests/fixtures/record-commands-v1"),
        include_bytes!("../../crates/codeq-core/tests/fixtures/max-run-commands-v1"),
    ];
    each.chain([written(at, &commands)]).chain(stored.map(<[u8]>::to_vec)).collect()
}
