//! Which node runs which layers of a model: from what the user asked for and who has joined to one stage per node.
//!
//! Range 0 is the holder's, which is the node that made the view; the others go to the joined peers that take stages, in
//! the order of their names.

use std::fmt;
use std::str::FromStr;

use mesh_types::{ErrorClass, LayerRange, MeshView, PeerId, PeerState, PeerView};

/// How a model is to be split, as `--split` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Evenly over this node and every joined peer that takes stages.
    #[default]
    Auto,
    /// Not at all: all layers on this node.
    Never,
    /// In these ranges.
    Ranges(Vec<LayerRange>),
}

/// One stage of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedStage {
    /// Its layers.
    pub layers: LayerRange,
    /// The node that is to run it.
    pub peer: PeerId,
    /// That node's name.
    pub name: String,
    /// Whether it is this node.
    pub local: bool,
}

/// Why a model cannot be placed as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The text of `--split` is none of its forms.
    #[error("--split is auto, never, or layer ranges as in 0-9,10-19,20-29; `{0}` is none of them")]
    Syntax(String),
    /// The first range does not start at layer 0.
    #[error("--split must start at layer 0, and its first range is {0}")]
    Start(LayerRange),
    /// A range does not follow the one before it.
    #[error("--split must be contiguous: after {before} comes layer {}, and the next range is {next}", .before.end())]
    Gap {
        /// A range.
        before: LayerRange,
        /// The one written after it.
        next: LayerRange,
    },
    /// The last range does not end at the model's last layer.
    #[error("--split must end at the model's last layer, {}, and its last range is {last}", .n_layer - 1)]
    End {
        /// The last range.
        last: LayerRange,
        /// Layers of the model.
        n_layer: u32,
    },
    /// The model has no layers.
    #[error("the model has no layers")]
    NoLayers,
    /// The view lacks the node that made it.
    #[error("this node is not part of the mesh yet")]
    NoLocal,
    /// Fewer nodes have joined than there are ranges.
    #[error("--split needs {needed} nodes and {} joined ({}): {} for layers {}{}", are(.present.len()),
        .present.join(", "), nobody(.missing.len()), list(.missing), behind(.relayed))]
    NotEnoughPeers {
        /// One node for each range.
        needed: usize,
        /// Names of the nodes that take stages, this one first.
        present: Vec<String>,
        /// The ranges that nobody is there for.
        missing: Vec<LayerRange>,
        /// Names of nodes that would take stages, and to which no direct way leads.
        relayed: Vec<String>,
    },
}

/// One stage for each range of `split` over a model of `n_layer` layers, in stage order.
///
/// # Errors
/// [`PlacementError`] in the terms of `--split`.
pub fn place(n_layer: u32, split: &Split, view: &MeshView) -> Result<Vec<PlacedStage>, PlacementError> {
    let hosts = hosts(view)?;
    let ranges = match split {
        Split::Never => even(n_layer, 1),
        Split::Auto => even(n_layer, hosts.len()),
        Split::Ranges(ranges) => {
            check(n_layer, ranges)?;
            ranges.clone()
        }
    };
    if ranges.is_empty() {
        return Err(PlacementError::NoLayers);
    }
    if ranges.len() > hosts.len() {
        return Err(PlacementError::NotEnoughPeers {
            needed: ranges.len(),
            present: hosts.iter().map(|host| host.name.clone()).collect(),
            missing: ranges[hosts.len()..].to_vec(),
            relayed: relayed(view, &hosts),
        });
    }
    Ok(ranges.into_iter().zip(hosts).map(|(layers, host)| stage(layers, host)).collect())
}

/// Checks that `ranges` cover a model of `n_layer` layers in order, each layer once.
///
/// # Errors
/// The first violation.
pub fn check(n_layer: u32, ranges: &[LayerRange]) -> Result<(), PlacementError> {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return Err(PlacementError::Syntax(String::new()));
    };
    if first.start() != 0 {
        return Err(PlacementError::Start(*first));
    }
    if let Some(pair) = ranges.windows(2).find(|pair| pair[0].end() != pair[1].start()) {
        return Err(PlacementError::Gap { before: pair[0], next: pair[1] });
    }
    if n_layer == 0 {
        return Err(PlacementError::NoLayers);
    }
    if last.end() != n_layer {
        return Err(PlacementError::End { last: *last, n_layer });
    }
    Ok(())
}

/// `n_layer` layers in `stages` ranges whose lengths differ by at most one, the longer ones first (the last stage has the
/// head to compute as well). Fewer ranges where there are fewer layers; none for no layers.
pub fn even(n_layer: u32, stages: usize) -> Vec<LayerRange> {
    let stages = u32::try_from(stages).unwrap_or(u32::MAX).clamp(1, n_layer.max(1));
    let (length, longer) = (n_layer / stages, n_layer % stages);
    let start = |stage: u32| stage * length + stage.min(longer);
    (0..stages).filter_map(|stage| LayerRange::new(start(stage), start(stage + 1))).collect()
}

