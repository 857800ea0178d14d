//! `codeq profile`, and the profile of a development server.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::cli::client::{Shop, alone, fails, said};
use crate::server::node::Node;

#[test]
fn profiles_choose_the_server_and_keep_their_tokens() {
    let shop = Shop::open();
    let run = |args: &[&str]| said(&mut alone(shop.home.path(), args), "");
    let url = shop.url();
    assert_eq!(run(&["profile", "list"]).out, "[]\n");
    fails(&run(&["profile", "use", "shop"]), 3, "there is no profile 'shop'");
    fails(&run(&["profile", "add", "shop"]), 2, "needs a URL");
    for name in ["", "../shop", "a b", "a\nb"] {
        fails(&run(&["profile", "add", name, "--url", &url]), 2, "expected letters");
    }
    fails(&run(&["profile", "add", "shop", "--url", "ftp://x"]), 2, "http://");
    let added = run(&["profile", "add", "shop", "--url", &url, "--token", "dev-token"]);
    assert_eq!((added.code, added.err.as_str()), (0, "profile shop added and selected\n"));
    let wrong = ["profile", "add", "wrong", "--url", &url, "--token", "secret-word"];
    assert_eq!(run(&wrong).code, 0);

    let file = shop.home.path().join("config/codeq/profiles.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let listed = run(&["profile", "list"]).out;
    assert!(!listed.contains("secret-word") && !listed.contains("dev-token"), "{listed}");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0], json!({ "name": "shop", "current": true, "url": url, "token": true }));

    assert_eq!(run(&["queue", "list"]).out, "[]\n");
    fails(&run(&["queue", "list", "--profile", "wrong", "-o", "name"]), 6, "invalid_token");
    fails(&run(&["--profile", "wrong", "queue", "list", "-o", "name"]), 6, "invalid_token");
    fails(&run(&["queue", "list", "--profile", "none", "-o", "name"]), 3, "'none'");
    // A token goes to its own server only.
    let other = url.replace("127.0.0.1", "localhost");
    fails(&run(&["queue", "list", "--url", &other, "-o", "name"]), 6, "token");
    // A profile without a token leaves it to the environment, also when --url names the profile's server.
    assert_eq!(run(&["profile", "add", "bare", "--url", &url]).code, 0);
    let bare = ["queue", "list", "--profile", "bare", "--url", &url];
    let bare = said(alone(shop.home.path(), &bare).env("CODEQ_TOKEN", "dev-token"), "");
    assert_eq!((bare.code, bare.out.as_str()), (0, "[]\n"), "{}", bare.err);
    // So do its certificates apply to that server, and to no other.
    let added = run(&["profile", "add", "bare", "--url", &url, "--ca-file", "/none/ca.pem"]);
    assert_eq!(added.code, 0, "{}", added.err);
    let trusting = |url: &str| run(&["queue", "list", "--profile", "bare", "--url", url]);
    fails(&trusting(&url), 2, "cannot read /none/ca.pem");
    assert_eq!(trusting(&other).code, 6);
    assert_eq!(run(&["profile", "remove", "bare"]).code, 0);
    let by_variable = said(
        alone(shop.home.path(), &["queue", "list", "-o", "name"]).env("CODEQ_PROFILE", "wrong"),
        "",
    );
    fails(&by_variable, 6, "invalid_token");

    assert_eq!(run(&["profile", "use", "wrong"]).code, 0);
    fails(&run(&["queue", "list", "-o", "name"]), 6, "invalid_token");
    assert_eq!(run(&["profile", "remove", "wrong"]).code, 0);
    assert_eq!(run(&["profile", "list", "-o", "name"]).out, "shop\n");
    std::fs::write(&file, "{").unwrap();
    fails(&run(&["queue", "list"]), 1, "cannot be parsed");
}

#[test]
fn a_development_server_saves_its_profile_when_asked() {
    let (data, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, log) = (data.path().join("data"), data.path().join("log"));
    let start = |more: &[&str]| {
        let dir = dir.to_str().unwrap();
        let args = [&["dev", "--data-dir", dir, "--http-addr", "127.0.0.1:0"], more].concat();
        let mut command = alone(home.path(), &args);
        Node::greeted(command.stderr(std::fs::File::create(&log).unwrap()), &log)
    };
    // Not without being asked: stdout is not a terminal.
    let quiet = start(&[]);
    assert!(!quiet.greeting.contains("Profile"), "{}", quiet.greeting);
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    quiet.kill();
    let node = start(&["--profile", "mine"]);
    assert!(node.greeting.contains("  Profile  mine   (selected"), "{}", node.greeting);
    let run = |args: &[&str]| said(&mut alone(home.path(), args), "");
    assert_eq!(run(&["task", "list"]).out, "[]\n");
    let doctor = run(&["doctor", "-o", "table"]);
    assert_eq!(doctor.code, 0, "{}{}", doctor.out, doctor.err);
    assert_eq!(doctor.out.lines().filter(|line| line.contains("  yes  ")).count(), 5);
}

#[test]
fn profiles_that_are_added_at_once_are_all_kept() {
    let home = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..12).map(|number| format!("p{number:02}")).collect();
    let add = |name: &String| {
        let args = ["profile", "add", name, "--url", "http://127.0.0.1:9"];
        alone(home.path(), &args).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    let running: Vec<_> = names.iter().map(add).collect();
    for mut child in running {
        assert!(child.wait().unwrap().success());
    }
    let listed = said(&mut alone(home.path(), &["profile", "list", "-o", "name"]), "").out;
    assert_eq!(listed.lines().collect::<Vec<_>>(), names);
    let dir = home.path().join("config/codeq");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1, "nothing is left behind");
}
