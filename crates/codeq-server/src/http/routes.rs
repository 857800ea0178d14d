//! The list of routes, with their access rules.

use codeq_auth::{Role, Scope};

use super::request_context::Handler;
use super::{
    abandon, artifacts, audit, backup, cancel, claim, cleanup, dead_letters, docs, enqueue, events,
    heartbeat, nack, probes, queues, reload, reschedule, submit, subscriptions, tasks, topics,
    webhooks, why, workers,
};

/// One route.
pub struct Route {
    /// The HTTP method.
    pub verb: Verb,
    /// The path, with parameters in braces.
    pub path: &'static str,
    /// The operation id: its name in the OpenAPI document, metrics and logs.
    pub operation: &'static str,
    /// Who may call the route.
    pub access: Access,
    /// The body size limit.
    pub body: BodyLimit,
    /// The query parameters the route accepts.
    pub query: &'static [&'static str],
    /// The function that handles requests.
    pub handler: Handler,
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads.
    Get,
    /// Runs an operation.
    Post,
    /// Creates or replaces.
    Put,
    /// Deletes.
    Delete,
    /// Changes some fields.
    Patch,
}

impl Verb {
    /// The method's name in a request, such as `GET`.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
            Verb::Patch => "PATCH",
        }
    }
}

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All callers, without a token.
    Open,
    /// Any valid token, within its tenant.
    Any,
    /// Producers.
    Producer,
    /// Workers with this scope.
    Worker(Scope),
    /// Admins of the tenant.
    Admin,
    /// Operators, for operations that affect all tenants.
    Operator,
}

impl Access {
    /// The kind of token that the route accepts; `None` if it needs none.
    pub fn role(self) -> Option<Role> {
        match self {
            Access::Open => None,
            Access::Any | Access::Admin | Access::Operator => Some(Role::Any),
            Access::Producer => Some(Role::Producer),
            Access::Worker(_) => Some(Role::Worker),
        }
    }
}

/// Maximum size of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLimit {
    /// The route has no fields.
    None,
    /// The limit for ordinary requests.
    Small,
    /// The limit for batches.
    Batch,
}

macro_rules! routes {
    ($($verb:ident $path:literal $operation:literal $access:expr, $body:ident, $handler:path $(, $query:literal)*;)*) => {
        &[$(Route {
            verb: Verb::$verb,
            path: $path,
            operation: $operation,
            access: $access,
            body: BodyLimit::$body,
            query: &[$($query),*],
            handler: |context| Box::pin($handler(context)),
        }),*]
    };
}

