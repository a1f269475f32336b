//! What the administering commands print for people: tables as wide as the screen, and sentences.

use std::time::Duration;

use mesh_proto::v1;
use mesh_types::ByteSize;

use super::json::{layers, model_rows, round_trip, stage_rows};
use super::screen::{Screen, Tone};
use super::table::{Cell, Column, Table};

/// `status`.
pub fn status(mesh: &v1::PeersResponse, screen: &Screen) -> String {
    let local = mesh.peers.iter().find(|peer| peer.local);
    let node = local.and_then(|peer| peer.status.clone()).unwrap_or_default();
    let uptime = span(Duration::from_secs(mesh.uptime_seconds));
    let draining = if node.draining { ", draining" } else { "" };
    let mut table = Table::new([Column::new(""), Column::sentence("")]);
    let mut row = |label: &str, value: Cell| table.row([Cell::new(label, Tone::Head), value]);
    row("mesh", format!("{} ({})", mesh.mesh_id, head_count(mesh)).into());
    row("node", format!("{}, version {}, up {uptime}{draining}", node.name, node.version).into());
    row("id", node.peer_id.into());
    let reach = local.map(|local| local.reach.as_slice()).unwrap_or_default();
    row(
        "address",
        or_dash(node.addresses.iter().map(|address| reached(address, reach)).collect::<Vec<_>>().join(", ")),
    );
    row(
        "gateway",
        if mesh.gateway_url.is_empty() { Cell::new("off", Tone::Faint) } else { mesh.gateway_url.as_str().into() },
    );
    let (offered, free) = (ByteSize(node.memory_bytes), ByteSize(node.memory_free_bytes));
    row("memory", format!("{offered} offered, {free} free").into());
    for copied in mesh.peers.iter().filter(|peer| !peer.copied_at.is_empty()) {
        row("problem", Cell::new(copied_identity(copied), Tone::Bad));
    }
    let models = model_rows(mesh);
    if models.is_empty() {
        row("models", Cell::new("none", Tone::Faint));
    }
    for (index, (_, model)) in models.into_iter().enumerate() {
        let state = if model.ready { format!("ready, {}", placement(model)) } else { detail(model) };
        row(if index == 0 { "models" } else { "" }, Cell::new(format!("{}: {state}", model.name), model_tone(model)));
    }
    table.render(screen)
}

/// An address, and how many of the members that tried it came through.
fn reached(address: &str, reach: &[v1::AddressReach]) -> String {
    let address = host_and_port(address);
    match reach.iter().find(|found| found.address == address) {
        Some(found) => {
            let (yes, no) = (found.reached_by.len(), found.missed_by.len());
            format!("{address} (reached by {yes} of {} that tried)", yes + no)
        }
        None => address,
    }
}

/// `peers`.
pub fn peers(mesh: &v1::PeersResponse, screen: &Screen) -> String {
    let mut table = Table::new([
        Column::new("NAME"),
        Column::new("STATE"),
        Column::number("FREE"),
        Column::number("OFFERED"),
        Column::number("STAGES").optional(3),
        Column::number("ROUND TRIP").optional(2),
        Column::new("ADDRESS").optional(1),
        Column::new("VERSION").optional(4),
        Column::new("ID").optional(5),
    ]);
    for peer in &mesh.peers {
        let status = peer.status.clone().unwrap_or_default();
        let name = if peer.local { format!("{} (this node)", status.name) } else { status.name };
        let more = [(status.draining, ", draining"), (!peer.copied_at.is_empty(), ", copied")];
        let more: String = more.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word).collect();
        let tone = match peer.state.as_str() {
            _ if !peer.copied_at.is_empty() => Tone::Bad,
            "ready" if !status.draining => Tone::Good,
            "gone" => Tone::Bad,
            _ => Tone::Unsure,
        };
        let address = match peer.relayed_by.as_str() {
            "" => status.addresses.first().map(|address| host_and_port(address)).unwrap_or_default(),
            relay => format!("through {}", name_of(mesh, relay)),
        };
        let rtt = round_trip(mesh, &status.peer_id).map(|rtt| format!("{:.1} ms", f64::from(rtt) / 1000.0));
        let memory = |bytes: u64| if status.memory_bytes == 0 { "-".to_owned() } else { ByteSize(bytes).to_string() };
        table.row([
            or_dash(name),
            Cell::new(format!("{}{more}", peer.state), tone),
            memory(status.memory_free_bytes).into(),
            memory(status.memory_bytes).into(),
            status.stages.len().to_string().into(),
            or_dash(rtt.unwrap_or_default()),
            or_dash(address),
            or_dash(status.version),
            short(&status.peer_id).into(),
        ]);
    }
    let copied = mesh.peers.iter().filter(|peer| !peer.copied_at.is_empty());
    let out = copied.fold(table.render(screen), |out, peer| out + &copied_identity(peer) + "\n");
    mesh.blocked.iter().fold(out, |out, id| out + &format!("blocked: {id}\n"))
}

