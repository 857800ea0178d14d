//! The files that packages, alerts and dashboard are made of. `make dist-test` installs and runs them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::harness::codeq;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names in a text that look like those of our metrics.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("codeq_")).map(str::to_owned).collect()
}

/// Whether the server has a metric of this name. Its sources give names without prefix, unit and suffix.
fn is_known(metric: &str, sources: &str) -> bool {
    let mut stem = metric.trim_start_matches("codeq_");
    loop {
        if sources.contains(&format!("\"{stem}\"")) {
            return true;
        }
        let endings = ["_total", "_bucket", "_count", "_sum", "_info", "_seconds", "_bytes"];
        match endings.iter().find_map(|ending| stem.strip_suffix(ending)) {
            Some(shorter) => stem = shorter,
            None => return false,
        }
    }
}

#[test]
fn alerts_dashboard_and_scaler_use_metrics_that_the_server_has() {
    let sources: String = ["commands", "metrics", "refusals", "scrape"]
        .iter()
        .map(|name| read(&format!("crates/codeq-server/src/observe/{name}.rs")))
        .collect();
    assert!(!is_known("codeq_no_such_total", &sources));
    for file in [
        "dist/compose/alerts.yml",
        "dist/compose/grafana/dashboards/codeq.json",
        "dist/helm/codeq/templates/scaledobject.yaml",
        "dist/helm/codeq/values.yaml",
    ] {
        let used = metrics_in(&read(file));
        let unknown: Vec<_> = used.iter().filter(|metric| !is_known(metric, &sources)).collect();
        assert!(
            unknown.is_empty(),
            "{file} uses metrics that the server does not have: {unknown:?}"
        );
    }
    assert!(metrics_in(&read("dist/compose/alerts.yml")).len() > 5);
}

#[test]
fn the_dashboard_is_valid_and_its_copies_are_equal() {
    let dashboard = read("dist/compose/grafana/dashboards/codeq.json");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 5));
    // Helm charts cannot read files outside their directory.
    for (copy, original) in [
        ("dist/helm/codeq/files/alerts.yml", "dist/compose/alerts.yml"),
        ("dist/helm/codeq/files/dashboard.json", "dist/compose/grafana/dashboards/codeq.json"),
    ] {
        assert!(read(copy) == read(original), "copy {original} to {copy}");
    }
    let chart = read("dist/helm/codeq/Chart.yaml");
    let version = format!("appVersion: \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(chart.contains(&version), "Chart.yaml lacks {version}");
}

#[test]
fn the_packaged_configuration_is_valid_local_and_without_tokens() {
    let file = root().join("dist/debian/codeq.yaml");
    let check = codeq(&["config", "check", "--config", file.to_str().unwrap()]);
    assert_eq!(check.code, 0, "{}{}", check.out, check.err);
    let packaged = read("dist/debian/codeq.yaml");
    assert!(packaged.contains("\nhttpAddr: 127.0.0.1:8080\n"), "it listens beyond this machine");
    let has_token =
        packaged.lines().any(|line| !line.trim().starts_with('#') && line.contains("token"));
    assert!(!has_token, "it has a default token");
}

#[test]
fn scripts_parse_and_the_unit_is_valid() {
    for script in [
        "dist/build",
        "dist/debian/build",
        "dist/debian/postinst",
        "dist/debian/prerm",
        "dist/debian/postrm",
        "dist/test/run",
    ] {
        let said = Command::new("sh").arg("-n").arg(root().join(script)).output().unwrap();
        assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
    }
    // The tool expects the program to exist.
    let unit = read("dist/debian/codeq.service");
    let unit = unit.replace("/usr/bin/codeq", env!("CARGO_BIN_EXE_codeq"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("codeq.service");
    std::fs::write(&path, unit).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output() {
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success() && !text.contains("codeq.service"), "{text}");
        }
        Err(_) => eprintln!("systemd-analyze is missing: the unit is not verified"),
    }
}
