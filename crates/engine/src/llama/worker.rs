//! The compute thread: serves one link after another.

use std::pin::pin;
use std::task::Poll;

use futures::executor::block_on;
use kernels_ffi::AbortHandle;
use tokio::sync::{mpsc, oneshot};

use super::engine::Engine;
use crate::error::StageError;
use crate::frame::Frame;

/// The thread's ends of a link.
pub(super) struct Link {
    pub(super) frames: mpsc::Receiver<Frame>,
    pub(super) results: mpsc::Sender<Result<Frame, StageError>>,
    pub(super) abort: AbortHandle,
    /// Dropped with the link: how the link's task learns that the thread is done with it.
    pub(super) _served: oneshot::Sender<()>,
}

/// What the thread waits for.
enum Event<T> {
    /// Another link, or `None`: the stage is dropped. Either ends the present link.
    Next(Option<Link>),
    /// What the present link was waiting for.
    Mine(T),
}

/// Serves links until the stage is dropped.
pub(super) fn run(mut engine: Engine, mut links: mpsc::Receiver<Link>) {
    let mut next = block_on(links.recv());
    while let Some(link) = next {
        engine.reset(link.abort.clone());
        next = serve(&mut engine, link, &mut links);
    }
}

/// Serves `link` to its end; returns the next one.
fn serve(engine: &mut Engine, mut link: Link, links: &mut mpsc::Receiver<Link>) -> Option<Link> {
    loop {
        let frame = match block_on(next_frame(&mut link.frames, links)) {
            Event::Next(next) => return replace(&link, next),
            Event::Mine(Some(frame)) if !link.abort.is_aborted() => frame,
            Event::Mine(_) => break,
        };
        let answer = match engine.apply(frame) {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        let is_end = answer.is_err();
        match block_on(hand_on(&link.results, answer, links)) {
            Event::Next(next) => return replace(&link, next),
            Event::Mine(true) if !is_end => {}
            Event::Mine(_) => break,
        }
    }
    drop(link);
    block_on(links.recv())
}

/// Tells a link that it is over. Where its output is full, it just ends.
fn replace(link: &Link, next: Option<Link>) -> Option<Link> {
    let _ = link.results.try_send(Err(StageError::Closed));
    next
}

async fn next_frame(frames: &mut mpsc::Receiver<Frame>, links: &mut mpsc::Receiver<Link>) -> Event<Option<Frame>> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(next) = links.poll_recv(cx) {
            return Poll::Ready(Event::Next(next));
        }
        frames.poll_recv(cx).map(Event::Mine)
    })
    .await
}

/// Hands an answer on; false where nobody takes it any more.
async fn hand_on(
    results: &mpsc::Sender<Result<Frame, StageError>>,
    answer: Result<Frame, StageError>,
    links: &mut mpsc::Receiver<Link>,
) -> Event<bool> {
    let mut send = pin!(results.send(answer));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(next) = links.poll_recv(cx) {
            return Poll::Ready(Event::Next(next));
        }
        send.as_mut().poll(cx).map(|sent| Event::Mine(sent.is_ok()))
    })
    .await
}
