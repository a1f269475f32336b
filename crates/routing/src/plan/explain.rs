//! What a plan means for every node, in a sentence each.

use mesh_types::{ByteSize, LayerRange, PeerId};

use super::search::{Found, Way};
use super::{Host, ModelShape, PlanError, WORTH};

/// Rates that differ by less are shown as equal.
const EQUAL: f64 = 0.99;

/// What the plan means for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct HostReport {
    /// The node.
    pub peer: PeerId,
    /// Its name.
    pub name: String,
    /// What it has for the model.
    pub has: ByteSize,
    /// What it is to take: its stage, or the whole model where it takes nothing.
    pub needs: ByteSize,
    /// Its layers.
    pub layers: Option<LayerRange>,
    /// Why it takes none, in a sentence; `None` where it takes some.
    pub left_out: Option<String>,
    /// Whether its speed was measured.
    pub measured: bool,
}

/// A report for each host.
pub(super) fn reports(shape: &ModelShape, hosts: &[Host], found: &Found, chosen: &Way) -> Vec<HostReport> {
    let candidate = found.candidate(shape, hosts, chosen);
    let report = |(at, host): (usize, &Host)| {
        let stage = candidate.stages.iter().find(|stage| stage.stage.peer == host.peer);
        let reason = || left_out(shape, hosts, at, found.best_with(at), chosen);
        HostReport {
            peer: host.peer.clone(),
            name: host.name.clone(),
            has: host.memory,
            needs: stage.map_or_else(|| whole(shape), |stage| stage.needs),
            layers: stage.map(|stage| stage.stage.layers),
            left_out: if stage.is_some() { None } else { Some(reason()) },
            measured: host.measured,
        }
    };
    hosts.iter().enumerate().map(report).collect()
}

/// The refusal where no set of nodes has room.
pub(super) fn does_not_fit(shape: &ModelShape, hosts: &[Host]) -> PlanError {
    let usable = |host: &&Host| host.unfit.is_none();
    let has = ByteSize(hosts.iter().filter(usable).map(|host| host.memory.0).fold(0, u64::saturating_add));
    let reports: Vec<_> = hosts
        .iter()
        .map(|host| HostReport {
            peer: host.peer.clone(),
            name: host.name.clone(),
            has: host.memory,
            needs: whole(shape),
            layers: None,
            left_out: Some(refusal(shape, host)),
            measured: host.measured,
        })
        .collect();
    let sentences: Vec<_> =
        reports.iter().map(|report| format!("{}: {}", report.name, report.left_out.as_deref().unwrap_or(""))).collect();
    PlanError::DoesNotFit { needs: whole(shape), has, detail: sentences.join("; "), hosts: reports }
}

/// What a host could give to a model that does not fit.
fn refusal(shape: &ModelShape, host: &Host) -> String {
    let least = shape.smallest_stage();
    match &host.unfit {
        Some(reason) => reason.clone(),
        None if shape.cuts().is_empty() => {
            format!("it has {}, and the model cannot be split", host.memory)
        }
        None if host.memory < least => too_small(host, least),
        None => format!("it has {}", host.memory),
    }
}

fn left_out(shape: &ModelShape, hosts: &[Host], at: usize, best: Option<&Way>, chosen: &Way) -> String {
    let host = &hosts[at];
    let least = shape.smallest_stage();
    if let Some(reason) = &host.unfit {
        return reason.clone();
    }
    if chosen.chain.len() == 1 {
        return format!("it is not needed: the model fits on {} alone", hosts[0].name);
    }
    if host.memory < least {
        return too_small(host, least);
    }
    let without = chosen.pace.decode();
    match best {
        None => "it is not needed: the others have room for the model".to_owned(),
        Some(with) if with.pace.decode() < without * EQUAL => {
            let guess = if host.measured { "" } else { " (its speed is not measured yet)" };
            format!("it would slow the model down: {} tok/s with it, {} without{guess}", rate(with), rate(chosen))
        }
        Some(with) if with.pace.decode() <= without => {
            format!("it is not needed: {} tok/s with it, {} without", rate(with), rate(chosen))
        }
        Some(with) => format!(
            "it would gain too little for one stage more: {} tok/s with it, {} without; {:.0} % more is asked for",
            rate(with),
            rate(chosen),
            (WORTH - 1.0) * 100.0
        ),
    }
}

fn too_small(host: &Host, least: ByteSize) -> String {
    format!("it has {}, and the smallest stage of this model takes {least}", host.memory)
}

fn rate(way: &Way) -> String {
    format!("{:.1}", way.pace.decode())
}

fn whole(shape: &ModelShape) -> ByteSize {
    shape.all().map_or_else(ByteSize::default, |all| shape.memory(all))
}
