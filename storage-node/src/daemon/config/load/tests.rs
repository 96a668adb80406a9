use std::fs;

use super::super::{ByteSize, dump};
use super::*;

/// A file under the target directory that goes away with the value.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roostd-config-{}-{name}.toml", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn from_file(name: &str, text: &str) -> Result<Loaded, Vec<ConfigError>> {
    let file = TempFile::new(name, text);
    load(&Sources { file: Some(file.0.clone()), ..Sources::default() })
}

fn messages(result: Result<Loaded, Vec<ConfigError>>) -> Vec<String> {
    result.expect_err("the configuration is wrong").iter().map(|error| format!("{error} / {}", error.remedy())).collect()
}

#[test]
fn nothing_given_is_the_defaults() {
    let loaded = load(&Sources::default()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.warnings.is_empty());
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let file = TempFile::new(
        "precedence",
        "[log]\nsegment_size = \"1M\"\nblock_size = \"8k\"\ncommit_depth = 1\nrecord_size_max = \"64k\"\n",
    );
    let loaded = load(&Sources {
        file: Some(file.0.clone()),
        environment: vec![("ROOST_LOG_SEGMENT_SIZE".into(), "2M".into()), ("ROOST_LOG_BLOCK_SIZE".into(), "16k".into())],
        flags: vec![("--segment-size", "log", "segment_size", "4M".to_owned())],
    })
    .unwrap();
    let log = &loaded.config.log;
    assert_eq!((log.segment_size, log.block_size, log.commit_depth), (ByteSize::mib(4), ByteSize::kib(16), 1));
    assert_eq!(loaded.origins.of("log", "commit_depth"), Origin::File { path: file.0.clone(), line: 4 });
    assert_eq!(loaded.origins.of("log", "prepared_segments"), Origin::Default);
}

#[test]
fn every_fault_names_file_line_key_and_what_is_allowed() {
    let text = "# comment\n[node]\nlisten = \"localhost\"\nshard = 2\n\n[log]\nsegment_size = \"12X\"\nblock_size = 1.5\n[lgo]\n";
    let messages = messages(from_file("faults", text));
    assert_eq!(messages.len(), 5, "{messages:#?}");
    for (line, parts) in [
        (3, ["`node.listen`", "\"localhost\"", "an IP address and a port"]),
        (4, ["unknown key `node.shard`", "allowed in [node]", "shards"]),
        (7, ["`log.segment_size`", "\"12X\"", "a size"]),
        (8, ["`log.block_size`", "1.5", "a size"]),
        (9, ["unknown section `lgo`", "[log]", "[memory]"]),
    ] {
        let place = format!(".toml:{line}: ");
        let message =
            messages.iter().find(|message| message.contains(&place)).unwrap_or_else(|| panic!("{place} in {messages:#?}"));
        for part in parts {
            assert!(message.contains(part), "{part:?} in {message:?}");
        }
    }
}

#[test]
fn broken_toml_names_the_line() {
    let messages = messages(from_file("syntax", "[node]\nshards = = 2\n"));
    assert!(messages[0].contains(".toml:2: not valid TOML"), "{messages:?}");
    assert!(messages.iter().all(|message| !message.contains('\n')), "{messages:?}");
}

#[test]
fn a_key_outside_any_section_is_an_error() {
    let messages = messages(from_file("outside", "shards = 2\nnode = 3\n"));
    assert!(messages.iter().any(|message| message.contains(":1: unknown section `shards`")), "{messages:?}");
    assert!(messages.iter().any(|message| message.contains(":2: `node` must be a section")), "{messages:?}");
}

