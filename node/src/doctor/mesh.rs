//! What a running node finds between itself and its peers.

use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt as _;
use futures::stream;
use mesh_types::{PeerState, PeerView};

use super::reach::{Both, Way};
use super::{Check, Doctor, Finding, State, clock};

/// Peers that are asked at the same time.
const AT_ONCE: usize = 16;

/// What came of asking one peer.
struct Asked {
    peer: PeerView,
    both: Both,
}

impl Doctor {
    pub(super) async fn examine_peers(&self) -> Vec<Finding> {
        let view = self.mesh.view().borrow().clone();
        let peers: Vec<PeerView> = view.peers.iter().filter(|peer| !peer.local).cloned().collect();
        let (here, away): (Vec<_>, Vec<_>) = peers.into_iter().partition(|peer| peer.state == PeerState::Ready);
        let mut asked: Vec<Asked> = stream::iter(here)
            .map(|peer| async move {
                let both = self.reach_both(&peer).await;
                Asked { peer, both }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        asked.sort_by(|a, b| (&a.peer.name, &a.peer.id).cmp(&(&b.peer.name, &b.peer.id)));
        let clocks: Vec<(String, i64)> =
            asked.iter().filter_map(|one| Some((one.peer.name.clone(), one.both.clock_ahead?))).collect();
        let mut findings = clock::judge(now(), &clocks);
        findings.push(version(view.local(), &asked));
        findings.extend(asked.iter().filter_map(|one| older(view.local(), &one.peer)));
        findings.extend(asked.iter().flat_map(reachability));
        findings.extend(away.iter().map(absent));
        findings
    }
}

/// Milliseconds since 1970 as this machine has it.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn version(local: Option<&PeerView>, asked: &[Asked]) -> Finding {
    let own = local.map_or("", |local| local.version.as_str());
    let same = asked.iter().filter(|one| one.peer.version == own).count();
    let with = match (same, asked.len()) {
        (_, 0) => String::new(),
        (same, all) => format!(", as {same} of {all} other nodes"),
    };
    Finding::good(Check::Version, "", format!("this node is of version {own}{with}"))
}

/// A peer of another version.
fn older(local: Option<&PeerView>, peer: &PeerView) -> Option<Finding> {
    let own = &local?.version;
    let (theirs, ours) = (numbers(&peer.version), numbers(own));
    if theirs == ours {
        return None;
    }
    let (old, new) = if theirs < ours { (peer.name.as_str(), own) } else { ("this node", &peer.version) };
    let what =
        format!("{} is of version {}, this node of version {own}: {old} is the older one", peer.name, peer.version);
    let advice = format!("update {old} to {new}");
    Some(Finding { advice, ..Finding::bad(Check::Version, peer.name.as_str(), State::Warning, (what, "")) })
}

fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

fn absent(peer: &PeerView) -> Finding {
    if peer.state == PeerState::OtherVersion {
        let what =
            format!("a node of another version, which speaks {}, wants to connect and is left out", peer.version);
        let advice = "update the older one of the two";
        return Finding::bad(Check::Version, peer.name.as_str(), State::Warning, (what, advice));
    }
    let (what, state) = match peer.state {
        PeerState::Joining => ("it is connected and has not said yet what it offers", State::Warning),
        PeerState::Leaving => ("it is leaving the mesh", State::Warning),
        _ => ("the connection to it was lost within the last minute", State::Warning),
    };
    let advice = "look at its own log, and run `mesh-node doctor` there";
    Finding::bad(Check::Reachability, peer.name.as_str(), state, (what.to_owned(), advice))
}

/// Who of the two can open connections to the other, for the mesh (TCP) and for stages (UDP).
fn reachability(asked: &Asked) -> Vec<Finding> {
    let Asked { peer, both } = asked;
    let name = peer.name.as_str();
    let Some((there, back)) = both.ways() else {
        let what = format!("it is connected, and cannot be asked whether it reaches this node: {}", both.unasked());
        return vec![match both.there.tcp.failed() {
            None => Finding::good(Check::Reachability, name, what),
            Some(why) => {
                let what =
                    format!("this node cannot open connections to {name} ({why}); {name} opened theirs, and {what}");
                Finding::bad(Check::Reachability, name, State::Warning, (what, "look from there, too"))
            }
        }];
    };
    let mesh = one_protocol(name, "tcp", (&there.tcp, &back.tcp));
    // Who takes no stages has no such socket.
    let takes_stages = !peer.stage_addresses.is_empty();
    let stages = takes_stages.then(|| one_protocol(name, "udp", (&there.udp, &back.udp)));
    let mut findings: Vec<Finding> = [Some(mesh), stages].into_iter().flatten().filter_map(Result::err).collect();
    if findings.is_empty() {
        let both = if takes_stages { "tcp and udp" } else { "tcp" };
        findings.push(Finding::good(
            Check::Reachability,
            name,
            format!("each can open connections to the other, {both}"),
        ));
    }
    findings
}

/// `Err` is what is wrong with the ways to and from `name`.
fn one_protocol(name: &str, protocol: &str, (there, back): (&Way, &Way)) -> Result<(), Finding> {
    let purpose = if protocol == "udp" { "stages" } else { "the mesh" };
    let port =
        |way: &Way| way.port().map_or_else(|| "its --listen port".to_owned(), |port| format!("{port}/{protocol}"));
    let bad = |state, what: String, advice: String| {
        Err(Finding { advice, ..Finding::bad(Check::Reachability, name, state, (what, "")) })
    };
    let open = |whose: &str, way: &Way| {
        format!(
            "let {} in through the firewall of {whose}, and have it listen on an interface that the other reaches (--listen)",
            port(way)
        )
    };
    match (there.failed(), back.failed()) {
        (None, None) => Ok(()),
        (Some(why), None) => bad(
            State::Warning,
            format!(
                "one way only: {name} reaches this node, this node cannot reach {name} for {purpose} over {protocol} ({why})"
            ),
            open(name, there),
        ),
        (None, Some(why)) => bad(
            State::Warning,
            format!(
                "one way only: this node reaches {name}, {name} cannot reach this node for {purpose} over {protocol} ({why})"
            ),
            open("this node", back),
        ),
        (Some(there_why), Some(back_why)) => {
            let state = if protocol == "udp" { State::Failure } else { State::Warning };
            bad(
                state,
                format!(
                    "blocked: neither reaches the other for {purpose} over {protocol} (to {name}: {there_why}; back: {back_why})"
                ),
                format!("let {} in through the firewall of one of the two at least", port(there)),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.3"));
        assert_eq!(numbers("1.2.3-rc.1"), numbers("1.2.3"));
    }
}
