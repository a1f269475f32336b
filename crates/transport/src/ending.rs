//! The one end of a link that several tasks serve: the first reason wins, and all hear of it.

use mesh_engine::StageError;
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub(crate) struct Ending(watch::Sender<Option<Result<(), StageError>>>);

impl Ending {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// The link has failed.
    pub(crate) fn fail(&self, error: StageError) {
        self.set(Err(error));
    }

    /// All was done.
    pub(crate) fn done(&self) {
        self.set(Ok(()));
    }

    fn set(&self, end: Result<(), StageError>) {
        self.0.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(end);
            }
            first
        });
    }

    /// Waits for the end. May be dropped.
    pub(crate) async fn wait(&self) -> Result<(), StageError> {
        let mut end = self.0.subscribe();
        match end.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(end)) => end.clone(),
            _ => Err(StageError::Closed),
        }
    }

    /// Waits for the link's failure; for ever, where all is well.
    pub(crate) async fn failed(&self) -> StageError {
        match self.wait().await {
            Err(error) => error,
            Ok(()) => std::future::pending().await,
        }
    }
}
