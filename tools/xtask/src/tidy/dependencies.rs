//! Which crate may depend on which. Tests may depend the other way round: a client's tests need a node.

use std::path::Path;

use serde_json::Value;

use crate::command::{Failure, cargo, output};

/// A crate of the workspace and what it may depend on.
struct Rule {
    package: &'static str,
    /// Crates of the workspace.
    workspace: &'static [&'static str],
    /// Crates from outside; `None`: any but [`GUARDED`].
    external: Option<&'static [&'static str]>,
}

const RULES: &[Rule] = &[
    Rule { package: "log-format", workspace: &[], external: Some(&["crc32c", "flatbuffers", "thiserror"]) },
    Rule { package: "replicator", workspace: &["log-format"], external: Some(&["thiserror"]) },
    Rule { package: "node-io", workspace: &[], external: None },
    Rule { package: "storage-node", workspace: &["log-format", "replicator", "node-io"], external: None },
    Rule { package: "roost-client", workspace: &["log-format"], external: None },
    Rule { package: "roostctl", workspace: &["log-format", "roost-client"], external: None },
    Rule { package: "roost-perf", workspace: &["log-format", "roost-client"], external: None },
    // The simulator runs the engine itself, on the simulated backend.
    Rule { package: "simulator", workspace: &["log-format", "replicator", "node-io", "storage-node"], external: None },
    Rule { package: "system-tests", workspace: &["log-format", "roost-client"], external: None },
    Rule { package: "xtask", workspace: &[], external: None },
];

/// Crates that only one crate may use: the seam hides them from all others.
const GUARDED: &[(&str, &str)] = &[("glommio", "node-io")];

/// What breaks the rules.
pub(super) fn check(root: &Path) -> Result<Vec<String>, Failure> {
    let text = output(&mut cargo(root, &["metadata", "--format-version", "1", "--no-deps", "--offline"]))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| Failure::Found(format!("cargo metadata: {error}")))?;
    Ok(findings(&metadata))
}

fn findings(metadata: &Value) -> Vec<String> {
    let mut findings = Vec::new();
    for package in items(&metadata["packages"]) {
        let name = text(&package["name"]);
        let Some(rule) = RULES.iter().find(|rule| rule.package == name) else {
            findings.push(format!("package {name}: has no rule; add one to tools/xtask/src/tidy/dependencies.rs"));
            continue;
        };
        for dependency in items(&package["dependencies"]) {
            let on = text(&dependency["name"]);
            let for_tests = dependency["kind"].as_str() == Some("dev");
            let inside = !dependency["path"].is_null();
            let guarded = GUARDED.iter().any(|(krate, user)| *krate == on && *user != name);
            let allowed = match rule.external {
                _ if guarded => false,
                _ if for_tests => true,
                _ if inside => rule.workspace.contains(&on),
                Some(external) => external.contains(&on),
                None => true,
            };
            if !allowed {
                findings.push(format!("package {name}: must not depend on {on}"));
            }
        }
    }
    findings
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, on: &str, inside: bool, kind: Option<&str>) -> Value {
        json!({ "name": name, "dependencies": [{ "name": on, "kind": kind, "path": inside.then_some("/x") }] })
    }

    #[test]
    fn a_dependency_against_the_direction_is_found() {
        for (package, found) in [
            (package("log-format", "replicator", true, None), true),
            (package("log-format", "tokio", false, None), true),
            (package("log-format", "proptest", false, Some("dev")), false),
            (package("replicator", "log-format", true, None), false),
            (package("roost-client", "storage-node", true, None), true),
            (package("roost-client", "storage-node", true, Some("dev")), false),
            (package("storage-node", "glommio", false, None), true),
            (package("storage-node", "glommio", false, Some("dev")), true),
            (package("node-io", "glommio", false, None), false),
            (package("node-io", "log-format", true, None), true),
            (package("newcomer", "serde", false, None), true),
        ] {
            let metadata = json!({ "packages": [package] });
            assert_eq!(!findings(&metadata).is_empty(), found, "{metadata}");
        }
    }
}
