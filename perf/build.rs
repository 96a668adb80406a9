//! Tells the program from which commit it was built, for the provenance of what it measures.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=ROOST_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    // The log of HEAD grows with each commit; a source archive has none.
    let log = Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    let given = std::env::var("ROOST_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(head) {
        println!("cargo:rustc-env=ROOST_COMMIT={commit}");
    }
}

fn head() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}
