//! What members have found of this node's addresses since it runs (AutoNAT).

use mesh_mesh::{AddressReach, PeerRecord};
use mesh_types::PeerId;

use super::{Check, Doctor, Finding, State};

/// Members that are named in a sentence.
const MAX_NAMES: usize = 3;

impl Doctor {
    /// A finding for each address that members have tried.
    pub(super) fn addresses(&self) -> Vec<Finding> {
        let records = self.mesh.peers();
        let own = mesh_mesh::advertised(self.mesh.listen_addr().ip());
        let found = records.iter().filter(|record| record.local).flat_map(|record| &record.reach);
        found.map(|found| judge(found, own.contains(&found.address.ip()), &records)).collect()
    }
}

fn judge(found: &AddressReach, is_own: bool, records: &[PeerRecord]) -> Finding {
    let about = found.address.to_string();
    let (reached, missed) = (names(&found.reached_by, records), names(&found.missed_by, records));
    if !found.is_reached() {
        let what = format!("others are told this address last: no member that tried it came through ({missed})");
        let port = found.address.port();
        let advice = format!(
            "let {port}/tcp in through this machine's firewall, or have the router pass it on; until then others reach \
             this node where it opens the connection, or through members"
        );
        return Finding { advice, ..Finding::bad(Check::Addresses, about, State::Warning, (what, "")) };
    }
    let foreign = if is_own { "" } else { ", which no interface of this machine has: others are told it" };
    let but = match missed.as_str() {
        "" => String::new(),
        missed => format!("; not by {missed}, which may be on another network"),
    };
    Finding::good(Check::Addresses, about, format!("reached by {reached} here{foreign}{but}"))
}

/// The members' names.
fn names(ids: &[PeerId], records: &[PeerRecord]) -> String {
    let name = |id: &PeerId| {
        let record = records.iter().find(|record| record.status.peer_id == id.as_str());
        record
            .map(|record| record.status.name.clone())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| id.to_string())
    };
    let mut names: Vec<String> = ids.iter().take(MAX_NAMES).map(name).collect();
    if ids.len() > MAX_NAMES {
        names.push(format!("{} more", ids.len() - MAX_NAMES));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_proto::v1;
    use mesh_types::PeerState;

    use super::*;

    fn record(name: &str) -> PeerRecord {
        PeerRecord {
            status: v1::NodeStatus { peer_id: format!("id-{name}"), name: name.into(), ..Default::default() },
            state: PeerState::Ready,
            age: Duration::ZERO,
            local: false,
            copied_at: Vec::new(),
            relay: None,
            reach: Vec::new(),
        }
    }

    #[test]
    fn an_address_is_bad_where_nobody_comes_through() {
        let records = ["alpha", "beta"].map(record);
        let ids = |names: &[&str]| names.iter().map(|name| PeerId::new(format!("id-{name}"))).collect();
        let found = |reached: &[&str], missed: &[&str], is_own| {
            let address = "192.0.2.7:9338".parse().unwrap();
            judge(&AddressReach { address, reached_by: ids(reached), missed_by: ids(missed) }, is_own, &records)
        };
        let all = found(&["alpha", "beta"], &[], true);
        assert_eq!((all.state, all.what.as_str()), (State::Good, "reached by alpha and beta here"));
        let some = found(&["alpha"], &["beta"], false);
        assert_eq!(some.state, State::Good);
        assert!(
            some.what.contains("no interface") && some.what.ends_with("not by beta, which may be on another network")
        );
        let none = found(&[], &["a", "b", "alpha", "beta"], true);
        assert_eq!(none.state, State::Warning);
        assert!(none.what.ends_with("(id-a, id-b, alpha and 1 more)") && none.advice.contains("let 9338/tcp in"));
    }
}
