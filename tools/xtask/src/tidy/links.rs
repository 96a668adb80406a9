//! Relative links in Markdown lead to files that exist.

use std::path::Path;

use super::SourceFile;

/// What is broken.
pub(super) fn check(root: &Path, file: &SourceFile) -> Vec<String> {
    let directory = root.join(&file.path).parent().map(Path::to_owned).unwrap_or_default();
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            let external = target.contains("://") || target.starts_with("mailto:");
            if !external && !path.is_empty() && !directory.join(path).exists() {
                findings.push(format!("{}:{}: the link to {target} leads nowhere", file.path, index + 1));
            }
        }
    }
    findings
}

/// The targets of the line's `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|target| !target.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_file_is_found_and_others_are_not() {
        let text = "[a](missing.md) [b](https://example.org/x) [c](#here)\n[d](Cargo.toml#x) `vec[0](x y)`";
        let file = SourceFile { path: "tools/xtask/README.md".to_owned(), text: text.to_owned() };
        assert_eq!(check(&crate::workspace_root(), &file), ["tools/xtask/README.md:1: the link to missing.md leads nowhere"]);
    }
}
