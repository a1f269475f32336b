//! What the administering commands print for programs. The schema is stable: fields are added, never renamed or taken
//! away. Sizes are bytes, layer ranges inclusive texts as in `0-9`.

use mesh_proto::v1;
use mesh_types::LayerRange;
use serde_json::{Value, json};

/// `status`.
pub fn status(mesh: &v1::PeersResponse) -> Value {
    let local = mesh.peers.iter().find(|peer| peer.local);
    json!({
        "mesh": {"id": mesh.mesh_id, "nodes": mesh.peers.iter().filter(|peer| peer.state == "ready").count()},
        "node": local.map(|local| peer(local, mesh)),
        "gateway": (!mesh.gateway_url.is_empty()).then_some(&mesh.gateway_url),
        "uptime_seconds": mesh.uptime_seconds,
        "models": model_rows(mesh).into_iter().map(model).collect::<Vec<_>>(),
    })
}

/// `peers`.
pub fn peers(mesh: &v1::PeersResponse) -> Value {
    json!({"peers": mesh.peers.iter().map(|one| peer(one, mesh)).collect::<Vec<_>>(), "blocked": mesh.blocked})
}

/// `models`.
pub fn models(mesh: &v1::PeersResponse) -> Value {
    json!({"models": model_rows(mesh).into_iter().map(model).collect::<Vec<_>>()})
}

/// `stages`.
pub fn stages(mesh: &v1::PeersResponse) -> Value {
    let stage = |(node, stage): (&v1::NodeStatus, &v1::StageStatus)| {
        json!({
            "node": node.name,
            "node_id": node.peer_id,
            "model": stage.model,
            "layers": stage.layers.map(layers),
            "state": stage.state,
            "weight_bytes": stage.weight_bytes,
            "memory_bytes": stage.memory_bytes,
            "detail": stage.detail,
        })
    };
    json!({"stages": stage_rows(mesh).into_iter().map(stage).collect::<Vec<_>>()})
}

/// `plan`.
pub fn plan(plan: &v1::PlanResponse) -> Value {
    let candidate = |candidate: &v1::PlanCandidate| {
        let stage = |stage: &v1::PlanStage| {
            json!({"node": stage.node, "layers": stage.layers.map(layers), "needs_bytes": stage.needs_bytes,
                   "has_bytes": stage.has_bytes})
        };
        json!({
            "chosen": candidate.chosen,
            "running": candidate.running,
            "stages": candidate.stages.iter().map(stage).collect::<Vec<_>>(),
            "decode_tokens_per_second": candidate.decode,
            "busy_tokens_per_second": candidate.full,
            "prefill_tokens_per_second": candidate.prefill,
        })
    };
    let node = |node: &v1::PlanNode| {
        json!({"node": node.node, "node_id": node.node_id, "has_bytes": node.has_bytes, "needs_bytes": node.needs_bytes,
               "layers": node.layers.map(layers), "left_out": (!node.left_out.is_empty()).then_some(&node.left_out),
               "speed_measured": node.measured})
    };
    json!({
        "model": plan.model,
        "holder": plan.holder,
        "layers": plan.layers,
        "split": plan.split,
        "candidates": plan.candidates.iter().map(candidate).collect::<Vec<_>>(),
        "nodes": plan.nodes.iter().map(node).collect::<Vec<_>>(),
        "refusal": (!plan.refusal.is_empty()).then_some(&plan.refusal),
    })
}

/// `doctor`.
pub fn doctor(findings: &[v1::Finding]) -> Value {
    let finding = |finding: &v1::Finding| {
        json!({"check": finding.check, "about": finding.about, "state": finding.state, "what": finding.what,
               "advice": finding.advice})
    };
    let ok = findings.iter().all(|finding| finding.state != "failure");
    json!({"ok": ok, "findings": findings.iter().map(finding).collect::<Vec<_>>()})
}

/// `load`.
pub fn loaded(done: &v1::LoadResponse) -> Value {
    json!({"done": "load", "model": done.model, "node": done.node})
}

/// `unload`.
pub fn unloaded(model: &str, done: &v1::UnloadResponse) -> Value {
    json!({"done": "unload", "model": model, "node": done.node})
}

/// `drain`.
pub fn drained(off: bool, done: &v1::DrainResponse) -> Value {
    json!({"node": done.node, "draining": !off, "active": done.active, "stages": done.stages})
}

