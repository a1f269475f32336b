//! Which stage-0 node answers a request: the ready replicas of a model, best first.
//!
//! Order: fewest sequences served or waiting; then this node before others; then by name and id, so that two gateways
//! with the same view agree.

use std::collections::BTreeMap;
use std::fmt;

use mesh_types::{Digest, ErrorClass, Fault, MeshView, ModelId, ModelView, PeerId, PeerState, PeerView};

/// The replicas that may answer, best first; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// In the order in which to try them.
    pub candidates: Vec<Candidate>,
}

/// One replica that may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The stage-0 node.
    pub peer: PeerId,
    /// Its name.
    pub name: String,
    /// Whether it is this node.
    pub local: bool,
    /// Sequences it serves.
    pub active: u32,
    /// Sequences that wait there for a slot.
    pub queued: u32,
    /// Tokens of the prompt that it is taken to have computed already.
    pub cached: u32,
    /// What the prompt is reckoned to cost there; `None`: not reckoned.
    pub wait_ms: Option<u32>,
}

/// Why no replica can answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Nobody serves a model of that name.
    #[error("the model `{model}` does not exist here: {}", known(.served))]
    NotFound {
        /// What was asked for.
        model: ModelId,
        /// The names that are served.
        served: Vec<ModelId>,
    },
    /// The model is known, and nobody can answer for it now.
    #[error("the model `{model}` cannot answer now: {reason}")]
    Unavailable {
        /// What was asked for.
        model: ModelId,
        /// What is missing or going on, by replica.
        reason: String,
    },
    /// Two files are served under one name.
    #[error(
        "the name `{model}` stands for two different files, {} on {} and {} on {}: give one of them another name",
        .files[0].1.short(), .files[0].0, .files[1].1.short(), .files[1].0
    )]
    Conflict {
        /// What was asked for.
        model: ModelId,
        /// Two nodes' names, each with the digest of its file.
        files: Box<[(String, Digest); 2]>,
    },
}

/// A model as the mesh serves it.
#[derive(Clone, Debug)]
pub struct Served<'a> {
    /// The name it is served under.
    pub name: &'a ModelId,
    /// Every present node that lists it, with what that node says of it, in the order of the view.
    pub replicas: Vec<(&'a PeerView, &'a ModelView)>,
}

/// The replicas of `model` that may answer, best first.
///
/// # Errors
/// [`RouteError`] says in the caller's terms why there is none.
pub fn choose(view: &MeshView, model: &ModelId) -> Result<Choice, RouteError> {
    let replicas: Vec<_> = listings(view).filter(|(_, listed)| &listed.name == model).collect();
    let usable = || replicas.iter().copied().filter(|(peer, listed)| listed.ready && peer.is_present());
    if let Some(error) = conflict(model, usable()) {
        return Err(error);
    }
    let mut candidates: Vec<_> = usable().map(candidate).collect();
    if candidates.is_empty() {
        return Err(refusal(view, model, &replicas));
    }
    candidates.sort_by(|a, b| a.rank().cmp(&b.rank()));
    Ok(Choice { candidates })
}

/// Every model that a present node lists, by name.
pub fn served(view: &MeshView) -> Vec<Served<'_>> {
    let mut models: BTreeMap<&ModelId, Vec<_>> = BTreeMap::new();
    for (peer, model) in listings(view).filter(|(peer, _)| peer.is_present()) {
        models.entry(&model.name).or_default().push((peer, model));
    }
    models.into_iter().map(|(name, replicas)| Served { name, replicas }).collect()
}

impl Served<'_> {
    /// Whether some replica answers now.
    pub fn is_ready(&self) -> bool {
        self.replicas.iter().any(|(_, model)| model.ready)
    }
}

impl Candidate {
    fn rank(&self) -> (u64, bool, &str, &PeerId) {
        (u64::from(self.active) + u64::from(self.queued), !self.local, &self.name, &self.peer)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.local { ", this node" } else { "" };
        write!(f, "{} ({} active, {} queued{place}", self.name, self.active, self.queued)?;
        if let Some(wait) = self.wait_ms {
            write!(f, "; {} tokens cached, about {wait} ms", self.cached)?;
        }
        f.write_str(")")
    }
}

