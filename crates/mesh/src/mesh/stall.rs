//! Gives up a connection whose other side is gone without a word: it takes nothing for long, or says nothing.
//!
//! Both sides ping every few seconds, so that a peer that lives is heard, whatever it computes and however far its
//! answers to pings have to wait behind other data: any byte of it counts. Without this the kernel would keep trying for a
//! quarter of an hour, and closing would wait for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

/// Without a byte from the other side for so long, it is gone.
pub(crate) const SILENCE: Duration = Duration::from_millis(7500);
/// A host that was itself held up finds what came meanwhile after this.
const GRACE: Duration = Duration::from_millis(500);
/// Without a byte taken by the other side for so long, it is gone.
const STALL: Duration = Duration::from_secs(15);

/// A stream that fails once nothing was read from it, or once a write made no progress, for some time.
pub(crate) struct StallGuard<C> {
    io: C,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Runs since the last byte was read; `true`: it ran out once.
    silent: (Pin<Box<Sleep>>, bool),
}

impl<C> StallGuard<C> {
    /// Guards `io`.
    pub(crate) fn new(io: C) -> Self {
        Self { io, stalled: None, silent: (Box::pin(sleep(SILENCE)), false) }
    }

    /// Passes `outcome` of a write on, unless the wait has been too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for StallGuard<C> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_read(context, into);
        let (timer, ran_out) = &mut self.silent;
        if outcome.is_ready() {
            timer.as_mut().reset(Instant::now() + SILENCE);
            *ran_out = false;
            return outcome;
        }
        while timer.as_mut().poll(context).is_ready() {
            if std::mem::replace(ran_out, true) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(Instant::now() + GRACE);
        }
        Poll::Pending
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
        let (mut near, mut far) = (StallGuard::new(near.compat()), far.compat());
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
        let started = Instant::now();
        let error = near.write_all(&[3; 32]).await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed().as_secs()), (io::ErrorKind::TimedOut, 15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_gone_in_eight_seconds_and_a_slow_one_is_not() {
        let (near, far) = tokio::io::duplex(16);
        let (mut near, mut far) = (StallGuard::new(near.compat()), far.compat());
        let mut some = [0; 4];
        // Busy: a byte now and then, between them longer than a ping may be late.
        let busy = async {
            for _ in 0..4 {
                sleep(Duration::from_secs(7)).await;
                far.write_all(&[1]).await.unwrap();
            }
        };
        let (read, ()) = tokio::join!(near.read_exact(&mut some), busy);
        assert!(read.is_ok(), "busy is not gone");
        let heard = Instant::now();
        let error = near.read_exact(&mut some).await.unwrap_err();
        assert_eq!((error.kind(), heard.elapsed()), (io::ErrorKind::TimedOut, SILENCE + GRACE));
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_held_up_itself_takes_nobody_for_gone() {
        let (near, far) = tokio::io::duplex(16);
        let (mut near, mut far) = (StallGuard::new(near.compat()), far.compat());
        // Nobody reads for a minute, as on a host that sleeps; what came meanwhile is there.
        far.write_all(&[1]).await.unwrap();
        sleep(Duration::from_secs(60)).await;
        let mut some = [0; 1];
        near.read_exact(&mut some).await.unwrap();
        // And where nothing had come yet, it has half a second to do so.
        sleep(Duration::from_secs(60)).await;
        let late = async {
            sleep(GRACE / 2).await;
            far.write_all(&[2]).await.unwrap();
        };
        let (read, ()) = tokio::join!(near.read_exact(&mut some), late);
        assert!(read.is_ok());
    }
}
