//! Away from a segment that failed: the log goes on in another one.
//!
//! A write that failed poisons its segment: nothing behind the last good block is ever acked from it, and no write is repeated. The
//! numbers of the lost blocks are not used again, so that an answer that still waits for one finds out that its outcome is unknown. The
//! next segment's first block names the last good block as the end of the log, so that a restart takes nothing behind it.

use std::rc::Rc;
use std::time::Duration;

use node_io::Runtime;

use crate::roll::Unclosed;
use crate::shard::Inner;

/// How long to wait before the first and the last of the attempts to go on: each waits twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_secs(10);

impl<R: Runtime> Inner<R> {
    /// Leaves the open segment for another, unless that is under way or the log itself is damaged.
    pub(crate) fn start_moving_on(self: &Rc<Self>) {
        let already = std::mem::replace(&mut self.head.borrow_mut().moving_on, true);
        if !already && self.damage.is_empty() {
            let inner = self.clone();
            self.runtime.spawn_detached(Box::pin(async move { inner.move_on().await }));
        }
    }

    async fn move_on(self: Rc<Self>) {
        let mut without_blocks = Vec::new();
        let mut pause = FIRST_PAUSE;
        loop {
            while self.head.borrow().writes_out() > 0 {
                self.room.notified().await;
            }
            self.runtime.sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            let prepared = self.next_prepared().await;
            let (segment, blocks) = self.enter(prepared);
            if blocks.last >= blocks.first {
                self.unclosed.borrow_mut().push(Unclosed { segment, blocks, cut: true });
            } else {
                without_blocks.push(segment);
            }
            {
                let mut head = self.head.borrow_mut();
                head.rolling = true;
                head.failed = None;
            }
            if self.write_checkpoint().await.is_some() {
                break;
            }
        }
        self.head.borrow_mut().moving_on = false;
        let segment = self.head.borrow().open.id.0;
        tracing::info!(shard = self.options.shard.0, segment, "the shard has moved on and takes appends again");
        // Without a block of the log in it, a segment has nothing to close.
        for segment in without_blocks {
            self.segments.borrow_mut().remove(&segment.id);
            if let Err(error) = self.runtime.remove(&segment.path).await {
                tracing::warn!(path = %segment.path.display(), %error, "a failed segment could not be removed");
            }
        }
        self.close_in_background();
    }
}