/// Every route of the server.
pub static ROUTES: &[Route] = routes! {
    Post "/v1/codeq/tasks" "enqueueTask" Access::Producer, Small, enqueue::one;
    Post "/v1/codeq/tasks/batch" "enqueueTasks" Access::Producer, Batch, enqueue::batch, "atomic";
    Get "/v1/codeq/tasks" "listTasks" Access::Any, None, tasks::list, "command", "status", "state", "filter", "limit", "cursor";
    Post "/v1/codeq/tasks/claim" "claimTask" Access::Worker(Scope::Claim), Small, claim::one;
    Post "/v1/codeq/tasks/claim/batch" "claimTasks" Access::Worker(Scope::Claim), Small, claim::batch;
    Post "/v1/codeq/tasks/batch/results" "submitResults" Access::Worker(Scope::Result), Batch, submit::batch;
    Get "/v1/codeq/tasks/{id}" "getTask" Access::Any, None, tasks::get;
    Get "/v1/codeq/tasks/{id}/result" "getResult" Access::Any, None, tasks::result, "waitSeconds";
    Get "/v1/codeq/tasks/{id}/history" "getHistory" Access::Any, None, tasks::history;
    Get "/v1/codeq/tasks/{id}/why" "explainTask" Access::Any, None, why::task;
    Post "/v1/codeq/tasks/{id}/heartbeat" "heartbeatTask" Access::Worker(Scope::Heartbeat), Small, heartbeat::heartbeat;
    Post "/v1/codeq/tasks/{id}/abandon" "abandonTask" Access::Worker(Scope::Abandon), Small, abandon::abandon;
    Post "/v1/codeq/tasks/{id}/nack" "nackTask" Access::Worker(Scope::Nack), Small, nack::nack;
    Post "/v1/codeq/tasks/{id}/result" "submitResult" Access::Worker(Scope::Result), Batch, submit::one;
    Patch "/v1/codeq/tasks/{id}" "changeTask" Access::Producer, Small, reschedule::change;
    Post "/v1/codeq/tasks/{id}/cancel" "cancelTask" Access::Producer, None, cancel::cancel;
    Post "/v1/codeq/tasks/{id}/replay" "replayTask" Access::Admin, None, dead_letters::replay_one;
    Get "/v1/codeq/artifacts/{id}/{artifact}" "getArtifact" Access::Any, None, artifacts::download, "v", "type", "sha256";
    Post "/v1/codeq/workers/subscriptions" "subscribe" Access::Worker(Scope::Subscribe), Small, subscriptions::create;
    Get "/v1/codeq/workers/subscriptions" "listSubscriptions" Access::Any, None, subscriptions::list;
    Get "/v1/codeq/workers/subscriptions/{subscription}" "getSubscription" Access::Any, None, subscriptions::get;
    Delete "/v1/codeq/workers/subscriptions/{subscription}" "unsubscribe" Access::Any, None, subscriptions::delete;
    Post "/v1/codeq/workers/subscriptions/{subscription}/heartbeat" "renewSubscription" Access::Worker(Scope::Subscribe), Small, subscriptions::heartbeat;
    Get "/v1/codeq/events" "streamEvents" Access::Any, None, events::stream, "command";
    Get "/v1/codeq/raft/status" "raftStatus" Access::Any, None, probes::raft;
    Get "/v1/codeq/admin/queues" "listQueues" Access::Admin, None, queues::list, "format", "allTenants";
    Get "/v1/codeq/admin/queues/{command}" "getQueue" Access::Admin, None, queues::get;
    Get "/v1/codeq/admin/queues/{command}/why" "explainQueue" Access::Admin, None, why::queue;
    Post "/v1/codeq/admin/queues/{command}/pause" "pauseQueue" Access::Admin, None, queues::pause;
    Post "/v1/codeq/admin/queues/{command}/resume" "resumeQueue" Access::Admin, None, queues::resume;
    Post "/v1/codeq/admin/queues/{command}/purge" "purgeQueue" Access::Admin, Small, queues::purge;
    Post "/v1/codeq/admin/queues/{command}/cancel" "cancelTasks" Access::Admin, Small, queues::cancel;
    Get "/v1/codeq/admin/dlq/{command}" "listDeadLetters" Access::Admin, None, dead_letters::list, "filter", "limit", "cursor";
    Post "/v1/codeq/admin/dlq/{command}/replay" "replayDeadLetters" Access::Admin, Small, dead_letters::replay;
    Post "/v1/codeq/admin/dlq/{command}/purge" "purgeDeadLetters" Access::Admin, Small, dead_letters::purge;
    Post "/v1/codeq/admin/tasks/cleanup" "cleanupTasks" Access::Admin, Small, cleanup::cleanup;
    Get "/v1/codeq/admin/topics" "listTopics" Access::Admin, None, topics::list;
    Put "/v1/codeq/admin/topics/{name}" "putTopic" Access::Admin, Small, topics::put;
    Get "/v1/codeq/admin/topics/{name}" "getTopic" Access::Admin, None, topics::get;
    Delete "/v1/codeq/admin/topics/{name}" "deleteTopic" Access::Admin, None, topics::delete, "deletionPolicy";
    Get "/v1/codeq/admin/webhooks/deliveries" "listDeliveries" Access::Admin, None, webhooks::deliveries, "status", "limit", "cursor";
    Post "/v1/codeq/admin/webhooks/deliveries/resend" "resendDeliveries" Access::Admin, Small, webhooks::resend_failed;
    Post "/v1/codeq/admin/webhooks/deliveries/{id}/resend" "resendDelivery" Access::Admin, None, webhooks::resend;
    Get "/v1/codeq/admin/webhooks/secrets" "listWebhookSecrets" Access::Admin, None, webhooks::secrets;
    Post "/v1/codeq/admin/webhooks/secrets/rotate" "rotateWebhookSecret" Access::Admin, Small, webhooks::rotate;
    Delete "/v1/codeq/admin/webhooks/secrets" "deleteWebhookSecrets" Access::Admin, None, webhooks::delete_secrets;
    Get "/v1/codeq/admin/workers" "listWorkers" Access::Admin, None, workers::list, "limit";
    Get "/v1/codeq/admin/audit" "listActions" Access::Admin, None, audit::list, "limit", "after", "allTenants";
    Post "/v1/codeq/admin/backup" "makeBackup" Access::Operator, None, backup::make;
    Post "/v1/codeq/admin/config/reload" "reloadConfig" Access::Operator, None, reload::reload;
    Get "/" "index" Access::Open, None, docs::index;
    Get "/livez" "livez" Access::Open, None, probes::live, "verbose";
    Get "/readyz" "readyz" Access::Open, None, probes::ready, "verbose";
    Get "/healthz" "healthz" Access::Open, None, probes::ready, "verbose";
    Get "/metrics" "metrics" Access::Open, None, probes::metrics;
    Get "/openapi.json" "openapi" Access::Open, None, docs::openapi;
    Get "/docs" "docs" Access::Open, None, docs::page;
};

/// The metrics route on the separate port.
pub static METRICS_ALONE: Route = Route {
    verb: Verb::Get,
    path: "/metrics",
    operation: "metrics",
    access: Access::Open,
    body: BodyLimit::None,
    query: &[],
    handler: |context| Box::pin(probes::render_metrics(context)),
};