/// The explanation of a placement: `layers 0-9 on alpha, 10-19 on beta`.
pub fn explain(stages: &[PlacedStage]) -> String {
    let parts: Vec<_> = stages.iter().map(|stage| format!("{} on {}", stage.layers, stage.name)).collect();
    format!("layers {}", parts.join(", "))
}

impl PlacementError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotEnoughPeers { .. } | Self::NoLocal => ErrorClass::Unavailable,
            _ => ErrorClass::InvalidRequest,
        }
    }
}

impl FromStr for Split {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            ranges => ranges
                .split(',')
                .map(|range| range.parse().map_err(|_| PlacementError::Syntax(text.to_owned())))
                .collect::<Result<_, _>>()
                .map(Self::Ranges),
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Never => f.write_str("never"),
            Self::Ranges(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                f.write_str(&ranges.join(","))
            }
        }
    }
}

/// This node, then the joined peers that take stages, by name and then id.
fn hosts(view: &MeshView) -> Result<Vec<&PeerView>, PlacementError> {
    let local = view.local().ok_or(PlacementError::NoLocal)?;
    let mut others: Vec<_> = view.peers.iter().filter(takes_stages).collect();
    others.sort_by_key(|peer| (&peer.name, &peer.id));
    let mut hosts = vec![local];
    let mut last = local;
    for other in others.into_iter().filter(|other| !MeshView::is_relayed(local, other)) {
        // Each has to reach the next.
        if !MeshView::is_relayed(last, other) {
            hosts.push(other);
            last = other;
        }
    }
    Ok(hosts)
}

fn takes_stages(peer: &&PeerView) -> bool {
    !peer.local && peer.state == PeerState::Ready && !peer.stage_addresses.is_empty()
}

/// The nodes that are not among `hosts` only because a relay is between.
fn relayed(view: &MeshView, hosts: &[&PeerView]) -> Vec<String> {
    let is_left_out = |peer: &&PeerView| !hosts.iter().any(|host| host.id == peer.id);
    view.peers.iter().filter(takes_stages).filter(is_left_out).map(|peer| peer.name.clone()).collect()
}

fn stage(layers: LayerRange, host: &PeerView) -> PlacedStage {
    PlacedStage { layers, peer: host.id.clone(), name: host.name.clone(), local: host.local }
}

fn are(count: usize) -> String {
    format!("{count} {}", if count == 1 { "has" } else { "have" })
}

fn nobody(missing: usize) -> String {
    format!("{missing} more must join,{}", if missing == 1 { "" } else { " one each" })
}

fn behind(relayed: &[String]) -> String {
    match relayed {
        [] => String::new(),
        names => format!(
            " (not counted: {}; only a relayed path leads there, and stages need a direct one)",
            names.join(", ")
        ),
    }
}

