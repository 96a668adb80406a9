use super::*;

fn jobs(text: &str) -> Vec<Job> {
    parse("a.ini", text, &[]).unwrap_or_else(|failure| panic!("{}", failure.text()))
}

fn refused(text: &str) -> String {
    parse("a.ini", text, &[]).expect_err(text).text()
}

fn set(texts: &[&str]) -> Vec<Override> {
    texts.iter().map(|text| Override::parse(text).unwrap()).collect()
}

#[test]
fn a_job_inherits_the_globals_above_it_and_its_own_keys_win() {
    let jobs = jobs("[global]\nbs=100\nruntime=2s\n[one]\niodepth=8\n[global]\nnumjobs=3\nbs=200\n[two]\nnumjobs=4\n[three]\n");
    let seen: Vec<_> = jobs.iter().map(|job| (&*job.name, job.record_bytes, job.connections, job.depth)).collect();
    assert_eq!(seen, [("one", 100, 1, 8), ("two", 200, 4, 1), ("three", 200, 3, 1)]);
    assert!(jobs.iter().all(|job| job.runtime == Some(Duration::from_secs(2))));
    assert_eq!(jobs[1].given.iter().find(|(key, _)| key == "numjobs").map(|(_, value)| &**value), Some("4"));
}

#[test]
fn overrides_win_over_the_file_and_a_section_over_global() {
    let text = "[global]\nbs=100\nruntime=1\n[a.b]\niodepth=2\n[c]\niodepth=3\n";
    let jobs = parse("a.ini", text, &set(&["global.bs=300", "global.iodepth=9", "a.b.iodepth=5"])).unwrap();
    assert_eq!((jobs[0].record_bytes, jobs[0].depth), (300, 5));
    assert_eq!((jobs[1].record_bytes, jobs[1].depth), (300, 3), "a job's own key is nearer than a global one");
}

#[test]
fn an_override_without_section_or_value_is_refused() {
    for bad in ["bs=1k", "a.bs", "", "a.=3"] {
        assert!(Override::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn unknown_keys_and_bad_values_are_refused_with_their_line() {
    let failure = refused("[a]\nruntime=1\nblocksize=4k\n");
    assert!(failure.contains("a.ini:3") && failure.contains("\"blocksize\"") && failure.contains("bs"), "{failure}");
    for (entry, word) in [
        ("bs=x", "size"),
        ("bs=1g", "limit"),
        ("iodepth=0", "1 to"),
        ("numjobs=many", "number"),
        ("runtime=0", "no time"),
        ("size=0", "nothing"),
        ("verify=yes", "neither"),
        ("address=here", "HOST:PORT"),
        ("cpus_allowed=one", "cores"),
        ("rw=write", "append, read"),
        ("ioengine=libaio", "this version has: node"),
    ] {
        let failure = refused(&format!("[a]\nruntime=1\n{entry}\n"));
        assert!(failure.starts_with("a.ini:3") && failure.contains(word), "{entry}: {failure}");
    }
    let failure = parse("a.ini", "[a]\nruntime=1\n", &set(&["a.what=1"])).unwrap_err().text();
    assert!(failure.contains("--set a.what=1") && failure.contains("unknown key"), "{failure}");
}

#[test]
fn jobs_that_make_no_sense_are_refused() {
    for (text, word) in [
        ("[a]\nbs=1k\n", "never end"),
        ("[a]\ntime_based\nsize=1m\n", "runtime"),
        ("[a]\nrw=read\nruntime=1\n", "needs a size"),
        ("[a]\nrw=read\nsize=1m\nbs=0\n", "one byte"),
        ("[a]\nrw=read\nsize=1m\nnumjobs=4\nextents=2\n", "without one"),
        ("[a]\nruntime=1\nthreads=2\n", "numjobs=1"),
        ("[a]\nsize=1k\nnumjobs=4\n", "one record"),
        ("[global]\nruntime=1\n", "no job"),
        ("", "no job"),
    ] {
        let failure = refused(text);
        assert!(failure.contains(word), "{text:?}: {failure}");
    }
}

#[test]
fn extents_follow_the_connections_unless_given() {
    let jobs = jobs("[global]\nruntime=1\nnumjobs=5\n[a]\n[b]\nextents=100\n");
    assert_eq!((jobs[0].extents, jobs[1].extents), (5, 100));
}

#[test]
fn an_override_for_a_job_that_is_nowhere_is_refused() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/1x1-1k.ini").to_owned();
    let failure = read(&[file], &set(&["nosuch.bs=1k"])).unwrap_err().text();
    assert!(failure.contains("nosuch") && failure.contains("1x1-1k"), "{failure}");
}

#[test]
fn the_job_files_that_are_shipped_are_valid_and_bounded() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs");
    let mut count = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let file = file.unwrap().path().to_str().unwrap().to_owned();
        for job in read(std::slice::from_ref(&file), &[]).unwrap_or_else(|failure| panic!("{file}: {}", failure.text())) {
            assert!(job.size.is_some_and(|size| size <= 8 << 30), "{file}: {} could fill a disk", job.name);
            assert!(job.runtime.is_some_and(|runtime| runtime <= Duration::from_secs(10)), "{file}: {}", job.name);
        }
        count += 1;
    }
    assert!(count >= 5);
}
