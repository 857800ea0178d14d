//! `codeq token`: JSON Web Tokens for trying out authentication, and what a token contains.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cli::{Connection, Done, Failure, Noun, Show, duration, ended, input, span, talk};

#[derive(Subcommand)]
pub enum Verb {
    /// Sign a JSON Web Token with a development key, which is created if it does not exist.
    #[command(after_help = "\
For trying out JWT authentication. `codeq token jwks` publishes the key for the server:

  codeq token mint --key dev.key --subject shop --tenant acme --scope codeq:admin > shop.token
  codeq token jwks --key dev.key --serve 127.0.0.1:9099 &
  # codeq.yaml: producerAuth: { jwt: [{ issuer: codeq-dev, audience: codeq, jwksUrl: http://127.0.0.1:9099/ }] }

Examples:
  codeq token mint --subject shop --tenant acme
  codeq token mint --subject w-1 --tenant acme --worker --queue resize --ttl 12h")]
    Mint(Box<Mint>),
    /// Print the public key as a JWKS, or serve it over HTTP.
    #[command(after_help = "\
Examples:
  codeq token jwks
  codeq token jwks --serve 127.0.0.1:9099")]
    Jwks {
        /// File with the key, created if it does not exist.
        #[arg(long, value_name = "FILE", default_value = KEY_FILE)]
        key: PathBuf,
        /// Answer HTTP requests at this address until interrupted.
        #[arg(long, value_name = "ADDR", value_parser = crate::config::address)]
        serve: Option<std::net::SocketAddr>,
    },
    /// Print what a token contains. The signature is not checked.
    #[command(after_help = "\
Examples:
  codeq token inspect @shop.token
  codeq token mint --subject shop | codeq token inspect -")]
    Inspect {
        /// The token, @FILE, or - for stdin.
        #[arg(default_value = "-", value_name = "TOKEN")]
        what: String,
    },
}

const KEY_FILE: &str = "codeq-dev.key";

/// What a worker needs to do all of its work.
const WORKER_SCOPES: &[&str] = &[
    "codeq:claim",
    "codeq:heartbeat",
    "codeq:abandon",
    "codeq:nack",
    "codeq:result",
    "codeq:subscribe",
];

#[derive(clap::Args)]
pub struct Mint {
    /// File with the key, created if it does not exist. Only you can read it.
    #[arg(long, value_name = "FILE", default_value = KEY_FILE)]
    key: PathBuf,
    /// Who the token is for: a producer's or worker's name.
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// The tenant. Default: the subject.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Scopes, such as codeq:admin.
    #[arg(long, value_name = "SCOPE")]
    scope: Vec<String>,
    /// Give it every scope of a worker.
    #[arg(long)]
    worker: bool,
    /// Queues that a worker may claim from. Default: all.
    #[arg(long, value_name = "QUEUE", requires = "worker")]
    queue: Vec<String>,
    /// How long it is valid.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    ttl: Duration,
    /// The issuer, as the server's configuration names it.
    #[arg(long, value_name = "NAME", default_value = "codeq-dev")]
    issuer: String,
    /// The audience, as the server's configuration names it.
    #[arg(long, value_name = "NAME", default_value = "codeq")]
    audience: String,
}

#[derive(Serialize)]
struct Inspected {
    header: Map<String, Value>,
    claims: Map<String, Value>,
    /// Such as `valid for 59m00s` or `expired 2h05m ago`, by this machine's clock.
    state: String,
}

impl Show for Inspected {
    fn name(&self) -> String {
        self.claims.get("sub").map(plain).unwrap_or_default()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let known = [
            ("Subject", "sub"),
            ("Issuer", "iss"),
            ("Audience", "aud"),
            ("Tenant", "tenantId"),
            ("Scopes", "scope"),
            ("Queues", "eventTypes"),
            ("Role", "role"),
        ];
        let text = |name: &str| self.claims.get(name).map(plain).unwrap_or_default();
        let mut lines: Vec<_> = known.iter().map(|(title, name)| (*title, text(name))).collect();
        lines.push(("Algorithm", self.header.get("alg").map(plain).unwrap_or_default()));
        lines.push(("Key", self.header.get("kid").map(plain).unwrap_or_default()));
        lines.push(("State", self.state.clone()));
        lines
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    let out = noun.connection.over(top).output();
    ended(match noun.verb {
        Verb::Mint(mint) => mint.run(),
        Verb::Jwks { key, serve } => jwks(&key, serve),
        Verb::Inspect { what } => inspect(&what).and_then(|token| out.item(&token)),
    })
}

impl Mint {
    fn run(&self) -> Done {
        let key = Key::open(&self.key)?;
        let now = Timestamp::now().as_second();
        let ttl = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX);
        let mut claims = json!({
            "iss": self.issuer,
            "aud": self.audience,
            "sub": self.subject,
            "tenantId": self.tenant.as_ref().unwrap_or(&self.subject),
            "iat": now,
            "exp": now.saturating_add(ttl),
        });
        let worker = WORKER_SCOPES.iter().filter(|_| self.worker).copied();
        let scopes: Vec<&str> = worker.chain(self.scope.iter().map(String::as_str)).collect();
        if let Some(map) = claims.as_object_mut() {
            if !scopes.is_empty() {
                map.insert("scope".to_owned(), scopes.join(" ").into());
            }
            if self.worker {
                let all = vec!["*".to_owned()];
                let queues = if self.queue.is_empty() { &all } else { &self.queue };
                map.insert("eventTypes".to_owned(), json!(queues));
            }
        }
        println!("{}", key.sign(&claims));
        Ok(())
    }
}