#[test]
fn values_at_odds_with_each_other_are_refused_by_the_rule() {
    for (name, text, part) in [
        (
            "r1",
            "[log]\nsegment_size = \"1M\"\nrecord_size_max = \"512k\"\n",
            ":3: `log.record_size_max` can't be \"512k\": it must be 1 byte to 256k",
        ),
        ("r2", "[log]\nsegment_size = \"512k\"\n", ":2: `log.segment_size`"),
        ("r3", "[log]\nsegment_size = 1048577\n", "a multiple of 4k"),
        ("r4", "[log]\nblock_size = \"2M\"\n", "4k to 1M"),
        ("r5", "[log]\ncommit_depth = 5\n", "1 to 4"),
        ("r6", "[log]\nrecord_size_max = \"17M\"\n", "1 byte to 16M"),
        ("r7", "[node]\nadmin = \"127.0.0.1:7440\"\n", "another address than node.listen"),
        ("r8", "[node]\ncpus = [1, 1]\n", "names no CPU twice"),
        ("r9", "[node]\nshards = 3\ncpus = [0, 1]\n", "at least as many CPUs"),
        ("r10", "[memory]\nreceive_budget = \"1M\"\n", "at least 4M"),
        ("r11", "[log]\nprepared_segments = 0\n", "1 to 64"),
        ("r12", "[node]\nshards = 2000\n", "at most 1024"),
        ("r13", "[memory]\nconnection_in_flight = 0\n", "1 to 1048576"),
    ] {
        let messages = messages(from_file(name, text));
        assert!(messages.len() == 1 && messages[0].contains(part), "{part:?} in {messages:?}");
    }
}

#[test]
fn what_is_odd_but_allowed_is_a_warning() {
    let loaded = from_file("odd", "[node]\nadmin = \"0.0.0.0:7441\"\npin = false\ncpus = \"0-1\"\n").unwrap();
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let environment = vec![("ROOST_LOG_SEGMENTSIZE".into(), "2M".into()), ("ROOST_PORT".into(), "tcp://x".into())];
    let loaded = load(&Sources { environment, ..Sources::default() }).unwrap();
    assert!(loaded.warnings.len() == 1 && loaded.warnings[0].contains("ROOST_LOG_SEGMENTSIZE"), "{:?}", loaded.warnings);
}

#[test]
fn small_segments_lower_the_default_of_the_greatest_record() {
    let loaded = from_file("small", "[log]\nsegment_size = \"1M\"\n").unwrap();
    assert_eq!(loaded.config.log.record_size_max, ByteSize::kib(256));
}

#[test]
fn a_missing_file_is_an_error_with_its_name() {
    let messages = messages(load(&Sources { file: Some("/nonexistent/roost.toml".into()), ..Sources::default() }));
    assert!(messages[0].contains("/nonexistent/roost.toml"), "{messages:?}");
}

#[test]
fn a_dump_loads_back_to_the_same_configuration() {
    let environment = keys::KEYS
        .iter()
        .map(|key| {
            let value = match (key.section, key.name) {
                ("node", "data_dir") => "/srv/with \"quotes\"",
                ("node", "listen") => "[::1]:9000",
                ("node", "admin") => "127.0.0.1:0",
                ("node", "shards") => "2",
                ("node", "pin") => "false",
                ("node", "cpus") => "0,3-4",
                ("node", "shutdown_timeout") => "90s",
                ("log", "segment_size") => "64M",
                ("log", "prepared_segments") => "3",
                ("log", "block_size") => "128k",
                ("log", "commit_depth") => "4",
                ("log", "record_size_max") => "16M",
                ("memory", "tail_cache") => "0",
                ("memory", "page_cache") => "8M",
                ("memory", "receive_budget") => "1G",
                ("memory", "connection_in_flight") => "7",
                ("logging", "level") => "warn,storage_node=debug",
                ("logging", "format") => "json",
                other => panic!("no value for {other:?}: add one"),
            };
            (key.variable().into(), value.into())
        })
        .collect();
    let loaded = load(&Sources { environment, ..Sources::default() }).unwrap();
    let default = Config::default();
    for key in keys::KEYS {
        assert_ne!((key.get)(&loaded.config), (key.get)(&default), "{} was not set", key.full_name());
    }
    let again = from_file("dump", &dump(&loaded)).unwrap();
    assert_eq!(again.config, loaded.config);
}
