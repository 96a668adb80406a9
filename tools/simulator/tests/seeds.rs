//! A few seeds of each scenario with every `cargo test`; the many are `cargo run -p simulator`.

use simulator::{Scenario, known_seeds, reproduction, run_seed};

fn run(scenario: Scenario, seed: u64) -> u64 {
    match run_seed(scenario, seed) {
        Ok(outcome) => outcome.trace,
        Err(message) => panic!("seed {seed}: {message}\nto run it again: {}", reproduction(scenario, seed)),
    }
}

fn run_some(scenario: Scenario) {
    for seed in 100..150 {
        run(scenario, seed);
    }
}

#[test]
fn a_shard_holds_what_it_acked_whenever_it_is_stopped() {
    run_some(Scenario::Crash);
}

#[test]
fn a_commit_over_several_extents_is_there_in_whole_or_not_at_all() {
    run_some(Scenario::Commit);
}

#[test]
fn a_device_that_fails_costs_nothing_that_was_acked() {
    run_some(Scenario::Faults);
}

#[test]
fn readers_at_the_tail_see_each_record_once_and_right_after_its_ack() {
    run_some(Scenario::Tail);
}

#[test]
fn the_space_of_what_is_dead_comes_back() {
    run_some(Scenario::Recycle);
}

#[test]
fn clients_find_what_they_were_told_however_often_their_connections_break() {
    run_some(Scenario::Wire);
}

#[test]
fn seeds_that_once_found_something_find_nothing_now() {
    let seeds = known_seeds();
    assert!(!seeds.is_empty(), "there are known seeds");
    for (scenario, seed) in seeds {
        run(scenario, seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for scenario in Scenario::ALL {
        for seed in 7..10 {
            assert_eq!(run(scenario, seed), run(scenario, seed), "{} {seed}", scenario.name());
        }
        assert_ne!(run(scenario, 7), run(scenario, 8), "{}: the trace says what happened", scenario.name());
    }
}
