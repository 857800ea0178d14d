//! Commands that take several names.

use super::failure::{Done, Failure};
use super::output::{Output, Show};
use super::talk;

/// Does something to each name, prints the outcomes, and goes on after an error. The last error decides the exit code.
pub async fn each<T: Show>(
    out: Output,
    names: &[String],
    mut act: impl AsyncFnMut(&str) -> Done<T>,
) -> Done {
    let mut list = out.list();
    let mut failed = None;
    for name in names {
        match act(name).await {
            Ok(done) => list.page(&[done])?,
            Err(failure) => keep(&mut failed, failure),
        }
    }
    list.end()?;
    failed.map_or(Ok(()), Err)
}

/// Keeps the latest failure for the end, where it decides the exit code, and prints the one before.
fn keep(kept: &mut Option<Failure>, failure: Failure) {
    if let Some(before) = kept.replace(failure) {
        talk(&format!("codeq: {}", before.what()));
    }
}
