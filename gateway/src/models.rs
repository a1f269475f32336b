//! The models of the mesh: `/v1/models`, and saying when one becomes usable.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Response, StatusCode};
use mesh_openai::response::{Loading, ModelMeta, Replica, StagePlace};
use mesh_openai::{ApiError, Model, ModelList};
use mesh_routing::{Served, choose, served};
use mesh_types::{Fault, MeshView, ModelId, ModelView};
use tokio::sync::watch;

use crate::announce::{Announcement, Announcer};
use crate::body::{self, ResponseBody};

/// `GET /v1/models`: the models that answer now, and how far the others are. `created` is Unix time in seconds.
pub(crate) fn list(view: &MeshView, created: u64) -> Response<ResponseBody> {
    let (ready, others): (Vec<_>, Vec<_>) = served(view).into_iter().partition(Served::is_ready);
    let models = ready.iter().map(|model| entry(model, created)).collect();
    json(&ModelList::new(models).with_loading(others.iter().map(loading).collect()))
}

fn loading(model: &Served<'_>) -> Loading {
    let progress = model.replicas.iter().map(|(peer, listed)| match listed.detail.as_str() {
        "" => format!("{} is not ready", peer.name),
        detail => format!("{}: {detail}", peer.name),
    });
    Loading { id: model.name.to_string(), progress: progress.collect() }
}

/// `GET /v1/models/{id}`.
///
/// # Errors
/// Why the model does not answer.
pub(crate) fn one(view: &MeshView, id: &ModelId, created: u64) -> Result<Response<ResponseBody>, ApiError> {
    choose(view, id).map_err(Fault::from)?;
    let models = served(view);
    let model = models.iter().find(|model| model.name == id && model.is_ready());
    model.map(|model| json(&entry(model, created))).ok_or_else(|| Fault::unavailable("the model is gone").into())
}

fn entry(model: &Served<'_>, created: u64) -> Model {
    let ready = || model.replicas.iter().map(|(_, listed)| *listed).filter(|listed| listed.ready);
    let meta = ModelMeta {
        context: ready().map(|listed| listed.context).min().unwrap_or_default(),
        layers: ready().map(|listed| listed.layers).max().unwrap_or_default(),
        tools: ready().map(|listed| listed.tools.clone()).next().unwrap_or_default(),
        replicas: ready().map(replica).collect(),
        scripted: ready().any(|listed| listed.scripted),
    };
    Model::new(model.name.as_str(), created, meta)
}

fn replica(listed: &ModelView) -> Replica {
    let layers = |index| listed.ranges.get(index).map(ToString::to_string).unwrap_or_default();
    let stage = |(index, node): (usize, &String)| StagePlace { node: node.clone(), layers: layers(index) };
    Replica { stages: listed.nodes.iter().enumerate().map(stage).collect() }
}

fn json(value: &impl serde::Serialize) -> Response<ResponseBody> {
    // String keys only: serialising cannot fail.
    body::json(StatusCode::OK, serde_json::to_vec(value).unwrap_or_default())
}

/// Announces every model of the mesh when it becomes usable, and again when it does after it was not. Ends with the
/// view.
///
/// # Cancel safety
/// May be dropped.
pub async fn announce_models(mut view: watch::Receiver<Arc<MeshView>>, announcer: &Announcer) {
    let mut announced = BTreeSet::new();
    loop {
        let now = view.borrow_and_update().clone();
        let models = served(&now);
        announced.retain(|name| models.iter().any(|model| model.name == name && model.is_ready()));
        for model in &models {
            let Some((peer, listed)) = model.replicas.iter().find(|(_, listed)| listed.ready) else { continue };
            if announced.insert(model.name.clone()) {
                let nodes = if listed.nodes.is_empty() { vec![peer.name.clone()] } else { listed.nodes.clone() };
                let name = model.name.to_string();
                announcer.say(&Announcement::Model { name, stages: nodes.len(), nodes });
            }
        }
        if view.changed().await.is_err() {
            return;
        }
    }
}
