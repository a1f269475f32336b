//! The child's side.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pipes::BUFFER;
use super::{CONFIG_MAX, FromChild, ToChild, WINDOW};
use crate::codec::{self, Limits, Message, ReadError};
use crate::error::StageError;
use crate::frame::Frame;
use crate::stage::{Stage, StageLink, StageSpec};

/// How long the exit handlers of foreign libraries may take.
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// A stage that is ready to be served.
pub struct Loaded {
    /// The stage.
    pub stage: Arc<dyn Stage>,
    /// Bytes of its weights, for the parent.
    pub weight_bytes: u64,
}

/// Serves one stage to the parent, in a process that was started by [`super::ChildStage::spawn`]: the binary's `main`
/// calls this for the arguments that say so, before it starts anything else, and it never returns.
///
/// Reads the configuration from the socket on standard input, lets `make_stage` load the stage (on a thread that may
/// block), and then serves links. The process ends as soon as the parent's end of the socket closes, even while it is
/// loading or in the middle of a decode: nothing that the parent leaves behind keeps running. Exit code 0 then, and 1
/// where the stage could not be loaded or the parent broke the protocol.
pub fn serve<C, F>(make_stage: F) -> !
where
    C: DeserializeOwned,
    F: FnOnce(C) -> Result<Loaded, StageError> + Send + 'static,
{
    // One thread: it moves frames. A stage that computes does so on threads of its own, whose cores it should not ask for
    // more often than it has to.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let code = match runtime {
        Ok(runtime) => {
            let end = runtime.block_on(run(make_stage));
            if let Err(error) = &end {
                tracing::error!(%error, "child stage failed");
            }
            // Threads that compute are not waited for.
            std::mem::forget(runtime);
            i32::from(end.is_err())
        }
        Err(error) => {
            tracing::error!(%error, "child stage has no runtime");
            1
        }
    };
    // Exit handlers run beside threads that may still compute. Should one hang, the process ends all the same.
    let guard = std::thread::Builder::new().spawn(|| {
        std::thread::sleep(EXIT_LIMIT);
        std::process::abort()
    });
    drop(guard);
    std::process::exit(code)
}

async fn run<C, F>(make_stage: F) -> Result<(), ReadError>
where
    C: DeserializeOwned,
    F: FnOnce(C) -> Result<Loaded, StageError> + Send + 'static,
{
    let socket = StdUnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (reader, mut writer) = UnixStream::from_std(socket)?.into_split();
    let mut reader = BufReader::with_capacity(BUFFER, reader);
    let config = match codec::read(&mut reader, Limits::control_of(CONFIG_MAX)).await? {
        Some((_, Message::Control(ToChild::Config(config)))) => config,
        _ => return Err(ReadError::Invalid("no configuration".to_owned())),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_blocking(move || {
        let config = serde_json::from_str(&config).map_err(|error| StageError::Load(error.to_string()))?;
        make_stage(config)
    });
    let loaded = tokio::select! {
        loaded = tasks.join_next() => match loaded {
            Some(Ok(loaded)) => loaded,
            _ => Err(StageError::Load("loading it panicked".to_owned())),
        },
        // The parent says nothing before it hears that the stage is ready: this is its end.
        _ = codec::read::<ToChild, _>(&mut reader, Limits::control()) => return Ok(()),
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            let failed = Message::Control(FromChild::Failed(error.clone()));
            codec::write(&mut writer, &failed, 0).await?;
            return Err(ReadError::Invalid(error.to_string()));
        }
    };
    let spec = loaded.stage.spec().clone();
    let ready = Message::Control(FromChild::Ready { spec: spec.clone(), weight_bytes: loaded.weight_bytes });
    codec::write(&mut writer, &ready, 0).await?;

    let (events, event_rx) = mpsc::channel(WINDOW);
    let mut ends = JoinSet::new();
    ends.spawn(write_all(writer, event_rx));
    ends.spawn(read_all(reader, spec, loaded.stage, events));
    match ends.join_next().await {
        Some(Ok(end)) => end,
        _ => Err(ReadError::Invalid("the socket's task panicked".to_owned())),
    }
}

