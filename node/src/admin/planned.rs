//! A plan as the admin service tells it.

use mesh_proto::v1;
use mesh_routing::plan::{Candidate, CandidateStage, HostReport, PlanError};

use crate::fleet::Planned;

/// What `planned` says, by `holder`.
pub(super) fn response(planned: Planned, holder: String) -> v1::PlanResponse {
    let Planned { name, layers, split, plan, asked, present } = planned;
    let (planned, hosts, mut refusal) = match plan {
        Ok(plan) => (plan.candidates, plan.hosts, String::new()),
        Err(error) => {
            let refusal = error.to_string();
            let hosts = if let PlanError::DoesNotFit { hosts, .. } = error { hosts } else { Vec::new() };
            (Vec::new(), hosts, refusal)
        }
    };
    let mut nodes: Vec<v1::PlanNode> = hosts.into_iter().map(node).collect();
    // What it is asked to be counts before what the planner would take.
    let chosen = match asked {
        None => planned.first().cloned(),
        Some(Ok(asked)) => {
            refusal.clear();
            nodes.iter_mut().for_each(|node| as_asked(node, &asked));
            Some(asked)
        }
        Some(Err(why)) => {
            refusal = why;
            None
        }
    };
    let mut candidates: Vec<Candidate> = Vec::new();
    for one in chosen.iter().chain(&present).chain(&planned) {
        if candidates.iter().all(|listed| listed.placement() != one.placement()) {
            candidates.push(one.clone());
        }
    }
    let is = |one: &Candidate, other: &Option<Candidate>| {
        other.as_ref().is_some_and(|other| other.placement() == one.placement())
    };
    let labelled =
        |one: &Candidate| v1::PlanCandidate { chosen: is(one, &chosen), running: is(one, &present), ..candidate(one) };
    v1::PlanResponse {
        model: name.to_string(),
        holder,
        layers,
        candidates: candidates.iter().map(labelled).collect(),
        nodes,
        refusal,
        split: split.to_string(),
    }
}

/// What `asked` means for a node, whatever the planner thinks of it.
fn as_asked(node: &mut v1::PlanNode, asked: &Candidate) {
    match asked.stages.iter().find(|stage| stage.stage.peer.as_str() == node.node_id) {
        Some(stage) => {
            node.layers = Some(stage.stage.layers.into());
            node.needs_bytes = stage.needs.0;
            node.left_out.clear();
        }
        None => {
            node.layers = None;
            "the split that was asked for has no layers for it".clone_into(&mut node.left_out);
        }
    }
}

fn candidate(candidate: &Candidate) -> v1::PlanCandidate {
    let stage = |stage: &CandidateStage| v1::PlanStage {
        node: stage.stage.name.clone(),
        layers: Some(stage.stage.layers.into()),
        needs_bytes: stage.needs.0,
        has_bytes: stage.has.0,
    };
    v1::PlanCandidate {
        stages: candidate.stages.iter().map(stage).collect(),
        decode: candidate.decode,
        full: candidate.full,
        prefill: candidate.prefill,
        ..Default::default()
    }
}

fn node(host: HostReport) -> v1::PlanNode {
    v1::PlanNode {
        node: host.name,
        node_id: host.peer.to_string(),
        has_bytes: host.has.0,
        needs_bytes: host.needs.0,
        layers: host.layers.map(Into::into),
        left_out: host.left_out.unwrap_or_default(),
        measured: host.measured,
    }
}
