//! `GET /health`: whether every served model has computed something, through all its stages, a short while ago; and
//! `GET /ready`: whether any answers.

use std::collections::HashMap;
use std::time::Duration;

use http::{Response, StatusCode, header};
use mesh_routing::{Served, served};
use mesh_types::{MeshView, PeerId};
use serde::Serialize;

use crate::body::{self, ResponseBody};

/// A complete forward pass that is older says nothing.
const FRESH: Duration = Duration::from_secs(30);
/// Seconds after which something may be ready that is not.
const RETRY_AFTER: u32 = 5;

#[derive(Debug, Serialize)]
struct Health {
    status: &'static str,
    /// What is missing; absent when nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    models: Vec<ModelHealth>,
}

#[derive(Debug, Serialize)]
struct ModelHealth {
    name: String,
    ready: bool,
    /// Since the last complete forward pass of a ready replica; null: never.
    last_forward_ms: Option<u64>,
    /// Node names in stage order, of the replica that computed last.
    nodes: Vec<String>,
    /// What is missing; absent when nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// The answer for `view`, whose peers' statuses are `ages` old: 200 when all is well, else 503 with what is missing.
pub(crate) fn health(view: &MeshView, ages: &HashMap<PeerId, Duration>) -> Response<ResponseBody> {
    let health = assess(view, ages);
    let status = if health.reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(status, &health)
}

/// A 503 says when to ask again.
fn answer(status: StatusCode, state: &impl Serialize) -> Response<ResponseBody> {
    // String keys only: serialising cannot fail.
    let mut response = body::json(status, serde_json::to_vec(state).unwrap_or_default());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.into());
    }
    response
}

/// `GET /ready`: 200 when some model answers now, else 503. For whoever decides where requests are sent.
pub(crate) fn ready(view: &MeshView) -> Response<ResponseBody> {
    #[derive(Serialize)]
    struct Ready<'a> {
        status: &'static str,
        models: Vec<&'a str>,
    }
    let models = served(view);
    let models: Vec<_> = models.iter().filter(|model| model.is_ready()).map(|model| model.name.as_str()).collect();
    let (code, status) = match models.is_empty() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        false => (StatusCode::OK, "ready"),
    };
    answer(code, &Ready { status, models })
}

fn assess(view: &MeshView, ages: &HashMap<PeerId, Duration>) -> Health {
    let models: Vec<_> = served(view).iter().map(|model| assess_model(model, ages)).collect();
    let missing: Vec<_> =
        models.iter().filter_map(|model| Some(format!("{}: {}", model.name, model.detail.as_ref()?))).collect();
    let reason = match (models.is_empty(), missing.is_empty()) {
        (true, _) => Some("no model is served".to_owned()),
        (false, false) => Some(missing.join("; ")),
        (false, true) => None,
    };
    Health { status: if reason.is_none() { "ok" } else { "unavailable" }, reason, models }
}

fn assess_model(model: &Served<'_>, ages: &HashMap<PeerId, Duration>) -> ModelHealth {
    let ready = || model.replicas.iter().filter(|(_, listed)| listed.ready);
    let since = |(peer, listed): &(&mesh_types::PeerView, &mesh_types::ModelView)| {
        let age = ages.get(&peer.id).copied().unwrap_or_default();
        listed.last_forward_ms.map(|ms| Duration::from_millis(ms).saturating_add(age))
    };
    let latest = ready().filter_map(|replica| Some((since(replica)?, replica.1))).min_by_key(|(since, _)| *since);
    let detail = match (ready().next(), latest) {
        (None, _) => Some(missing(model)),
        (Some(_), None) => Some("it has not computed anything yet".to_owned()),
        (Some(_), Some((since, _))) if since > FRESH => {
            Some(format!("its last complete forward pass was {} s ago", since.as_secs()))
        }
        (Some(_), Some(_)) => None,
    };
    ModelHealth {
        name: model.name.to_string(),
        ready: ready().next().is_some(),
        last_forward_ms: latest.map(|(since, _)| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        nodes: latest.map(|(_, listed)| listed.nodes.clone()).unwrap_or_default(),
        detail,
    }
}

/// What the replicas of a model that is not ready say.
fn missing(model: &Served<'_>) -> String {
    let details: Vec<_> =
        model.replicas.iter().map(|(_, listed)| listed.detail.as_str()).filter(|detail| !detail.is_empty()).collect();
    if details.is_empty() { "it is not ready".to_owned() } else { details.join("; ") }
}
