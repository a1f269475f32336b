//! The models that this node serves as stage 0: which there are, and a supervisor for each.
//!
//! Owns their coming and going while the node runs (`load`, `unload`); how one is served is its supervisor's. Start with
//! [`Fleet`], the handle; [`Fleet::run`] is the task behind it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::anyhow;
use mesh_types::{ErrorClass, Fault, ModelId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::serve::{ServedModel, ServedModels};
use crate::settings::{self, ModelDefaults, ModelSettings};
use crate::supervisor::{Parts, Supervisor, check_split};

mod planned;

pub use planned::Planned;

/// Commands that may wait.
const COMMANDS: usize = 16;

/// The models of this node.
#[derive(Clone)]
pub struct Fleet {
    parts: Parts,
    served: ServedModels,
    /// What was served once can be loaded again by its name.
    known: Arc<Mutex<BTreeMap<ModelId, Known>>>,
    defaults: ModelDefaults,
    commands: mpsc::Sender<Command>,
}

/// A model that was served once.
struct Known {
    settings: ModelSettings,
    /// From when it is started until its supervisor has ended.
    busy: bool,
}

/// What the task behind a fleet does.
pub struct Commands(mpsc::Receiver<Command>);

enum Command {
    Start(Box<Supervisor>, ModelId),
    Stop { name: ModelId, stopped: oneshot::Sender<()> },
}

/// A model that is served.
struct Running {
    name: ModelId,
    stop: CancellationToken,
    stopped: Option<oneshot::Sender<()>>,
}

impl Fleet {
    /// A fleet without models. `defaults` holds for those loaded later.
    pub fn new(parts: Parts, defaults: ModelDefaults) -> (Self, Commands) {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (served, known) = (ServedModels::default(), Arc::default());
        (Self { parts, served, known, defaults, commands }, Commands(inbox))
    }

    /// The models, for those who answer requests.
    pub fn served(&self) -> ServedModels {
        self.served.clone()
    }

    /// Serves `model` from now on.
    ///
    /// # Errors
    /// Where one of its name is served already, or the node is stopping.
    ///
    /// # Cancel safety
    /// May be dropped: then it is served or not.
    pub async fn start(&self, model: Arc<ServedModel>, settings: ModelSettings) -> Result<(), Fault> {
        let permit = self.commands.reserve().await.map_err(|_| stopping())?;
        let name = model.name.clone();
        let mut known = self.known();
        if known.get(&name).is_some_and(|known| known.busy) {
            return Err(Fault::invalid(match self.served.get(&name) {
                Ok(_) => format!("the model `{name}` is served by this node already"),
                Err(_) => format!("the model `{name}` is being unloaded: try again when it has ended"),
            }));
        }
        let supervisor = Supervisor::new(Arc::clone(&model), settings.split.clone(), self.parts.clone());
        known.insert(name.clone(), Known { settings, busy: true });
        self.served.add(model);
        permit.send(Command::Start(Box::new(supervisor), name));
        Ok(())
    }

    /// Serves the model of a file, or one that was served before, by its name; spread as `split` says, if it does.
    ///
    /// # Errors
    /// Where there is no such thing on this node, or it cannot be served.
    ///
    /// # Cancel safety
    /// May be dropped: then it is served or not.
    pub async fn load(&self, reference: &str, split: Option<&str>) -> Result<ModelId, Fault> {
        let mut settings = self.settings(reference)?;
        if let Some(split) = split {
            settings.split = split.parse().map_err(|e: mesh_routing::PlacementError| Fault::invalid(e.to_string()))?;
        }
        let model = self.open(settings.clone()).await?;
        check_split(&model, &settings.split).map_err(|error| Fault::invalid(error.to_string()))?;
        let name = model.name.clone();
        self.start(model, settings).await?;
        Ok(name)
    }

    /// Stops serving a model, and waits until it has ended. New requests are refused at once; running ones get some
    /// seconds.
    ///
    /// # Errors
    /// Where it is not served here.
    ///
    /// # Cancel safety
    /// May be dropped: then it goes on being served, or ends without being waited for.
    pub async fn unload(&self, name: &ModelId) -> Result<(), Fault> {
        let permit = self.commands.reserve().await.map_err(|_| stopping())?;
        if !self.served.remove(name) {
            return Err(Fault::new(ErrorClass::NotFound, format!("the model `{name}` is not served by this node")));
        }
        let (stopped, done) = oneshot::channel();
        permit.send(Command::Stop { name: name.clone(), stopped });
        // The sender is dropped where the node stops as a whole.
        let _ = done.await;
        Ok(())
    }

    /// Whether this node takes new requests and stages.
    pub fn set_draining(&self, draining: bool) {
        self.parts.board.set_draining(draining);
    }

    /// Runs the supervisors until `stop`, then waits for their ends.
    ///
    /// # Errors
    /// Where one failed.
    pub async fn run(self, Commands(mut inbox): Commands, stop: CancellationToken) -> anyhow::Result<()> {
        let mut supervisors = JoinSet::new();
        let mut running: HashMap<Id, Running> = HashMap::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(command) = inbox.recv() => match command {
                    Command::Start(supervisor, name) => {
                        let ending = stop.child_token();
                        let task = supervisors.spawn(supervisor.run(ending.clone()));
                        running.insert(task.id(), Running { name, stop: ending, stopped: None });
                    }
                    Command::Stop { name, stopped } => {
                        if let Some(model) = running.values_mut().find(|model| model.name == name) {
                            model.stop.cancel();
                            model.stopped = Some(stopped);
                        }
                    }
                },
                Some(ended) = supervisors.join_next_with_id() => {
                    let (id, ()) = ended.map_err(|panic| anyhow!("the supervisor of a model failed: {panic}"))?;
                    if let Some(Running { name, stopped, .. }) = running.remove(&id) {
                        self.ended(&name);
                        // Who asked may have hung up.
                        stopped.into_iter().for_each(|waiting| _ = waiting.send(()));
                    }
                }
            }
        }
        while supervisors.join_next().await.is_some() {}
        Ok(())
    }

    /// The supervisor of a model has ended.
    fn ended(&self, name: &ModelId) {
        self.parts.board.remove_model(name);
        if let Some(known) = self.known().get_mut(name) {
            known.busy = false;
        }
    }

    async fn open(&self, settings: ModelSettings) -> Result<Arc<ServedModel>, Fault> {
        let context = self.parts.settings.ctx;
        let opened = tokio::task::spawn_blocking(move || ServedModel::open(&settings, context)).await;
        let opened = opened.map_err(|_| Fault::new(ErrorClass::Internal, "the file could not be read"))?;
        opened.map(Arc::new).map_err(|error| Fault::invalid(error.to_string()))
    }

    /// What `reference` stands for: a file, or a model that was served here.
    fn settings(&self, reference: &str) -> Result<ModelSettings, Fault> {
        if let Some(known) = self.known().get(&ModelId::from(reference)) {
            return Ok(known.settings.clone());
        }
        let path = settings::file_of(reference).map_err(|error| Fault::invalid(error.to_string()))?;
        if !Path::new(&path).is_file() {
            let why = format!("this node has no file `{reference}`, and has served no model of that name");
            return Err(Fault::new(ErrorClass::NotFound, why));
        }
        Ok(self.defaults.of_file(path))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ModelId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stopping() -> Fault {
    Fault::unavailable("this node is stopping")
}
