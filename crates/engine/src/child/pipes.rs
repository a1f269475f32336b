//! The parent's two tasks: one writes to the child's socket, the other reads from it. Both outlive links, so that a
//! dropped link never leaves half a message behind.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::parent::{Observer, wait_lost};
use super::{FromChild, ToChild, WINDOW};
use crate::codec::{self, Limits, Message};
use crate::error::StageError;
use crate::frame::Frame;
use crate::stage::StageSpec;

/// Read buffer: headers and single rows come with one call to the system, large rows bypass it.
pub(super) const BUFFER: usize = 64 << 10;

type Results = mpsc::Sender<Result<Frame, StageError>>;

/// The stage's ends of a link that is to be opened.
pub(super) struct NewLink {
    pub(super) frames: mpsc::Receiver<Frame>,
    pub(super) results: Results,
    pub(super) opened: oneshot::Sender<Result<(), StageError>>,
    pub(super) observer: Arc<dyn Observer>,
}

/// Writes the current link's frames.
pub(super) struct Down {
    spec: StageSpec,
    current: Arc<Mutex<Option<Current>>>,
    lost: watch::Receiver<Option<StageError>>,
    session: u32,
}

/// Reads what the current link is answered.
pub(super) struct Up {
    current: Arc<Mutex<Option<Current>>>,
    lost: watch::Receiver<Option<StageError>>,
    limits: Limits,
}

/// What both know of the session that is open, or being opened.
struct Current {
    session: u32,
    results: Results,
    observer: Arc<dyn Observer>,
    opened: Option<oneshot::Sender<Result<(), StageError>>>,
    credit: Arc<Semaphore>,
    /// The session is over: replaced, dropped, or ended by the child.
    over: CancellationToken,
}

/// The writer's part of a session.
struct Outgoing {
    frames: mpsc::Receiver<Frame>,
    /// `frames` has ended, and the child knows.
    ended: bool,
    results: Results,
    observer: Arc<dyn Observer>,
    credit: Arc<Semaphore>,
    over: CancellationToken,
}

pub(super) fn pair(spec: StageSpec, lost: watch::Receiver<Option<StageError>>) -> (Down, Up) {
    let current = Arc::new(Mutex::new(None));
    let limits = Limits::out_of_stage(&spec);
    let down = Down { spec, current: current.clone(), lost: lost.clone(), session: 0 };
    (down, Up { current, lost, limits })
}

fn locked(current: &Mutex<Option<Current>>) -> std::sync::MutexGuard<'_, Option<Current>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Down {
    /// Runs until the stage is dropped or lost; on a broken socket, [`Up`] is the one that reports.
    pub(super) async fn run(mut self, mut socket: OwnedWriteHalf, mut links: mpsc::Receiver<NewLink>) {
        let lost = self.lost.clone();
        tokio::select! {
            _ = self.write_all(&mut socket, &mut links) => {}
            _ = wait_lost(lost) => {}
        }
    }

    async fn write_all(
        &mut self,
        socket: &mut OwnedWriteHalf,
        links: &mut mpsc::Receiver<NewLink>,
    ) -> std::io::Result<()> {
        let mut link: Option<Outgoing> = None;
        loop {
            let event = next_event(links, &mut link).await;
            let message = match event {
                Event::Open(None) => return Ok(()),
                Event::Open(Some(new)) => {
                    link = Some(self.open(new));
                    Message::Control(ToChild::Connect)
                }
                Event::Over => {
                    link = None;
                    continue;
                }
                Event::Dropped => {
                    link = None;
                    locked(&self.current).take();
                    Message::Control(ToChild::Cancel)
                }
                Event::Frame(Some(frame)) => match self.check(&frame) {
                    Ok(()) => {
                        link.iter().for_each(|link| link.observer.sent(&frame));
                        Message::Frame(frame)
                    }
                    Err(error) => {
                        // It may not even be encodable; the child ends the link behind what was sent before.
                        link.iter_mut().for_each(|link| link.ended = true);
                        Message::End(Err(error))
                    }
                },
                Event::Frame(None) => {
                    link.iter_mut().for_each(|link| link.ended = true);
                    Message::End(Ok(()))
                }
            };
            codec::write(socket, &message, self.session).await?;
        }
    }

    fn check(&self, frame: &Frame) -> Result<(), StageError> {
        match frame {
            Frame::Batch(batch) => batch.check(&self.spec),
            Frame::Command(command) => command.check(&self.spec),
            Frame::Result(_) | Frame::Failure(_) => Ok(()),
        }
    }

    /// Replaces the current session.
    fn open(&mut self, new: NewLink) -> Outgoing {
        self.session = self.session.wrapping_add(1);
        let credit = Arc::new(Semaphore::new(WINDOW));
        let over = CancellationToken::new();
        let current = Current {
            session: self.session,
            results: new.results.clone(),
            observer: new.observer.clone(),
            opened: Some(new.opened),
            credit: credit.clone(),
            over: over.clone(),
        };
        if let Some(earlier) = locked(&self.current).replace(current) {
            // A reader that is far behind sees the end without its reason.
            let _ = earlier.results.try_send(Err(StageError::Closed));
            earlier.over.cancel();
        }
        let NewLink { frames, results, observer, .. } = new;
        Outgoing { frames, ended: false, results, observer, credit, over }
    }
}

