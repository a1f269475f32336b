//! What the administering commands print: a table for people, or JSON with a stable schema.

use std::time::Duration;

use mesh_proto::v1;
use mesh_types::{ByteSize, LayerRange};
use serde_json::{Value, json};

use super::table;

/// `status`.
pub fn status(mesh: &v1::PeersResponse, as_json: bool) -> String {
    let local = mesh.peers.iter().find(|peer| peer.local);
    let node = local.and_then(|peer| peer.status.clone()).unwrap_or_default();
    if as_json {
        return pretty(&json!({
            "mesh": {"id": mesh.mesh_id, "nodes": mesh.peers.iter().filter(|peer| peer.state == "ready").count()},
            "node": local.map(peer_json),
            "gateway": (!mesh.gateway_url.is_empty()).then_some(&mesh.gateway_url),
            "uptime_seconds": mesh.uptime_seconds,
            "models": model_rows(mesh).into_iter().map(model_json).collect::<Vec<_>>(),
        }));
    }
    let ready = mesh.peers.iter().filter(|peer| peer.state == "ready").count();
    let plural = if ready == 1 { "" } else { "s" };
    let gateway = if mesh.gateway_url.is_empty() { "off" } else { &mesh.gateway_url };
    let mut out = format!(
        "mesh     {} ({ready} node{plural})\nnode     {}, version {}, up {}\nid       {}\ngateway  {gateway}\n\
         memory   {} offered, {} free\n",
        mesh.mesh_id,
        node.name,
        node.version,
        span(Duration::from_secs(mesh.uptime_seconds)),
        node.peer_id,
        ByteSize(node.memory_bytes),
        ByteSize(node.memory_free_bytes),
    );
    for (index, (_, model)) in model_rows(mesh).into_iter().enumerate() {
        let label = if index == 0 { "models" } else { "" };
        out += &format!("{label:<9}{}: {}\n", model.name, model_state(model));
    }
    out
}

/// `peers`.
pub fn peers(mesh: &v1::PeersResponse, as_json: bool) -> String {
    if as_json {
        return pretty(&json!({"peers": mesh.peers.iter().map(peer_json).collect::<Vec<_>>()}));
    }
    let rows: Vec<_> = mesh
        .peers
        .iter()
        .map(|peer| {
            let status = peer.status.clone().unwrap_or_default();
            let name = if peer.local { format!("{} (this node)", status.name) } else { status.name };
            vec![
                name,
                peer.state.clone(),
                format!("{} of {}", ByteSize(status.memory_free_bytes), ByteSize(status.memory_bytes)),
                status.stages.len().to_string(),
                status.version,
                status.addresses.first().cloned().unwrap_or_else(|| "-".to_owned()),
                short(&status.peer_id),
            ]
        })
        .collect();
    table::render(&["NAME", "STATE", "MEMORY FREE", "STAGES", "VERSION", "ADDRESS", "ID"], &rows)
}

/// `models`.
pub fn models(mesh: &v1::PeersResponse, as_json: bool) -> String {
    let rows = model_rows(mesh);
    if as_json {
        return pretty(&json!({"models": rows.into_iter().map(model_json).collect::<Vec<_>>()}));
    }
    if rows.is_empty() {
        return "no model is served in this mesh; give one with `mesh-node up --model FILE.gguf`\n".to_owned();
    }
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(node, model)| {
            vec![
                model.name.clone(),
                if model.ready { "ready".to_owned() } else { "waiting".to_owned() },
                node.to_owned(),
                placement(model),
                model.context.to_string(),
                model.active.to_string(),
                model.queued.to_string(),
                model.detail.clone(),
            ]
        })
        .collect();
    table::render(&["MODEL", "STATE", "SERVED BY", "LAYERS", "CONTEXT", "ACTIVE", "QUEUED", "DETAIL"], &rows)
}

