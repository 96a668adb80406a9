//! Prints a configuration as a TOML file that says what each key does.

use std::fmt::Write as _;

use super::error::Origin;
use super::keys::{KEYS, SECTIONS};
use super::load::Loaded;

/// The effective configuration, with a comment above each key, and behind each value that is not the default, where it came from.
pub(crate) fn dump(loaded: &Loaded) -> String {
    let mut text = String::from(
        "# Effective configuration of roostd. Flags override the environment, which overrides the file, which overrides the defaults.\n\
         # Sizes take k, M, G (1024); durations ms, s, m, h, d.\n",
    );
    for (section, meaning) in SECTIONS {
        write!(text, "\n# {meaning}\n[{section}]\n").expect("writing to a string can't fail");
        for key in KEYS.iter().filter(|key| key.section == *section) {
            let origin = match loaded.origins.of(key.section, key.name) {
                Origin::Default => String::new(),
                origin => format!("  # {origin}"),
            };
            let (name, value) = (key.name, (key.get)(&loaded.config));
            write!(text, "# {}\n# Environment: {}\n{name} = {value}{origin}\n", key.help, key.variable())
                .expect("writing to a string can't fail");
        }
    }
    text
}