fn name_of<'a>(mesh: &'a v1::PeersResponse, id: &'a str) -> &'a str {
    let statuses = mesh.peers.iter().filter_map(|peer| peer.status.as_ref());
    statuses.filter(|status| status.peer_id == id).map(|status| status.name.as_str()).next().unwrap_or(id)
}

/// What is wrong with an identity that several processes share, and what to do.
fn copied_identity(peer: &v1::Peer) -> String {
    let name = peer.status.as_ref().map(|status| status.name.as_str()).unwrap_or_default();
    format!(
        "two processes use the identity of {name} (seen at {}): its data directory was copied; stop one, remove \
         identity.key from its data directory, and start it again",
        peer.copied_at.join(", ")
    )
}

/// `models`.
pub fn models(mesh: &v1::PeersResponse, screen: &Screen) -> String {
    let rows = model_rows(mesh);
    if rows.is_empty() {
        return "no model is served in this mesh: `mesh-node load FILE.gguf` serves one\n".to_owned();
    }
    let mut table = Table::new([
        Column::new("MODEL"),
        Column::new("STATE"),
        Column::new("SERVED BY"),
        Column::number("CONTEXT").optional(1),
        Column::number("RUNS"),
        Column::number("QUEUED").optional(2),
        Column::sentence("LAYERS, OR WHAT IS MISSING"),
    ]);
    for (node, model) in rows {
        let state = if model.ready { "ready" } else { "waiting" };
        let scripted = if model.scripted { " (a script answers)" } else { "" };
        table.row([
            model.name.as_str().into(),
            Cell::new(state, model_tone(model)),
            node.into(),
            model.context.to_string().into(),
            model.active.to_string().into(),
            model.queued.to_string().into(),
            format!("{}{scripted}", if model.ready { placement(model) } else { detail(model) }).into(),
        ]);
    }
    table.render(screen)
}

/// `stages`.
pub fn stages(mesh: &v1::PeersResponse, screen: &Screen) -> String {
    let rows = stage_rows(mesh);
    if rows.is_empty() {
        return "no stage is loaded on any node\n".to_owned();
    }
    let has_detail = rows.iter().any(|(_, stage)| !stage.detail.is_empty());
    let mut columns = vec![
        Column::new("MODEL"),
        Column::number("LAYERS"),
        Column::new("NODE"),
        Column::new("STATE"),
        Column::number("WEIGHTS"),
        Column::number("MEMORY").optional(1),
    ];
    columns.push(Column::sentence(if has_detail { "DETAIL" } else { "" }));
    let mut table = Table::new(columns);
    for (node, stage) in rows {
        let tone = match stage.state.as_str() {
            "ready" => Tone::Good,
            "failed" => Tone::Bad,
            _ => Tone::Unsure,
        };
        table.row([
            stage.model.as_str().into(),
            stage.layers.map(layers).unwrap_or_default().into(),
            node.name.as_str().into(),
            Cell::new(stage.state.as_str(), tone),
            ByteSize(stage.weight_bytes).to_string().into(),
            ByteSize(stage.memory_bytes).to_string().into(),
            stage.detail.as_str().into(),
        ]);
    }
    table.render(screen)
}

