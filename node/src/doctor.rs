//! What is wrong with a node or its mesh, and what to do about it.
//!
//! Owns the findings and how each is arrived at. A running node examines itself and asks its peers ([`Doctor`]); where
//! none runs, what would be started is examined ([`setup`]). Mends nothing. Start with [`Doctor::examine`].

use std::fmt;
use std::sync::Arc;

use mesh_mesh::Mesh;
use mesh_proto::v1;
use mesh_transport::Endpoint;

use crate::fleet::Fleet;
use crate::settings::Settings;

mod addresses;
mod clock;
mod host;
mod mesh;
mod node;
mod reach;
pub mod setup;

pub use reach::probe;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// Of whom or what: a peer, a model, an address; empty: of the node as a whole.
    pub about: String,
    /// How it is.
    pub state: State,
    /// What was found, in a sentence.
    pub what: String,
    /// What to do about it; empty where nothing is to be done.
    pub advice: String,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The data directory and the key in it.
    Identity,
    /// A join token.
    Token,
    /// The sockets that others reach the node at.
    Ports,
    /// Which addresses it listens on, and tells others.
    Addresses,
    /// Its clock, against those of its peers.
    Clock,
    /// Its version, against theirs.
    Version,
    /// What it offers, against what there is and what its models need.
    Memory,
    /// The disk of its data directory.
    Disk,
    /// What computes.
    Devices,
    /// The files of its models.
    Models,
    /// How its models' chat templates call tools.
    Template,
    /// Who can open connections to whom.
    Reachability,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// As it should be.
    Good,
    /// It works, and could be better or stop working.
    Warning,
    /// Something does not work.
    Failure,
}

impl Finding {
    /// All is well.
    pub fn good(check: Check, about: impl Into<String>, what: impl Into<String>) -> Self {
        Self { check, about: about.into(), state: State::Good, what: what.into(), advice: String::new() }
    }

    /// All is not well: `why` is what was found and what to do about it.
    pub fn bad(check: Check, about: impl Into<String>, state: State, why: (String, &str)) -> Self {
        Self { check, about: about.into(), state, what: why.0, advice: why.1.to_owned() }
    }
}

impl From<Finding> for v1::Finding {
    fn from(finding: Finding) -> Self {
        Self {
            check: finding.check.to_string(),
            about: finding.about,
            state: finding.state.to_string(),
            what: finding.what,
            advice: finding.advice,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::Token => "token",
            Self::Ports => "ports",
            Self::Addresses => "addresses",
            Self::Clock => "clock",
            Self::Version => "version",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Devices => "devices",
            Self::Models => "models",
            Self::Template => "template",
            Self::Reachability => "reachability",
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        })
    }
}

/// Examines a running node from within.
#[derive(Clone)]
pub struct Doctor {
    mesh: Mesh,
    endpoint: Endpoint,
    fleet: Fleet,
    settings: Arc<Settings>,
    gateway_url: Option<String>,
}

impl Doctor {
    /// A doctor for the node that is made of these.
    pub fn new(
        mesh: Mesh,
        endpoint: Endpoint,
        fleet: Fleet,
        (settings, gateway_url): (Arc<Settings>, Option<String>),
    ) -> Self {
        Self { mesh, endpoint, fleet, settings, gateway_url }
    }

    /// Everything that can be found out, in the order of the checks. Takes a few seconds where peers cannot be reached.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn examine(&self) -> Vec<Finding> {
        let (mut findings, of_peers) = tokio::join!(self.examine_node(), self.examine_peers());
        findings.extend(of_peers);
        // Stable: what belongs to one check stays in its order.
        findings.sort_by_key(|finding| finding.check);
        findings
    }
}
