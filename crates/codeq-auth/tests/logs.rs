//! What is logged when keys cannot be had. In a process of its own, because what is logged is heard by the
//! whole process.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use codeq_auth::{AuthError, Authenticator, JwtConfig, Role, Settings};
use parking_lot::Mutex;
use tokio::net::TcpListener;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A token that cannot be judged without keys.
fn token() -> String {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"k"}"#);
    let claims = r#"{"iss":"https://id.test.example","aud":"codeq","sub":"s","exp":9999999999}"#;
    format!("{header}.{}.{}", URL_SAFE_NO_PAD.encode(claims), "A".repeat(86))
}

async fn log_of(jwks_url: String, lines: &Lines) -> String {
    let mut settings = Settings::default();
    settings.workers.jwt.push(JwtConfig {
        issuer: "https://id.test.example".to_owned(),
        audience: "codeq".to_owned(),
        jwks_url: Some(jwks_url),
    });
    let auth = Authenticator::new(&settings).unwrap();
    for _ in 0..5 {
        let refused = auth.authenticate(&token(), Role::Worker).await;
        assert_eq!(refused, Err(AuthError::Unavailable));
    }
    lines.take()
}

#[tokio::test]
async fn a_failed_attempt_is_one_warning_without_secrets() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(|| async { StatusCode::IM_A_TEAPOT });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = nobody.local_addr().unwrap();
    drop(nobody);

    for (address, want) in [(address, "answered 418"), (closed, "error sending request")] {
        let log = log_of(format!("http://{address}/keys?key=hidden-part"), &lines).await;
        assert_eq!(log.matches("keys of the identity provider not loaded").count(), 1, "{log}");
        assert!(log.contains(want) && log.contains("127.0.0.1"), "{log}");
        assert!(!log.contains("hidden-part") && !log.contains(&token()), "{log}");
    }
}
