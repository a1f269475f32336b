//! What a running node finds at itself.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use mesh_chat::{Strategy, TemplateOrigin};
use mesh_types::{ByteSize, ModelView};

use super::{Check, Doctor, Finding, State, host};
use crate::serve::ServedModel;
use crate::settings::GatewaySetting;
use crate::supervisor::ADVICE;

impl Doctor {
    pub(super) async fn examine_node(&self) -> Vec<Finding> {
        let listen = self.mesh.listen_addr();
        let view = self.mesh.view().borrow().clone();
        let (offered, free) = view.local().map(|local| (local.memory, local.memory_free)).unwrap_or_default();
        let (data_dir, device) = (self.settings.data_dir.clone(), self.settings.stage.compute.device.clone());
        let models = self.fleet.served().all();
        let looking = tokio::task::spawn_blocking(move || {
            let mut findings = vec![
                host::disk(&data_dir),
                host::devices(device.as_deref()),
                host::memory(offered, ByteSize(offered.0.saturating_sub(free.0))),
                host::address(listen),
            ];
            for model in models {
                findings.push(file(&model));
                findings.push(template(&model));
            }
            findings
        });
        let mut findings = looking.await.unwrap_or_default();
        findings.extend(self.addresses());
        findings.extend(self.identities());
        findings.push(self.ports(listen));
        findings.extend(self.gateway());
        let rows = view.local().map(|local| local.models.clone()).unwrap_or_default();
        for row in rows.iter().filter(|row| !row.ready) {
            findings.push(self.not_ready(row).await);
        }
        findings
    }

    /// This node's identity, and those of nodes whose data directories were copied.
    fn identities(&self) -> Vec<Finding> {
        let who = format!("node {}, member of mesh {}", self.mesh.local_id(), self.mesh.id());
        let copied = |record: mesh_mesh::PeerRecord| {
            let (name, at) = (record.status.name, record.copied_at.join(" and "));
            let what = format!("two processes use the identity of {name} (at {at}): its data directory was copied");
            let advice = "stop one of the two, remove identity.key from its data directory, and start it again";
            Finding::bad(Check::Identity, name, State::Failure, (what, advice))
        };
        let mut found: Vec<Finding> =
            self.mesh.peers().into_iter().filter(|record| !record.copied_at.is_empty()).map(copied).collect();
        if found.is_empty() {
            found.push(Finding::good(Check::Identity, "", who));
        }
        found
    }

    fn ports(&self, listen: SocketAddr) -> Finding {
        let port = listen.port();
        Finding::good(Check::Ports, listen.to_string(), format!("{port}/tcp and {port}/udp are this node's"))
    }

    fn gateway(&self) -> Option<Finding> {
        let url = self.gateway_url.as_ref()?;
        let wanted = match self.settings.gateway {
            GatewaySetting::Near(addr) if !url.contains(&addr.to_string()) => addr,
            _ => return Some(Finding::good(Check::Ports, url.as_str(), "the gateway listens")),
        };
        let what = format!("another program has the gateway's usual address {wanted}: it is at {url}");
        let advice = "point clients there, or end the other program and start this node again";
        Some(Finding::bad(Check::Ports, url.as_str(), State::Warning, (what, advice)))
    }

    /// A model that does not answer: for want of memory, or of something else.
    async fn not_ready(&self, row: &ModelView) -> Finding {
        let about = row.name.to_string();
        let refused = match self.fleet.plan(row.name.as_str()).await {
            Ok(planned) if planned.asked.is_none() => planned.plan.err().map(|error| error.to_string()),
            _ => None,
        };
        match refused {
            Some(why) => Finding::bad(
                Check::Memory,
                about,
                State::Failure,
                (format!("there is too little memory: {why}"), ADVICE),
            ),
            None => {
                let advice = "`mesh-node plan` shows where it could run, and `mesh-node stages` what is being loaded";
                let what = format!("it does not answer yet: {}", row.detail);
                Finding::bad(Check::Models, about, State::Warning, (what, advice))
            }
        }
    }
}

/// Whether a model's file is still what it was.
fn file(model: &ServedModel) -> Finding {
    let about = model.name.to_string();
    let gone = |path: &Path, why: &str| {
        let what =
            format!("its file {} is {why}: it cannot be loaded again, nor be fetched by other nodes", path.display());
        let advice = "put the file back, or unload the model (`mesh-node unload`)";
        Finding::bad(Check::Models, about.as_str(), State::Failure, (what, advice))
    };
    for file in model.source.files() {
        if let Err(error) = std::fs::metadata(file.path()) {
            let why = if error.kind() == std::io::ErrorKind::NotFound { "gone".to_owned() } else { error.to_string() };
            return gone(file.path(), &why);
        }
    }
    if let Err(error) = model.source.check_unchanged() {
        return gone(model.source.path(), &format!("not what it was ({error})"));
    }
    Finding::good(Check::Models, about, format!("{} is there", model.source.path().display()))
}

/// How a model calls tools.
pub(super) fn template(model: &Arc<ServedModel>) -> Finding {
    let about = model.name.to_string();
    if model.template.origin() == TemplateOrigin::BuiltIn {
        let what =
            format!("it brings no chat template: ChatML is used, which it may not know; tools are {}", strategy(model));
        return Finding::bad(Check::Template, about, State::Warning, (what, "give its own with --chat-template"));
    }
    Finding::good(Check::Template, about, format!("tools are {}", strategy(model)))
}

fn strategy(model: &ServedModel) -> &Strategy {
    &model.capability.strategy
}