/// `peers block`, `peers unblock`.
pub fn blocked(off: bool, done: &v1::BlockResponse) -> Value {
    let name = (!done.name.is_empty()).then_some(&done.name);
    json!({"done": if off { "unblock" } else { "block" }, "id": done.peer_id, "name": name, "changed": done.is_news})
}

/// `token`.
pub fn token(token: &str) -> Value {
    json!({"token": token})
}

/// Inclusive, as people write it.
pub(super) fn layers(range: v1::LayerRange) -> String {
    LayerRange::new(range.start, range.end).map(|range| range.to_string()).unwrap_or_default()
}

/// The models of nodes that are here, by name.
pub(super) fn model_rows(mesh: &v1::PeersResponse) -> Vec<(&str, &v1::ModelStatus)> {
    let mut rows: Vec<_> =
        present(mesh).flat_map(|node| node.models.iter().map(move |model| (node.name.as_str(), model))).collect();
    rows.sort_by(|a, b| (&a.1.name, a.0).cmp(&(&b.1.name, b.0)));
    rows
}

/// The stages of nodes that are here, by model and layers.
pub(super) fn stage_rows(mesh: &v1::PeersResponse) -> Vec<(&v1::NodeStatus, &v1::StageStatus)> {
    let mut rows: Vec<_> = present(mesh).flat_map(|node| node.stages.iter().map(move |stage| (node, stage))).collect();
    let first_layer = |stage: &v1::StageStatus| stage.layers.map(|layers| layers.start);
    rows.sort_by(|a, b| (&a.1.model, first_layer(a.1), &a.0.name).cmp(&(&b.1.model, first_layer(b.1), &b.0.name)));
    rows
}

/// The round trip from the asked node to a peer, in microseconds.
pub(super) fn round_trip(mesh: &v1::PeersResponse, peer_id: &str) -> Option<u32> {
    let local = mesh.peers.iter().find(|peer| peer.local)?.status.as_ref()?;
    local.peers.iter().find(|peer| peer.peer_id == peer_id).map(|peer| peer.rtt_us).filter(|rtt| *rtt > 0)
}

fn present(mesh: &v1::PeersResponse) -> impl Iterator<Item = &v1::NodeStatus> {
    mesh.peers.iter().filter(|peer| peer.state != "gone").filter_map(|peer| peer.status.as_ref())
}

fn peer(peer: &v1::Peer, mesh: &v1::PeersResponse) -> Value {
    let status = peer.status.clone().unwrap_or_default();
    json!({
        "id": status.peer_id,
        "name": status.name,
        "state": peer.state,
        "local": peer.local,
        "version": status.version,
        "addresses": status.addresses,
        "stage_addresses": status.stage_addresses,
        "memory_bytes": status.memory_bytes,
        "memory_free_bytes": status.memory_free_bytes,
        "draining": status.draining,
        "decode_bytes_per_second": status.speed.map(|speed| speed.decode),
        "prefill_bytes_per_second": status.speed.map(|speed| speed.prefill),
        "round_trip_us": round_trip(mesh, &status.peer_id),
        "models": status.models.iter().map(|model| model.name.clone()).collect::<Vec<_>>(),
        "stages": status.stages.len(),
        "status_age_ms": peer.age_ms,
        "identity_copied_at": peer.copied_at,
        "relayed_by": (!peer.relayed_by.is_empty()).then_some(&peer.relayed_by),
        "reach": peer.reach.iter().map(reach).collect::<Vec<_>>(),
    })
}

fn reach(reach: &v1::AddressReach) -> Value {
    json!({"address": reach.address, "reached_by": reach.reached_by, "missed_by": reach.missed_by})
}

fn model((node, model): (&str, &v1::ModelStatus)) -> Value {
    let stages: Vec<Value> = model
        .ranges
        .iter()
        .zip(&model.nodes)
        .map(|(range, node)| json!({"layers": layers(*range), "node": node}))
        .collect();
    let digest: String = model.digest.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": model.name,
        "ready": model.ready,
        "detail": model.detail,
        "served_by": node,
        "stages": stages,
        "layers": model.layers,
        "context": model.context,
        "active": model.active,
        "queued": model.queued,
        "last_forward_ms": model.last_forward_ms,
        "digest": (!digest.is_empty()).then_some(digest),
        "scripted": model.scripted,
        "tools": model.tools,
    })
}