/// `plan`.
pub fn plan(plan: &v1::PlanResponse, screen: &Screen) -> String {
    let mut out = format!("{}: {} layers, held by {}", plan.model, plan.layers, plan.holder);
    if plan.split != "auto" {
        out += &format!(", to be split {}", plan.split);
    }
    out += "\n\n";
    if !plan.refusal.is_empty() {
        out += &screen.paint(&format!("cannot be placed: {}", plan.refusal), Tone::Bad);
        out += "\n\n";
    }
    if !plan.candidates.is_empty() {
        out += &candidates(plan).render(screen);
        out += "\n";
    }
    let mut table = Table::new([
        Column::new("NODE"),
        Column::number("HAS"),
        Column::number("NEEDS"),
        Column::number("LAYERS"),
        Column::new("SPEED").optional(1),
        Column::sentence("LEFT OUT BECAUSE"),
    ]);
    for node in &plan.nodes {
        let lacks = node.layers.is_none() && node.has_bytes < node.needs_bytes;
        table.row([
            node.node.as_str().into(),
            Cell::new(ByteSize(node.has_bytes).to_string(), if lacks { Tone::Unsure } else { Tone::Plain }),
            ByteSize(node.needs_bytes).to_string().into(),
            or_dash(node.layers.map(layers).unwrap_or_default()),
            if node.measured { "measured" } else { "assumed" }.into(),
            node.left_out.as_str().into(),
        ]);
    }
    out + &table.render(screen)
}

fn candidates(plan: &v1::PlanResponse) -> Table {
    let mut table = Table::new([
        Column::new(""),
        Column::number("STAGES"),
        Column::number("TOK/S"),
        Column::number("TOK/S BUSY").optional(1),
        Column::number("TOK/S PROMPT").optional(2),
        Column::sentence("LAYERS"),
    ]);
    for candidate in &plan.candidates {
        let part =
            |stage: &v1::PlanStage| format!("{} on {}", stage.layers.map(layers).unwrap_or_default(), stage.node);
        let parts: Vec<_> = candidate.stages.iter().map(part).collect();
        let label = match (candidate.chosen, candidate.running) {
            (true, true) => "chosen, running",
            (true, false) => "chosen",
            (false, true) => "running",
            (false, false) => "",
        };
        table.row([
            Cell::new(label, if candidate.chosen { Tone::Good } else { Tone::Unsure }),
            candidate.stages.len().to_string().into(),
            format!("{:.1}", candidate.decode).into(),
            format!("{:.1}", candidate.full).into(),
            format!("{:.0}", candidate.prefill).into(),
            parts.join(", ").into(),
        ]);
    }
    table
}

/// `doctor`.
pub fn doctor(findings: &[v1::Finding], screen: &Screen) -> String {
    let mut table = Table::new([Column::new(""), Column::new(""), Column::sentence("")]);
    for finding in findings {
        let tone = match finding.state.as_str() {
            "ok" => Tone::Good,
            "warning" => Tone::Unsure,
            _ => Tone::Bad,
        };
        let about = if finding.about.is_empty() { String::new() } else { format!("{}: ", finding.about) };
        table.row([
            Cell::new(finding.state.as_str(), tone),
            finding.check.as_str().into(),
            format!("{about}{}", finding.what).into(),
        ]);
        if !finding.advice.is_empty() {
            table.row(["".into(), "".into(), Cell::new(format!("→ {}", finding.advice), Tone::Head)]);
        }
    }
    let count = |state: &str| findings.iter().filter(|finding| finding.state == state).count();
    let counted = |count: usize, what| counted(u32::try_from(count).unwrap_or(u32::MAX), what);
    let sum = match (count("failure"), count("warning")) {
        (0, 0) => screen.paint("nothing is wrong", Tone::Good),
        (0, warnings) => screen.paint(&counted(warnings, "warning"), Tone::Unsure),
        (failures, 0) => screen.paint(&counted(failures, "failure"), Tone::Bad),
        (failures, warnings) => {
            screen.paint(&format!("{}, {}", counted(failures, "failure"), counted(warnings, "warning")), Tone::Bad)
        }
    };
    format!("{}\n{sum}\n", table.render(screen))
}

