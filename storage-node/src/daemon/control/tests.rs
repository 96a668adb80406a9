use storage_node::status::Phase;

use super::super::test_shards::{Behaviour, shard};
use super::*;

/// A running node over the given shards; their threads have ended already.
fn running(behaviours: &[Behaviour]) -> Running {
    let commands: Vec<_> =
        behaviours.iter().enumerate().map(|(index, behaviour)| shard(index as u32, behaviour.clone())).collect();
    let (stage, seen) = watch::channel(Stage::Starting);
    Running {
        manager: ServiceManager::from_environment(),
        health: observe(commands.clone(), seen),
        stage,
        commands,
        threads: behaviours.iter().map(|_| shards::thread_that_ends(Ok(()))).collect(),
        ready_tail: "test".to_owned(),
        told: String::new(),
        alive_at: Instant::now(),
    }
}

const SERVING: Behaviour = Behaviour::Answers(Phase::Serving);

#[tokio::test]
async fn a_shard_that_ends_on_its_own_ends_the_node() {
    let mut node = running(&[SERVING, Behaviour::Gone]);
    let (_listen, listening) = oneshot::channel();
    assert_eq!(node.until_end(&mut Signals::install().unwrap(), listening).await, Some(1));
}

#[tokio::test]
async fn the_node_serves_once_all_have_recovered_and_the_listener_stands() {
    let mut node = running(&[SERVING, SERVING]);
    let mut stage = node.stage.subscribe();
    let (listen, listening) = oneshot::channel();
    let address = SocketAddr::from(([127, 0, 0, 1], 7440));
    let mut signals = Signals::install().unwrap();
    let serves = async {
        listen.send(address).unwrap();
        *stage.wait_for(|stage| *stage != Stage::Starting).await.unwrap()
    };
    tokio::select! {
        end = node.until_end(&mut signals, listening) => panic!("ended: {end:?}"),
        stage = serves => assert_eq!(stage, Stage::Serving { listen: address }),
    }
    drop(signals);
}

#[tokio::test]
async fn a_drain_ends_all_shards_and_reports_a_thread_that_failed() {
    let mut node = running(&[SERVING, SERVING]);
    assert_eq!(node.drain(&mut Signals::install().unwrap(), Duration::from_secs(30)).await, Ok(()));
    assert_eq!(*node.stage.borrow(), Stage::Draining { listen: None });

    let mut node = running(&[SERVING, Behaviour::Gone]);
    let failure = Refusal::new("shard 1", "the device is gone", "replace it");
    node.threads[1] = shards::thread_that_ends(Err(failure.clone()));
    assert_eq!(node.drain(&mut Signals::install().unwrap(), Duration::from_secs(30)).await, Err(failure));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_takes_too_long_is_given_up() {
    let mut node = running(&[SERVING, Behaviour::Hangs]);
    let refusal = node.drain(&mut Signals::install().unwrap(), Duration::from_secs(5)).await.expect_err("shard 1 hangs");
    assert!(refusal.to_string().contains("did not finish within 5 s"), "{refusal}");
}

#[test]
fn values_of_the_ready_line_are_single_words() {
    assert_eq!(one_word("vda ext4"), "vda,ext4");
}