fn list(ranges: &[LayerRange]) -> String {
    ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
pub(crate) mod tests {
    use mesh_types::ByteSize;

    use super::*;

    pub(crate) fn peer(name: &str) -> PeerView {
        PeerView {
            id: PeerId::new(format!("id-{name}")),
            name: name.into(),
            state: PeerState::Ready,
            local: false,
            version: "0.1.0".into(),
            addresses: Vec::new(),
            stage_addresses: vec!["10.0.0.1:9338".into()],
            memory: ByteSize::default(),
            memory_free: ByteSize::default(),
            models: Vec::new(),
            stages: Vec::new(),
            speed: None,
            links: Vec::new(),
            draining: false,
        }
    }

    /// This node is `zed`, and the others joined in the order given.
    fn view(others: &[&str]) -> MeshView {
        let local = PeerView { local: true, ..peer("zed") };
        MeshView { peers: std::iter::once(local).chain(others.iter().map(|name| peer(name))).collect() }
    }

    fn split(text: &str) -> Split {
        text.parse().unwrap()
    }

    fn placed(n_layer: u32, text: &str, others: &[&str]) -> String {
        explain(&place(n_layer, &split(text), &view(others)).unwrap())
    }

    fn refused(n_layer: u32, text: &str, others: &[&str]) -> String {
        place(n_layer, &split(text), &view(others)).unwrap_err().to_string()
    }

    #[test]
    fn ranges_go_to_this_node_and_then_by_name() {
        let expected = "layers 0-9 on zed, 10-19 on alpha, 20-29 on beta";
        assert_eq!(placed(30, "0-9,10-19,20-29", &["beta", "gamma", "alpha"]), expected);
        assert_eq!(placed(30, "0-3,4-29", &["beta"]), "layers 0-3 on zed, 4-29 on beta");
        assert_eq!(placed(30, "0-29", &[]), "layers 0-29 on zed");
    }

    #[test]
    fn an_automatic_split_is_even() {
        assert_eq!(placed(30, "auto", &["b", "a"]), "layers 0-9 on zed, 10-19 on a, 20-29 on b");
        assert_eq!(placed(31, "auto", &["b", "a"]), "layers 0-10 on zed, 11-20 on a, 21-30 on b");
        assert_eq!(placed(2, "auto", &["b", "a"]), "layers 0-0 on zed, 1-1 on a");
        assert_eq!(placed(30, "auto", &[]), "layers 0-29 on zed");
        assert_eq!(placed(30, "never", &["a"]), "layers 0-29 on zed");
    }

    #[test]
    fn even_ranges_cover_every_layer_once() {
        for n_layer in 1..40 {
            for stages in 1..45 {
                let ranges = even(n_layer, stages);
                assert_eq!(check(n_layer, &ranges), Ok(()), "{n_layer} in {stages}");
                assert_eq!(ranges.len(), stages.min(n_layer as usize));
                let lengths = ranges.iter().map(|range| range.len());
                assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
            }
        }
        assert_eq!(even(0, 3), []);
        assert_eq!(even(u32::MAX, 2).len(), 2);
    }

    #[test]
    fn peers_that_take_no_stages_are_passed_over() {
        let mut view = view(&["alpha", "beta", "gamma", "delta"]);
        view.peers[1].stage_addresses.clear();
        view.peers[2].state = PeerState::Gone;
        view.peers[3].state = PeerState::Joining;
        let stages = place(30, &split("auto"), &view).unwrap();
        assert_eq!(explain(&stages), "layers 0-14 on zed, 15-29 on delta");
    }

    #[test]
    fn peers_behind_a_relay_are_passed_over_and_named() {
        let relayed = |name: &str| mesh_types::LinkView { peer: peer(name).id, rtt_us: 0, relayed: true };
        let mut view = view(&["alpha", "beta", "gamma"]);
        view.peers[0].links = vec![relayed("alpha")];
        view.peers[2].links = vec![relayed("gamma")];
        let stages = place(30, &split("0-9,10-29"), &view).unwrap();
        assert_eq!(explain(&stages), "layers 0-9 on zed, 10-29 on beta");
        let error = place(30, &split("0-9,10-19,20-29"), &view).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "(not counted: alpha, gamma; only a relayed path leads there, and stages need a direct one)"
            ),
            "{error}"
        );
    }

    #[test]
    fn what_is_wrong_with_a_split_is_named() {
        let others = ["alpha", "beta"];
        assert_eq!(refused(30, "1-9,10-29", &others), "--split must start at layer 0, and its first range is 1-9");
        assert_eq!(
            refused(30, "0-9,11-29", &others),
            "--split must be contiguous: after 0-9 comes layer 10, and the next range is 11-29"
        );
        assert_eq!(
            refused(30, "0-9,9-29", &others),
            "--split must be contiguous: after 0-9 comes layer 10, and the next range is 9-29"
        );
        assert_eq!(
            refused(30, "0-9,10-19", &others),
            "--split must end at the model's last layer, 29, and its last range is 10-19"
        );
        assert_eq!(
            refused(30, "0-9,10-30", &others),
            "--split must end at the model's last layer, 29, and its last range is 10-30"
        );
        for text in ["", "0-9,", "all", "9-0", "0-9;10-19"] {
            let error = text.parse::<Split>().unwrap_err();
            assert_eq!(error, PlacementError::Syntax(text.into()));
            assert_eq!(error.class(), ErrorClass::InvalidRequest);
        }
    }

    #[test]
    fn missing_peers_are_counted_with_their_layers() {
        assert_eq!(
            refused(30, "0-9,10-19,20-29", &["beta"]),
            "--split needs 3 nodes and 2 have joined (zed, beta): 1 more must join, for layers 20-29"
        );
        assert_eq!(
            refused(30, "0-9,10-19,20-29", &[]),
            "--split needs 3 nodes and 1 has joined (zed): 2 more must join, one each for layers 10-19 and 20-29"
        );
        assert_eq!(place(30, &Split::Auto, &MeshView::default()), Err(PlacementError::NoLocal));
        assert_eq!(place(0, &Split::Auto, &view(&[])), Err(PlacementError::NoLayers));
    }

    #[test]
    fn a_split_survives_its_text() {
        for text in ["auto", "never", "0-9,10-19,20-29"] {
            assert_eq!(split(text).to_string(), text);
        }
    }
}