/// A signing key.
struct Key {
    pair: Ed25519KeyPair,
    kid: String,
}

impl Key {
    /// Reads the key, or creates it.
    fn open(file: &Path) -> Done<Key> {
        let wrong = |what: String| {
            Failure::error(what, "use another --key FILE, or delete the file to get a new key")
        };
        let failed = |error: std::io::Error| wrong(format!("{}: {error}", file.display()));
        let der = match std::fs::read(file) {
            Ok(text) => URL_SAFE_NO_PAD.decode(text.trim_ascii()).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let made = Ed25519KeyPair::generate().and_then(|pair| pair.to_pkcs8v1());
                let der = made.map_err(|_| wrong("cannot generate a key".to_owned()))?;
                let mut options = std::fs::OpenOptions::new();
                let mut new =
                    options.write(true).create_new(true).mode(0o600).open(file).map_err(failed)?;
                let text = URL_SAFE_NO_PAD.encode(der.as_ref());
                std::io::Write::write_all(&mut new, text.as_bytes()).map_err(failed)?;
                talk(&format!("created the key {}", file.display()));
                der.as_ref().to_vec()
            }
            Err(error) => return Err(failed(error)),
        };
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
        let pair =
            pair.map_err(|_| wrong(format!("{} is not a key of `codeq token`", file.display())))?;
        let public = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        let kid = public.chars().take(8).collect();
        Ok(Key { pair, kid })
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({ "alg": "EdDSA", "typ": "JWT", "kid": self.kid });
        let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let text = format!("{}.{}", encoded(&header), encoded(claims));
        let signature = self.pair.sign(text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn jwks(&self) -> Value {
        let public = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        let key = json!({
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": public,
        });
        json!({ "keys": [key] })
    }
}

fn jwks(key: &Path, serve: Option<std::net::SocketAddr>) -> Done {
    let text = format!("{:#}\n", Key::open(key)?.jwks());
    let Some(addr) = serve else {
        print!("{text}");
        return Ok(());
    };
    let failed = |error: std::io::Error| {
        Failure::error(format!("cannot serve on {addr}: {error}"), "choose another port")
    };
    let listener = std::net::TcpListener::bind(addr).map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    talk(&format!("serving the JWKS at http://{addr}/; Ctrl-C stops"));
    let length = text.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    );
    for stream in listener.incoming().flatten() {
        // Every request gets the same response. Errors concern the client only.
        let _ = reply(stream, &answer);
    }
    Ok(())
}

fn reply(mut stream: std::net::TcpStream, answer: &str) -> std::io::Result<()> {
    use std::io::{BufRead, BufReader, Read, Write};
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let head = BufReader::new(stream.try_clone()?.take(16 << 10));
    for line in head.lines() {
        if line?.is_empty() {
            break;
        }
    }
    stream.write_all(answer.as_bytes())
}

fn inspect(what: &str) -> Done<Inspected> {
    let text = input(what)?;
    let text = String::from_utf8_lossy(&text);
    let wrong = || {
        Failure::error(
            "this is not a JSON Web Token",
            "a fixed token has no contents; its rights are in the server's configuration",
        )
    };
    let mut parts = text.trim().trim_start_matches("Bearer ").split('.');
    let mut part = || -> Option<Map<String, Value>> {
        let bytes = URL_SAFE_NO_PAD.decode(parts.next()?.trim_end_matches('=')).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    let (Some(header), Some(claims)) = (part(), part()) else { return Err(wrong()) };
    let now = Timestamp::now().as_second();
    let at = |name: &str| claims.get(name).and_then(Value::as_f64).map(|at| at as i64);
    let apart = |a: i64, b: i64| span(Duration::from_secs(a.abs_diff(b)));
    let state = match (at("nbf"), at("exp")) {
        (Some(nbf), _) if nbf > now => format!("not valid yet, in {}", apart(nbf, now)),
        (_, None) => "never valid: it has no exp".to_owned(),
        (_, Some(exp)) if exp <= now => format!("expired {} ago", apart(now, exp)),
        (_, Some(exp)) => format!("valid for {}", apart(exp, now)),
    };
    Ok(Inspected { header, claims, state })
}
