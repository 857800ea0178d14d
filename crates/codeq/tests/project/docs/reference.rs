//! The reference pages are generated: `CODEQ_WRITE_DOCS=1 cargo test -p codeq --test codeq project::docs` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use codeq_server::http::openapi::document;
use codeq_server::http::problem::status;
use codeq_server::service::Code;

use super::commands::Place;
use super::http;
use super::pages::{read, root};
use crate::cli::harness::codeq;

const NOTE: &str = "<!-- Generated from the code: CODEQ_WRITE_DOCS=1 cargo test -p codeq --test codeq project::docs -->\n\n";

/// Heads the options that every command that talks to a server has.
const CONNECTION: &str = "Connection and output:";

/// Text that fits into a cell of a table.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Compares a page with what it should be, or writes it.
fn check(path: &str, page: &str) {
    let page = format!("{NOTE}{}\n", page.trim_end());
    if std::env::var_os("CODEQ_WRITE_DOCS").is_some() {
        std::fs::write(root().join(path), &page).unwrap();
    }
    let kept = read(path);
    let differs = kept.lines().zip(page.lines()).find(|(kept, now)| kept != now);
    assert!(
        kept == page,
        "{path} is out of date: CODEQ_WRITE_DOCS=1 cargo test -p codeq --test codeq project::docs\n{differs:?}"
    );
}

#[test]
fn http_api() {
    check("docs/reference/http.md", &http::page(document()));
}

#[test]
fn errors() {
    let mut page = String::from(
        "# Errors\n\nExcept for a refused [host](limits.md#host-header), which gets plain text, an error response is a problem document (RFC 9457, `application/problem+json`) with `type`, `title`, \
         `status`, `detail`, a short `error`, a stable `code` and the `requestId`. Programs should use the `code`. On streams, \
         acknowledgements have the same `error` and `code`.\n\n| Code | Status | Meaning | What to do |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let (text, status) = (code.text(), status(*code).as_u16());
        let _ = writeln!(
            page,
            "| `{text}` | {status} | {} | {} |",
            cell(code.meaning()),
            cell(code.remedy())
        );
    }
    check("docs/reference/errors.md", &page);
}

#[test]
fn configuration() {
    let default = codeq(&["config", "default"]).out;
    let mut page = String::from("# Configuration\n\n`codeq config default` prints this file. ");
    page.push_str("[Deploy](../guides/deploy.md#settings) describes how to check, show and reload settings.\n");
    let mut sections = default.split("\n# --- ");
    let _ = write!(page, "\n```yaml\n{}\n```\n", sections.next().unwrap_or_default().trim());
    for section in sections {
        let (title, settings) = section.split_once('\n').unwrap();
        let title = title.trim_end_matches('-').trim();
        let _ = write!(
            page,
            "\n## {title}\n\n```yaml\n{}\n```\n",
            settings.trim().trim_start_matches("#\n")
        );
    }
    check("docs/reference/configuration.md", &page);
}

