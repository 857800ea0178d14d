//! Label values are bounded, and released.

use super::*;

#[test]
fn events_are_in_the_order_of_the_variants() {
    for (at, event) in Event::ALL.into_iter().enumerate() {
        assert_eq!(event as usize, at);
    }
    for (at, (kind, _)) in WEBHOOKS.iter().enumerate() {
        assert_eq!(*kind as usize, at);
    }
    for (at, (outcome, _)) in DELIVERIES.iter().enumerate() {
        assert_eq!(*outcome as usize, at);
    }
}

#[test]
fn an_upper_bound_is_inclusive() {
    for (took, bucket) in [(0, 0), (5, 0), (6, 1), (3_600_000, 17), (3_600_001, 18)] {
        assert_eq!(LATENCY_MS.partition_point(|bound| *bound < took), bucket, "{took}");
    }
}

fn created(tenant: &str, command: &str) -> Effect {
    Effect::Moved(Transition {
        number: 1,
        id: codeq_core::id::TaskId::new(codeq_core::keys::Seq(1), 1),
        tenant: tenant.into(),
        queue: command.into(),
        from: None,
        to: Some(Place::Pending),
        event: Event::Created,
        at: codeq_core::moment::Moment::agreed(1),
        age: 0,
        attempts: 0,
    })
}

#[test]
fn webhooks_beyond_the_limit_share_a_label_value() {
    let commands = Commands::default();
    let tenant: Arc<str> = "hostile".into();
    let (kind, outcome) = (WebhookKind::Result, WebhookOutcome::Failed);
    for n in 0..1_000 {
        commands.webhook(kind, outcome, Some((&tenant, &format!("c{n}"))));
    }
    commands.webhook(kind, outcome, None);
    assert_eq!(commands.names().len(), COMMANDS_PER_TENANT_MAX);
    let sum = || -> u64 {
        let all = commands.snapshot();
        all.iter().flat_map(|(_, counts)| counts.webhooks.as_flattened()).sum()
    };
    assert_eq!(sum(), 1_001);
    // Webhooks release their label values like tasks do.
    let none = HashSet::new();
    assert_eq!(commands.release(&none).len(), 0, "counted since the last call");
    assert_eq!(commands.release(&none).len(), COMMANDS_PER_TENANT_MAX);
    assert_eq!((commands.names().len(), sum()), (0, 1_001));
}

#[test]
fn gone_commands_release_their_label_values() {
    let commands = Commands::default();
    let names = |from: usize| (from..from + 500).map(|n| format!("c{n:04}"));
    let effects: Vec<_> = names(0).map(|name| created("hostile", &name)).collect();
    commands.count(&effects);
    assert_eq!(commands.names().len(), COMMANDS_PER_TENANT_MAX, "half is left for others");
    commands.count(&[created("b", "mail"), created("b", "video")]);
    let present = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let sum = || -> u64 {
        commands.snapshot().iter().map(|(_, counts)| counts.event(Event::Created)).sum()
    };
    assert_eq!(commands.release(&present(&["mail"])).len(), 0, "counted since the last call");
    let mut gone = commands.release(&present(&["mail", "c0007"]));
    gone.sort();
    assert_eq!((gone.len(), &*gone[0], &*gone[99]), (COMMANDS_PER_TENANT_MAX, "c0000", "video"));
    assert_eq!((commands.names().len(), sum()), (2, 502), "the sum does not shrink");
    let effects: Vec<_> = names(1_000).map(|name| created("hostile", &name)).collect();
    commands.count(&effects);
    commands.count(&[created("b", "mail")]);
    assert_eq!(commands.names().len(), COMMANDS_PER_TENANT_MAX + 1);
    let mail = |(name, counts): &(Arc<str>, Counts)| {
        (**name == *"mail").then(|| counts.event(Event::Created))
    };
    assert_eq!(commands.snapshot().iter().find_map(mail), Some(2));
}