enum Event {
    /// A new link; `None`: the stage was dropped.
    Open(Option<NewLink>),
    /// The child has ended the session.
    Over,
    /// The link was dropped.
    Dropped,
    /// A frame; `None`: no more follow.
    Frame(Option<Frame>),
}

async fn next_event(links: &mut mpsc::Receiver<NewLink>, link: &mut Option<Outgoing>) -> Event {
    let Some(link) = link else { return Event::Open(links.recv().await) };
    tokio::select! {
        biased;
        new = links.recv() => Event::Open(new),
        () = link.over.cancelled() => Event::Over,
        () = link.results.closed() => Event::Dropped,
        frame = next_frame(&mut link.frames, &link.credit), if !link.ended => Event::Frame(frame),
    }
}

/// Takes a frame once the child has room for it. May be dropped: the permit goes back.
async fn next_frame(frames: &mut mpsc::Receiver<Frame>, credit: &Semaphore) -> Option<Frame> {
    let permit = credit.acquire().await.ok()?;
    let frame = frames.recv().await;
    permit.forget();
    frame
}

impl Up {
    /// Runs until the socket or the process ends, then ends the current link with the reason. `broken` hears what is
    /// wrong with the socket (nothing, where it was just closed).
    pub(super) async fn run(self, mut socket: BufReader<OwnedReadHalf>, broken: oneshot::Sender<String>) {
        let what = tokio::select! {
            biased;
            what = self.read_all(&mut socket) => what,
            // The kernel closes a process's sockets before it reports the process's end, so that nothing is left unread.
            _ = wait_lost(self.lost.clone()) => String::new(),
        };
        let _ = broken.send(what);
        let error = wait_lost(self.lost.clone()).await;
        let current = locked(&self.current).take();
        if let Some(current) = current {
            current.over.cancel();
            let _ = current.results.send(Err(error)).await;
        }
    }

    /// Returns what is wrong.
    async fn read_all(&self, socket: &mut BufReader<OwnedReadHalf>) -> String {
        loop {
            match codec::read::<FromChild, _>(socket, self.limits).await {
                Ok(Some((session, message))) => self.deliver(session, message).await,
                Ok(None) => return String::new(),
                Err(codec::ReadError::Io(_)) => return String::new(),
                Err(codec::ReadError::Invalid(what)) => return what,
            }
        }
    }

    async fn deliver(&self, session: u32, message: Message<FromChild>) {
        let (results, observer, over) = {
            let mut slot = locked(&self.current);
            let Some(current) = slot.as_mut().filter(|current| current.session == session) else { return };
            match &message {
                Message::Control(FromChild::Credit(frames)) => {
                    current.credit.add_permits((*frames as usize).min(WINDOW));
                    return;
                }
                Message::Control(_) => {
                    if let Some(opened) = current.opened.take() {
                        let _ = opened.send(Ok(()));
                    }
                    return;
                }
                Message::End(Err(error)) => {
                    if let Some(opened) = current.opened.take() {
                        let _ = opened.send(Err(error.clone()));
                    }
                }
                _ => {}
            }
            let handles = (current.results.clone(), current.observer.clone(), current.over.clone());
            if matches!(message, Message::End(_)) {
                *slot = None;
            }
            handles
        };
        let (item, last) = match message {
            Message::Frame(frame) => {
                observer.came(&frame);
                (Ok(frame), false)
            }
            Message::End(Err(error)) => (Err(error), true),
            Message::End(Ok(())) | Message::Control(_) => {
                over.cancel();
                return;
            }
        };
        tokio::select! {
            biased;
            // The link is gone, or replaced, while its reader is behind.
            () = over.cancelled() => {}
            _ = results.send(item) => {}
        }
        if last {
            over.cancel();
        }
    }
}