/// The help of a command without the section of options that all commands share.
fn without_connection(help: &str) -> String {
    let mut shared = false;
    let own = help.lines().filter(|line| {
        // The section ends at the next line that is not indented.
        if !line.is_empty() && !line.starts_with(' ') {
            shared = *line == CONNECTION;
        }
        !shared
    });
    own.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

#[test]
fn commands() {
    let help = read("crates/codeq/tests/cli/help.txt");
    let mut page = String::from(
        "# Commands\n\nThe `--help` of every command. [Command line](../command-line.md) explains how to use them. Commands \
         that talk to a server also take the options under *Connection and output*, which are listed once, below \
         [codeq](#codeq).\n",
    );
    // The help of a command comes before that of all commands below it: bring them together.
    let mut all: Vec<(&str, &str)> = help
        .split("$ codeq")
        .skip(1)
        .filter_map(|part| part.split_once(" --help\n"))
        .map(|(name, help)| (name.trim(), help.trim()))
        .collect();
    let order: BTreeMap<&str, usize> =
        all.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
    all.sort_by_key(|(name, _)| {
        let noun = name.split(' ').next().unwrap_or_default();
        (order.get(noun).copied(), order.get(name).copied())
    });
    for (name, help) in all {
        let level = if name.contains(' ') { "###" } else { "##" };
        let title = format!("codeq {name}");
        let help = if name.is_empty() { help.to_owned() } else { without_connection(help) };
        let _ = write!(page, "\n{level} {}\n\n```text\n{help}\n```\n", title.trim());
    }
    check("docs/reference/commands.md", &page);
}

/// Makes every metric appear: those with labels are only served once they have a value.
const ACTIVITY: &str = r#"
cat > codeq.yaml <<END
httpAddr: 127.0.0.1:8090
producerAddr: 127.0.0.1:8091
workerAddr: 127.0.0.1:8092
producerAuth: { staticTokens: [{ token: producer, subject: p, tenant: t, scopes: [codeq:admin] }] }
allowProducerAsWorker: true
rateLimit: { admin: { requestsPerMinute: 1, burst: 1 } }
tenantLimits: { maxPendingTasks: 1 }
webhooks: { allowedNetworks: [127.0.0.1] }
END
chmod 600 codeq.yaml
codeq serve --config codeq.yaml --log-level off &
until codeq probe --url http://127.0.0.1:8090; do sleep 0.1; done
api=http://127.0.0.1:8090/v1/codeq; auth='Authorization: Bearer producer'
enqueue() { curl -sS $api/tasks -H "$auth" -d '{"command":"c","payload":{},"webhook":"http://127.0.0.1:8090/livez"}'; }
curl -s $api/tasks -H 'Authorization: Bearer wrong' || true
curl -s $api/admin/queues -H "$auth"
curl -s $api/admin/queues -H "$auth" || true
id=$(enqueue | grep -o '"id":"[^"]*' | cut -d'"' -f4)
enqueue || true
curl -s $api/tasks/claim -H "$auth" -d '{}'
curl -s $api/tasks/$id/result -H "$auth" -d '{"status":"COMPLETED","artifacts":[{"name":"a","contentBase64":"YQ=="}]}'
id=$(enqueue | grep -o '"id":"[^"]*' | cut -d'"' -f4)
codeq worker run c --url http://127.0.0.1:8090 --worker-url http://127.0.0.1:8092 --token producer -- true & worker=$!
curl -s "$api/tasks/$id/result?waitSeconds=30" -H "$auth"
kill $worker; wait $worker || true
until curl -s http://127.0.0.1:8090/metrics | grep -q codeq_webhook_deliveries; do sleep 0.1; done
echo; echo METRICS
curl -s http://127.0.0.1:8090/metrics
"#;

/// The labels of a line such as `name{kind="result",le="5"} 1`.
fn labels(line: &str) -> impl Iterator<Item = &str> {
    let inside = line
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or("", |(inside, _)| inside);
    let keys = inside.split("\",").filter_map(|pair| pair.split_once("=\"").map(|(key, _)| key));
    keys.filter(|key| *key != "le")
}

#[test]
fn metrics() {
    let (done, output) = Place::new().run(ACTIVITY);
    let metrics = output.split_once("METRICS\n").map_or("", |(_, metrics)| metrics);
    assert!(done && !metrics.is_empty(), "{output}");
    let mut rows: BTreeMap<&str, (&str, &str, BTreeSet<&str>)> = BTreeMap::new();
    for line in metrics.lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|line| line.split_once(' '))
        {
            rows.entry(name).or_default().1 = help.trim_end_matches('.');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            rows.entry(name).or_default().0 = kind;
        }
    }
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let family = rows.iter_mut().find(|(family, _)| {
            let rest = name.strip_prefix(**family);
            rest.is_some_and(|rest| {
                ["", "_total", "_bucket", "_count", "_sum", "_info"].contains(&rest)
            })
        });
        if let Some((_, row)) = family {
            row.2.extend(labels(line));
        }
    }
    let mut page = String::from(
        "# Metrics\n\n[Monitor](../guides/monitor.md) says where the server publishes metrics, what to watch, and how labels are limited.\n\n\
         | Metric | Type | Labels | |\n|---|---|---|---|\n",
    );
    for (name, (kind, help, labels)) in &rows {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {} |", labels.join(", "), cell(help));
    }
    check("docs/reference/metrics.md", &page);
    let sources = ["metrics", "scrape"]
        .map(|name| read(&format!("crates/codeq-server/src/observe/{name}.rs")));
    for source in sources {
        for call in ["register(\"", "register_with_unit(\""] {
            for name in source.split(call).skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(page.contains(&format!("`codeq_{name}")), "{name} was not served");
            }
        }
    }
}
