//! What neither the compiler nor clippy checks.
//!
//! | module | rule |
//! |---|---|
//! | [`dependencies`] | crates depend on each other in the design's direction only; pure crates on pure crates only |
//! | [`sources`] | seams in the text: glommio, unsafe code, clocks, unbiased selects, length of files, unfinished work |
//! | [`links`] | relative links in Markdown lead somewhere |

mod dependencies;
mod links;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Failure, output};

/// A file of the repository.
pub(crate) struct SourceFile {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

/// Runs all rules.
pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let files = text_files(root)?;
    let mut findings = dependencies::check(root)?;
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        findings.extend(sources::check(file));
    }
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        findings.extend(links::check(root, file));
    }
    if findings.is_empty() {
        println!("tidy: {} files", files.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(Failure::Found(format!("tidy: {} findings", findings.len())))
}

/// The repository's sources and pages: what git knows or would take.
fn text_files(root: &Path) -> Result<Vec<SourceFile>, Failure> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.md"];
    let names = output(Command::new("git").current_dir(root).args(arguments))?;
    let mut files = Vec::new();
    for name in names.lines() {
        let path: PathBuf = root.join(name);
        // Removed in the working tree, but not yet in the index.
        if path.exists() {
            let text = fs::read_to_string(&path).map_err(|source| Failure::File { path, source })?;
            files.push(SourceFile { path: name.to_owned(), text });
        }
    }
    Ok(files)
}
