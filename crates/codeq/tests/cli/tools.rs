//! `codeq token`, `doctor`, `version`, `completion`, `demo` and `top`.

use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cli::client::{Shop, alone, fails, said};
use crate::server::node::Process;

/// A process and the next line of its stderr with this text.
fn started(command: &mut std::process::Command, part: &str) -> (Process, String) {
    let mut process = Process::spawn(command.stderr(Stdio::piped()));
    let mut stderr = process.stderr().lines().map(Result::unwrap);
    let line = stderr.find(|line| line.contains(part)).unwrap();
    // Read on, or the process might stop at a full pipe.
    std::thread::spawn(move || stderr.for_each(drop));
    (process, line)
}

#[test]
fn a_minted_token_opens_a_server_that_knows_the_key() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| said(alone(home.path(), args).current_dir(home.path()), "");
    let mint = ["token", "mint", "--subject", "shop", "--tenant", "acme", "--scope", "codeq:admin"];
    let minted = run(&mint);
    assert_eq!(minted.err, "created the key codeq-dev.key\n");
    let key = home.path().join("codeq-dev.key");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = minted.out.trim();
    let seen: Value = serde_json::from_str(&run(&["token", "inspect", token]).out).unwrap();
    assert_eq!(
        (&seen["claims"]["sub"], &seen["claims"]["tenantId"]),
        (&json!("shop"), &json!("acme"))
    );
    let late = run(&["token", "mint", "--subject", "w", "--worker", "--ttl", "0s"]).out;
    let late: Value = serde_json::from_str(&run(&["token", "inspect", &late]).out).unwrap();
    assert!(late["state"].as_str().unwrap().starts_with("expired"), "{late}");
    assert_eq!(late["claims"]["eventTypes"], json!(["*"]));
    fails(&run(&["token", "inspect", "dev-token"]), 1, "not a JSON Web Token");
    let keys: Value = serde_json::from_str(&run(&["token", "jwks"]).out).unwrap();
    assert_eq!(keys["keys"][0]["kid"], seen["header"]["kid"]);
    std::fs::write(home.path().join("bad.key"), "x").unwrap();
    fails(&run(&["token", "jwks", "--key", "bad.key"]), 1, "bad.key");

    let jwks = ["token", "jwks", "--serve", "127.0.0.1:0"];
    let (_jwks, line) = started(alone(home.path(), &jwks).current_dir(home.path()), "serving");
    let url = line.split_whitespace().find_map(|word| word.strip_suffix(';')).unwrap();
    let config = home.path().join("codeq.yaml");
    let yaml = format!(
        "dataDir: data\nhttpAddr: 127.0.0.1:0\nproducerAuth:\n  jwt: [{{issuer: codeq-dev, audience: codeq, \
         jwksUrl: '{url}'}}]\n"
    );
    std::fs::write(&config, yaml).unwrap();
    let serve = ["serve", "--config", "codeq.yaml"];
    let (_server, line) = started(alone(home.path(), &serve).current_dir(home.path()), " ms on ");
    let addr = line.split_once(" ms on ").unwrap().1.split(';').next().unwrap().to_owned();
    let url = format!("http://{addr}");
    let queues = run(&["queue", "list", "--url", &url, "--token", token]);
    assert_eq!((queues.code, queues.out.as_str()), (0, "[]\n"), "{}", queues.err);
    let strange = run(&["token", "mint", "--key", "other.key", "--subject", "shop"]).out;
    let denied = run(&["queue", "list", "--url", &url, "--token", strange.trim()]);
    fails(&denied, 6, "invalid_token");
    let plain = run(&["token", "mint", "--subject", "shop"]).out;
    fails(&run(&["queue", "list", "--url", &url, "--token", plain.trim()]), 6, "forbidden");
}