/// The explanation: the candidates in the order tried, with what decided it.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, candidate) in self.candidates.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", then " };
            write!(f, "{separator}{candidate}")?;
        }
        Ok(())
    }
}

impl RouteError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound { .. } => ErrorClass::NotFound,
            Self::Unavailable { .. } | Self::Conflict { .. } => ErrorClass::Unavailable,
        }
    }
}

impl From<RouteError> for Fault {
    fn from(error: RouteError) -> Self {
        let fault = Self::new(error.class(), error.to_string()).with_param("model");
        match error {
            RouteError::NotFound { .. } => fault.with_code("model_not_found"),
            RouteError::Unavailable { .. } => fault.with_code("model_unavailable"),
            RouteError::Conflict { .. } => fault.with_code("model_conflict"),
        }
    }
}

fn listings(view: &MeshView) -> impl Iterator<Item = (&PeerView, &ModelView)> {
    view.peers.iter().flat_map(|peer| peer.models.iter().map(move |model| (peer, model)))
}

fn candidate((peer, model): (&PeerView, &ModelView)) -> Candidate {
    Candidate {
        peer: peer.id.clone(),
        name: peer.name.clone(),
        local: peer.local,
        active: model.active,
        queued: model.queued,
        cached: 0,
        wait_ms: None,
    }
}

fn conflict<'a>(model: &ModelId, replicas: impl Iterator<Item = (&'a PeerView, &'a ModelView)>) -> Option<RouteError> {
    let mut digests = replicas.filter_map(|(peer, listed)| Some((peer.name.clone(), listed.digest?)));
    let first = digests.next()?;
    let second = digests.find(|(_, digest)| *digest != first.1)?;
    Some(RouteError::Conflict { model: model.clone(), files: Box::new([first, second]) })
}

fn refusal(view: &MeshView, model: &ModelId, replicas: &[(&PeerView, &ModelView)]) -> RouteError {
    if replicas.is_empty() {
        let served = served(view).iter().filter(|model| model.is_ready()).map(|model| model.name.clone()).collect();
        return RouteError::NotFound { model: model.clone(), served };
    }
    let reasons: Vec<_> = replicas.iter().map(|(peer, listed)| reason(peer, listed)).collect();
    RouteError::Unavailable { model: model.clone(), reason: reasons.join("; ") }
}

fn reason(peer: &PeerView, model: &ModelView) -> String {
    let name = &peer.name;
    match peer.state {
        PeerState::Gone => format!("{name}, which served it, was lost"),
        PeerState::Leaving => format!("{name}, which served it, is leaving"),
        PeerState::OtherVersion => format!("{name} speaks another version of the protocol"),
        PeerState::Joining | PeerState::Ready if model.detail.is_empty() => format!("{name} is not ready"),
        PeerState::Joining | PeerState::Ready => model.detail.clone(),
    }
}

