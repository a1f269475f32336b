//! Gives up a connection whose other side takes nothing for long: a host that vanished without a word, with data under
//! way. Without this the kernel would keep trying for a quarter of an hour, and closing would wait for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail once they have made no progress for some time.
pub(crate) struct StallGuard<C> {
    io: C,
    limit: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<C> StallGuard<C> {
    /// Guards `io`.
    pub(crate) fn new(io: C, limit: Duration) -> Self {
        Self { io, limit, stalled: None }
    }

    /// Passes `outcome` on, unless the wait has been too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for StallGuard<C> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for StallGuard<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, from);
        self.watch(context, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(context);
        self.watch(context, outcome)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_close(context);
        self.watch(context, outcome)
    }
}

#[cfg(test)]
mod tests {
    use futures::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails_in_time() {
        let (near, far) = tokio::io::duplex(16);
        let (mut near, mut far) = (StallGuard::new(near.compat(), Duration::from_secs(15)), far.compat());
        near.write_all(&[1; 16]).await.unwrap();
        let mut some = [0; 8];
        let slow = async {
            for _ in 0..4 {
                sleep(Duration::from_secs(10)).await;
                far.read_exact(&mut some).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[2; 32]), slow);
        assert!(written.is_ok(), "slow is not stalled");
        let started = tokio::time::Instant::now();
        let error = near.write_all(&[3; 32]).await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed().as_secs()), (io::ErrorKind::TimedOut, 15));
    }
}