#[test]
fn the_doctor_finds_the_cause() {
    let shop = Shop::open();
    let checks = shop.json(&["doctor"]);
    assert!(checks.as_array().unwrap().iter().all(|check| check["ok"] == true), "{checks}");
    let wrong = shop.run(&["doctor", "--token", "wrong"]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains("1 problem(s)") && wrong.out.contains("invalid_token"));
    let nobody = shop.run(&["doctor", "--url", "http://127.0.0.1:9", "-o", "table"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.out.contains("refused") && nobody.err.contains("codeq dev"), "{}", nobody.out);
    let open = shop.home.path().join("config/codeq");
    std::fs::create_dir_all(&open).unwrap();
    std::fs::write(open.join("profiles.json"), "{}").unwrap();
    let seen = shop.run(&["doctor"]);
    assert!(seen.code == 1 && seen.err.contains("chmod 600"), "{}", seen.err);
}

#[test]
fn the_version_of_both_sides_is_printed() {
    let shop = Shop::open();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(shop.run(&["version", "-o", "name"]).out.trim(), version);
    let both = shop.json(&["version", "--server"]);
    assert_eq!((&both["version"], both["server"].is_string()), (&json!(version), true));
    let nobody = ["version", "--server", "--url", "http://127.0.0.1:9"];
    fails(&shop.run(&nobody), 1, "cannot reach");
}

#[test]
fn shells_complete_queues_and_profiles() {
    let shop = Shop::open();
    for shell in ["bash", "zsh", "fish"] {
        assert!(shop.run(&["completion", shell]).out.contains("codeq completion -- "), "{shell}");
    }
    fails(&shop.run(&["completion", "cmd"]), 2, "bash");
    shop.enqueue("resize", &[]);
    shop.run(&["profile", "add", "prod", "--url", "http://127.0.0.1:9"]);
    let complete = |words: &[&str]| shop.run(&[&["completion", "--", "codeq"], words].concat()).out;
    assert_eq!(complete(&["queue", "get", "re"]), "resize\n");
    assert_eq!(complete(&["task", "list", "--queue", ""]), "resize\n");
    assert_eq!(complete(&["profile", "use", ""]), "prod\n");
    assert_eq!(complete(&["task", "list", "--profile", "p"]), "prod\n");
    assert_eq!(complete(&["task", "can"]), "cancel\n");
    assert_eq!(complete(&["task", "list", "--sta"]), "--state\n");
    assert_eq!(complete(&["task", "list", "-o", "j"]), "json\njsonl\n");
    assert_eq!(complete(&["compl"]), "completion\n");
    // In a real shell.
    let bash = "source <(codeq completion bash); COMP_WORDS=(codeq queue get r); COMP_CWORD=3; \
                _codeq; echo \"${COMPREPLY[@]}\"";
    let command = shop.command(&[]);
    let codeq = std::path::Path::new(command.get_program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", codeq.display(), std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", bash]).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(said(shell.env("PATH", path), "").out, "resize\n");
}

#[test]
fn the_demo_makes_what_top_shows() {
    let shop = Shop::open();
    let demo = shop.run(&["demo", "--rate", "100", "--for", "500ms"]);
    assert_eq!(demo.code, 0, "{}", demo.err);
    assert!(demo.err.contains(" completed, "), "{}", demo.err);
    let queues = shop.json(&["queue", "list"]);
    let total = |field: &str| -> u64 {
        queues.as_array().unwrap().iter().map(|queue| queue[field].as_u64().unwrap()).sum()
    };
    assert!(total("completed") > 0, "{queues}");
    shop.enqueue("demo-mail", &["--delay", "1h"]);
    let top = shop.run(&["top", "--once"]).out;
    let line = format!(
        "tasks    {} ready, {} delayed, 0 running, {} dead",
        total("ready"),
        total("delayed") + 1,
        total("dlq")
    );
    assert!(top.contains(&line), "'{line}' is not in:\n{top}");
    assert!(top.contains("waiting claims ") && top.contains("commit latency "), "{top}");
    assert!(!top.contains('\x1b'), "{top}");
    fails(&shop.run(&["top"]), 2, "not a terminal");
    fails(&shop.run(&["demo", "--token", "wrong"]), 6, "token");
}