fn known(served: &[ModelId]) -> String {
    if served.is_empty() {
        return "no model is served".to_owned();
    }
    let names: Vec<_> = served.iter().map(|name| format!("`{name}`")).collect();
    format!("served {} {}", if names.len() == 1 { "is" } else { "are" }, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tests::peer;

    fn model(name: &str, ready: bool, active: u32, queued: u32) -> ModelView {
        ModelView {
            name: name.into(),
            digest: None,
            ready,
            detail: String::new(),
            context: 8192,
            layers: 30,
            nodes: Vec::new(),
            ranges: Vec::new(),
            active,
            queued,
            last_forward_ms: None,
            scripted: false,
            tools: String::new(),
        }
    }

    fn with(name: &str, models: impl IntoIterator<Item = ModelView>) -> PeerView {
        PeerView { models: models.into_iter().collect(), ..peer(name) }
    }

    fn order(view: &MeshView) -> Vec<String> {
        choose(view, &"m".into()).unwrap().candidates.into_iter().map(|c| c.name).collect()
    }

    #[test]
    fn the_least_loaded_comes_first_and_this_node_on_ties() {
        let mut local = with("zed", [model("m", true, 1, 1)]);
        local.local = true;
        let busy = with("alpha", [model("m", true, 4, 0)]);
        let tied = with("beta", [model("m", true, 2, 0)]);
        let idle = with("gamma", [model("other", true, 0, 0), model("m", true, 0, 1)]);
        let view = MeshView { peers: vec![local, busy, tied, idle] };
        assert_eq!(order(&view), ["gamma", "zed", "beta", "alpha"]);
        let explanation = choose(&view, &"m".into()).unwrap().to_string();
        assert!(
            explanation.starts_with("gamma (0 active, 1 queued), then zed (1 active, 1 queued, this node), then beta"),
            "{explanation}"
        );
    }

    #[test]
    fn only_ready_replicas_of_present_peers_are_candidates() {
        let mut leaving = with("alpha", [model("m", true, 0, 0)]);
        leaving.state = PeerState::Leaving;
        let mut gone = with("beta", [model("m", true, 0, 0)]);
        gone.state = PeerState::Gone;
        let loading = with("gamma", [model("m", false, 0, 0)]);
        let ready = with("delta", [model("m", true, 9, 9)]);
        let mut view = MeshView { peers: vec![leaving, gone, loading, ready] };
        assert_eq!(order(&view), ["delta"]);
        view.peers.pop();
        let error = choose(&view, &"m".into()).unwrap_err();
        let expected = "the model `m` cannot answer now: alpha, which served it, is leaving; beta, which served it, \
                        was lost; gamma is not ready";
        assert_eq!((error.class(), error.to_string().as_str()), (ErrorClass::Unavailable, expected));
    }

    #[test]
    fn a_model_that_is_not_ready_says_what_is_missing() {
        let mut listed = model("m", false, 0, 0);
        listed.detail = "layers 15-29 on beta were lost".into();
        let view = MeshView { peers: vec![with("alpha", [listed])] };
        let fault = Fault::from(choose(&view, &"m".into()).unwrap_err());
        assert_eq!(fault.message, "the model `m` cannot answer now: layers 15-29 on beta were lost");
        assert_eq!(fault.code.as_deref(), Some("model_unavailable"));
    }

    #[test]
    fn an_unknown_model_is_told_what_is_served() {
        let view = MeshView { peers: vec![with("a", [model("y", true, 0, 0), model("x", true, 0, 0)])] };
        let fault = Fault::from(choose(&view, &"m".into()).unwrap_err());
        assert_eq!(fault.message, "the model `m` does not exist here: served are `x`, `y`");
        assert_eq!((fault.class, fault.code.as_deref()), (ErrorClass::NotFound, Some("model_not_found")));
        let error = choose(&MeshView::default(), &"m".into()).unwrap_err();
        assert_eq!(error.to_string(), "the model `m` does not exist here: no model is served");
    }

    #[test]
    fn one_name_for_two_files_is_an_error_that_names_both() {
        let listed = |byte| ModelView { digest: Some(Digest([byte; 32])), ..model("m", true, 0, 0) };
        let mut view = MeshView { peers: vec![with("alpha", [listed(1)]), with("beta", [listed(2)])] };
        let error = choose(&view, &"m".into()).unwrap_err();
        let expected = "the name `m` stands for two different files, 010101010101 on alpha and 020202020202 on beta: \
                        give one of them another name";
        assert_eq!(error.to_string(), expected);
        view.peers[1].models[0].digest = None;
        assert_eq!(order(&view), ["alpha", "beta"]);
    }

    #[test]
    fn served_models_are_listed_once_each() {
        let mut gone = with("gone", [model("z", true, 0, 0)]);
        gone.state = PeerState::Gone;
        let view = MeshView {
            peers: vec![
                with("a", [model("m", false, 0, 0)]),
                with("b", [model("m", true, 0, 0), model("l", false, 0, 0)]),
                gone,
            ],
        };
        let models = served(&view);
        let names: Vec<_> = models.iter().map(|m| (m.name.as_str(), m.replicas.len(), m.is_ready())).collect();
        assert_eq!(names, [("l", 1, false), ("m", 2, true)]);
    }
}