/// `load`.
pub fn loaded(done: &v1::LoadResponse) -> String {
    format!("{} loads {}; `mesh-node models` says when it is ready\n", done.node, done.model)
}

/// `unload`.
pub fn unloaded(model: &str, done: &v1::UnloadResponse) -> String {
    format!("{} does not serve {model} any more\n", done.node)
}

/// `peers block`, `peers unblock`.
pub fn blocked(off: bool, done: &v1::BlockResponse) -> String {
    let peer = if done.name.is_empty() { &done.peer_id } else { &done.name };
    match (off, done.is_news) {
        (false, true) => format!(
            "{peer} is kept out of the mesh from now on; with a token that works it can come back under a new identity: \
             `mesh-node token --rotate` makes all earlier ones useless\n"
        ),
        (false, false) => format!("{peer} is kept out of the mesh already\n"),
        (true, true) => format!("{peer} may join the mesh again\n"),
        (true, false) => format!("{peer} was not blocked\n"),
    }
}

/// `drain`.
pub fn drained(off: bool, done: &v1::DrainResponse) -> String {
    let (node, active, stages) = (&done.node, done.active, done.stages);
    match (off, active, stages) {
        (true, ..) => format!("{node} takes new requests and stages again\n"),
        (false, 0, 0) => format!("{node} takes no new requests and stages, and nothing runs there any more\n"),
        (false, ..) => format!(
            "{node} takes no new requests and stages; still there: {} of its own models, {} of other nodes' models\n",
            counted(active, "running request"),
            counted(stages, "stage"),
        ),
    }
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn head_count(mesh: &v1::PeersResponse) -> String {
    let ready = mesh.peers.iter().filter(|peer| peer.state == "ready").count();
    match (ready, mesh.peers.len() - ready) {
        (ready, 0) => counted(u32::try_from(ready).unwrap_or(u32::MAX), "node"),
        (ready, others) => format!("{ready} nodes ready, {others} not"),
    }
}

fn placement(model: &v1::ModelStatus) -> String {
    let parts: Vec<_> =
        model.ranges.iter().zip(&model.nodes).map(|(range, node)| format!("{} on {node}", layers(*range))).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn detail(model: &v1::ModelStatus) -> String {
    if model.detail.is_empty() { "not ready".to_owned() } else { model.detail.clone() }
}

fn model_tone(model: &v1::ModelStatus) -> Tone {
    if model.ready { Tone::Good } else { Tone::Unsure }
}

fn or_dash(text: String) -> Cell {
    if text.is_empty() { Cell::new("-", Tone::Faint) } else { text.into() }
}

/// `192.0.2.7:9338` of `/ip4/192.0.2.7/tcp/9338/p2p/…`; another address as it is.
pub(crate) fn host_and_port(address: &str) -> String {
    let parts: Vec<&str> = address.split('/').collect();
    match parts.as_slice() {
        ["", "ip4" | "dns" | "dns4" | "dns6", host, "tcp", port, rest @ ..] if !rest.contains(&"p2p-circuit") => {
            format!("{host}:{port}")
        }
        ["", "ip6", host, "tcp", port, rest @ ..] if !rest.contains(&"p2p-circuit") => format!("[{host}]:{port}"),
        _ => address.to_owned(),
    }
}

fn short(id: &str) -> String {
    let start = id.len().saturating_sub(8);
    format!("…{}", id.get(start..).unwrap_or(id))
}

pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests;