/// `stages`.
pub fn stages(mesh: &v1::PeersResponse, as_json: bool) -> String {
    let rows = || {
        mesh.peers
            .iter()
            .filter(|peer| peer.state != "gone")
            .filter_map(|peer| peer.status.as_ref())
            .flat_map(|status| status.stages.iter().map(move |stage| (status, stage)))
    };
    if as_json {
        let stages: Vec<Value> = rows()
            .map(|(status, stage)| {
                json!({
                    "node": status.name,
                    "node_id": status.peer_id,
                    "model": stage.model,
                    "layers": stage.layers.map(layers),
                    "state": stage.state,
                    "weight_bytes": stage.weight_bytes,
                    "detail": stage.detail,
                })
            })
            .collect();
        return pretty(&json!({"stages": stages}));
    }
    let mut rows: Vec<_> = rows()
        .map(|(status, stage)| {
            vec![
                stage.model.clone(),
                stage.layers.map(layers).unwrap_or_default(),
                status.name.clone(),
                stage.state.clone(),
                ByteSize(stage.weight_bytes).to_string(),
                stage.detail.clone(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no stage is loaded on any node\n".to_owned();
    }
    let first_layer = |text: &str| text.split('-').next().and_then(|n| n.parse::<u32>().ok());
    rows.sort_by(|a, b| (&a[0], first_layer(&a[1])).cmp(&(&b[0], first_layer(&b[1]))));
    table::render(&["MODEL", "LAYERS", "NODE", "STATE", "WEIGHTS", "DETAIL"], &rows)
}

/// `token`.
pub fn token(token: &str, as_json: bool) -> String {
    if as_json { pretty(&json!({"token": token})) } else { format!("{token}\n") }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn layers(range: v1::LayerRange) -> String {
    LayerRange::new(range.start, range.end).map(|range| range.to_string()).unwrap_or_default()
}

fn model_rows(mesh: &v1::PeersResponse) -> Vec<(&str, &v1::ModelStatus)> {
    let mut rows: Vec<_> = mesh
        .peers
        .iter()
        .filter(|peer| peer.state != "gone")
        .filter_map(|peer| peer.status.as_ref())
        .flat_map(|status| status.models.iter().map(|model| (status.name.as_str(), model)))
        .collect();
    rows.sort_by(|a, b| (&a.1.name, a.0).cmp(&(&b.1.name, b.0)));
    rows
}

fn placement(model: &v1::ModelStatus) -> String {
    let parts: Vec<_> =
        model.ranges.iter().zip(&model.nodes).map(|(range, node)| format!("{} on {node}", layers(*range))).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn model_state(model: &v1::ModelStatus) -> String {
    match (model.ready, model.detail.as_str()) {
        (true, _) => format!("ready, {}", placement(model)),
        (false, "") => "not ready".to_owned(),
        (false, detail) => detail.to_owned(),
    }
}

fn peer_json(peer: &v1::Peer) -> Value {
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
        "models": status.models.iter().map(|model| model.name.clone()).collect::<Vec<_>>(),
        "stages": status.stages.len(),
        "status_age_ms": peer.age_ms,
    })
}

fn model_json((node, model): (&str, &v1::ModelStatus)) -> Value {
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
    })
}

fn short(id: &str) -> String {
    let start = id.len().saturating_sub(8);
    format!("…{}", id.get(start..).unwrap_or(id))
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> v1::PeersResponse {
        let range = |start, end| v1::LayerRange { start, end };
        let model = v1::ModelStatus {
            name: "m".into(),
            ready: true,
            nodes: vec!["alpha".into(), "beta".into()],
            ranges: vec![range(0, 5), range(5, 9)],
            ..Default::default()
        };
        let status = v1::NodeStatus {
            name: "alpha".into(),
            peer_id: "12D3KooWabcdefgh".into(),
            models: vec![model],
            ..Default::default()
        };
        v1::PeersResponse {
            mesh_id: "x".into(),
            peers: vec![v1::Peer { status: Some(status), state: "ready".into(), age_ms: 1, local: true }],
            ..Default::default()
        }
    }

    #[test]
    fn json_and_tables_say_where_layers_run() {
        assert!(models(&mesh(), false).contains("0-4 on alpha, 5-8 on beta"));
        let parsed: Value = serde_json::from_str(&models(&mesh(), true)).unwrap();
        assert_eq!(parsed["models"][0]["stages"][1], json!({"layers": "5-8", "node": "beta"}));
        let parsed: Value = serde_json::from_str(&peers(&mesh(), true)).unwrap();
        assert_eq!(parsed["peers"][0]["state"], "ready");
    }
}
