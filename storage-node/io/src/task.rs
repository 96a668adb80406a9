//! Handles to spawned tasks: the same for every backend.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Waits for the result of a task. Dropping it lets the task run on.
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = T;

    /// # Panics
    /// If the task was torn down with its executor before it ended.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(context).map(|result| result.expect("a task outlives its handle unless its executor is gone"))
    }
}

pub(crate) fn join_pair<T: 'static>(
    future: impl Future<Output = T> + 'static,
) -> (JoinHandle<T>, impl Future<Output = ()> + 'static) {
    let (sender, receiver) = oneshot::channel();
    let task = async move {
        // Nobody waiting is not an error.
        let _ = sender.send(future.await);
    };
    (JoinHandle(receiver), task)
}