/// A session as its reader knows it. Dropping it throws the session away.
struct Session {
    id: u32,
    /// Room for [`WINDOW`] frames and an end; `None` once the parent has said that no more follow.
    frames: Option<mpsc::Sender<Result<Frame, StageError>>>,
    over: CancellationToken,
    _tasks: JoinSet<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

/// What the writer is told.
enum Event {
    Opened(Output),
    Refused { id: u32, error: StageError },
    Credit { id: u32, frames: u32 },
}

/// A session as its writer knows it.
struct Output {
    id: u32,
    frames: mpsc::Receiver<Result<Frame, StageError>>,
    over: CancellationToken,
}

/// Reads until the parent closes the socket. Waits for nothing but the socket.
async fn read_all(
    mut socket: BufReader<OwnedReadHalf>,
    spec: StageSpec,
    stage: Arc<dyn Stage>,
    events: mpsc::Sender<Event>,
) -> Result<(), ReadError> {
    let limits = Limits::into_stage(&spec);
    let mut session: Option<Session> = None;
    loop {
        let (id, message) = match codec::read(&mut socket, limits).await {
            Ok(Some(message)) => message,
            // A parent that dies with something unread resets the socket.
            Ok(None) | Err(ReadError::Io(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Message::Control(ToChild::Connect) = message {
            drop(session.take());
            session = Some(open(id, stage.clone(), events.clone()));
            continue;
        }
        let Some(current) = session.as_mut().filter(|session| session.id == id) else { continue };
        match message {
            Message::Frame(frame) => {
                if let Some(frames) = &current.frames
                    && let Err(mpsc::error::TrySendError::Full(_)) = frames.try_send(Ok(frame))
                {
                    return Err(ReadError::Invalid("more frames than there was credit for".to_owned()));
                }
            }
            Message::End(end) => {
                if let (Err(error), Some(frames)) = (end, current.frames.take()) {
                    // There is room for it; if its receiver is gone, the session has ended already.
                    let _ = frames.try_send(Err(error));
                }
            }
            Message::Control(ToChild::Cancel) => session = None,
            Message::Control(_) => return Err(ReadError::Invalid("a configuration again".to_owned())),
        }
    }
}

fn open(id: u32, stage: Arc<dyn Stage>, events: mpsc::Sender<Event>) -> Session {
    let (frames, queue) = mpsc::channel(WINDOW + 1);
    let over = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(feed(Feed { id, stage, queue, events, over: over.clone() }));
    Session { id, frames: Some(frames), over, _tasks: tasks }
}

struct Feed {
    id: u32,
    stage: Arc<dyn Stage>,
    queue: mpsc::Receiver<Result<Frame, StageError>>,
    events: mpsc::Sender<Event>,
    over: CancellationToken,
}

/// Opens the link and feeds it. Events are not answered: their receiver ends only with the process.
async fn feed(mut it: Feed) {
    let id = it.id;
    let StageLink { input, output, mut tasks } = match it.stage.connect().await {
        Ok(link) => link,
        Err(error) => {
            let _ = it.events.send(Event::Refused { id, error }).await;
            return;
        }
    };
    let _ = it.events.send(Event::Opened(Output { id, frames: output, over: it.over })).await;
    let mut taken = 0;
    while let Some(frame) = it.queue.recv().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                let _ = it.events.send(Event::Refused { id, error }).await;
                return;
            }
        };
        if input.send(frame).await.is_err() {
            // The link has ended, and its output says why.
            break;
        }
        taken += 1;
        if taken as usize == WINDOW / 2 {
            let _ = it.events.send(Event::Credit { id, frames: taken }).await;
            taken = 0;
        }
    }
    drop(input);
    while tasks.join_next().await.is_some() {}
}

async fn write_all(mut socket: OwnedWriteHalf, mut events: mpsc::Receiver<Event>) -> Result<(), ReadError> {
    let mut output: Option<Output> = None;
    loop {
        let (id, message) = match &mut output {
            None => match events.recv().await {
                None => return Ok(()),
                Some(event) => on_event(event, &mut output),
            },
            Some(current) => {
                let id = current.id;
                tokio::select! {
                    biased;
                    () = current.over.cancelled() => {
                        output = None;
                        continue;
                    }
                    event = events.recv() => match event {
                        None => return Ok(()),
                        Some(event) => on_event(event, &mut output),
                    },
                    frame = current.frames.recv() => match frame {
                        Some(Ok(frame)) => (id, Message::Frame(frame)),
                        end => {
                            output = None;
                            (id, Message::End(end.map_or(Ok(()), |end| end.map(drop))))
                        }
                    },
                }
            }
        };
        if codec::write(&mut socket, &message, id).await.is_err() {
            // The parent is gone.
            return Ok(());
        }
    }
}

fn on_event(event: Event, output: &mut Option<Output>) -> (u32, Message<FromChild>) {
    match event {
        Event::Opened(new) => {
            let id = new.id;
            *output = Some(new);
            (id, Message::Control(FromChild::Connected))
        }
        Event::Refused { id, error } => {
            *output = None;
            (id, Message::End(Err(error)))
        }
        Event::Credit { id, frames } => (id, Message::Control(FromChild::Credit(frames))),
    }
}
