//! What this node tells each peer, and when: its own status whenever it changes, and whom it is connected to.
//!
//! The second is large, and changes with every peer that comes or goes. So a peer hears all of it once, in pieces, and
//! from then on what changed, gathered over two seconds: it is for introductions and for the planner, neither of which
//! is in a hurry. Pure: is told the time.

use std::time::Duration;

use mesh_proto::v1;
use prost::Message as _;
use tokio::time::Instant;

/// Changes of the status within this time of the last go out together.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// The same for changes of links.
const LINKS_DEBOUNCE: Duration = Duration::from_secs(2);
/// Links in one update at most, which keeps it under [`MAX_STATUS`].
const MAX_LINKS: usize = 24;
/// What a status should not exceed, in bytes.
pub(super) const MAX_STATUS: usize = 4096;
/// What is left of each text for people in a status that does.
const SHORT: usize = 60;

/// What there is to tell: the status, and the number of the last change of a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Said {
    /// Without peers.
    pub(super) status: v1::NodeStatus,
    pub(super) links: u64,
}

/// A connected peer as others are told of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Link {
    /// Counts the changes of all links.
    pub(super) version: u64,
    pub(super) to: v1::PeerAddress,
}

/// What one peer has been told.
#[derive(Debug, Default)]
pub(super) struct Teller {
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    sequence: u64,
    links: u64,
    links_at: Instant,
    /// More links were there than an update holds.
    more: bool,
}

impl Teller {
    /// When the next update is due; `None`: there is nothing new.
    pub(super) fn due(&self, said: &Said, now: Instant) -> Option<Instant> {
        let Some(told) = &self.told else { return Some(now) };
        let news = (said.status.sequence != told.sequence).then(|| told.at + DEBOUNCE);
        let pause = if told.more { Duration::ZERO } else { LINKS_DEBOUNCE };
        let links = (said.links != told.links).then(|| told.links_at + pause);
        news.into_iter().chain(links).min()
    }

    /// The number of the last link that was told.
    pub(super) fn links(&self) -> u64 {
        self.told.as_ref().map_or(0, |told| told.links)
    }

    /// The next update. `links` are those after [`Self::links`], in their order.
    pub(super) fn update(&mut self, said: &Said, links: impl Iterator<Item = Link>, now: Instant) -> v1::Update {
        let known = self.told.as_ref().map(|told| told.sequence);
        let news = (known != Some(said.status.sequence)).then(|| said.status.clone());
        let mut last = self.links();
        let mut peers = Vec::new();
        for link in links.take(MAX_LINKS) {
            last = link.version;
            peers.push(link.to);
        }
        let more = peers.len() == MAX_LINKS;
        // The last change may have been that somebody left.
        let links = if more { last } else { last.max(said.links) };
        let links_at = match &self.told {
            Some(told) if peers.is_empty() => told.links_at,
            _ => now,
        };
        self.told = Some(Told { at: now, sequence: said.status.sequence, links, links_at, more });
        v1::Update { status: news, peers }
    }
}

/// Shortens what a status says for people, where it would be too large otherwise.
pub(super) fn fit(status: &mut v1::NodeStatus) {
    if status.encoded_len() <= MAX_STATUS {
        return;
    }
    let texts = status.models.iter_mut().flat_map(|model| [&mut model.detail, &mut model.tools]);
    for text in texts.chain(status.stages.iter_mut().map(|stage| &mut stage.detail)) {
        if let Some((end, _)) = text.char_indices().nth(SHORT) {
            text.truncate(end);
            text.push('…');
        }
    }
    if status.encoded_len() > MAX_STATUS {
        tracing::debug!(bytes = status.encoded_len(), "this node's status is large: it has many models or stages");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(sequence: u64, links: u64) -> Said {
        Said { status: v1::NodeStatus { sequence, ..Default::default() }, links }
    }

    fn link(version: u64) -> Link {
        let to = v1::PeerAddress {
            peer_id: format!("12D3KooW{:044}", version),
            addresses: vec!["/ip4/192.168.100.100/tcp/65535".to_owned(), "/ip4/10.100.100.100/tcp/65535".to_owned()],
            rtt_us: 1_000_000,
            relayed: true,
        };
        Link { version, to }
    }

    #[test]
    fn a_status_goes_out_soon_and_links_together() {
        let (mut teller, now) = (Teller::default(), Instant::now());
        assert_eq!(teller.due(&said(1, 2), now), Some(now));
        let update = teller.update(&said(1, 2), [1, 2].map(link).into_iter(), now);
        assert_eq!((update.status.map(|status| status.sequence), update.peers.len()), (Some(1), 2));
        assert_eq!(teller.due(&said(1, 2), now), None);
        assert_eq!(teller.due(&said(2, 2), now), Some(now + DEBOUNCE));
        assert_eq!(teller.due(&said(1, 3), now), Some(now + LINKS_DEBOUNCE));
        let later = now + DEBOUNCE;
        let update = teller.update(&said(2, 2), std::iter::empty(), later);
        assert!(update.status.is_some() && update.peers.is_empty());
        assert_eq!(teller.due(&said(2, 3), later), Some(now + LINKS_DEBOUNCE), "a status holds no links up");
        let update = teller.update(&said(2, 3), std::iter::once(link(3)), now + LINKS_DEBOUNCE);
        assert!(update.status.is_none() && update.peers.len() == 1);
        assert_eq!(teller.due(&said(2, 3), later), None);
    }

    #[test]
    fn many_links_go_out_in_small_updates() {
        let (mut teller, mut now) = (Teller::default(), Instant::now());
        let (all, mut heard) = ((1..=60).map(link).collect::<Vec<_>>(), Vec::new());
        while let Some(due) = teller.due(&said(1, 60), now) {
            now = due;
            let after = teller.links();
            let update = teller.update(&said(1, 60), all.iter().filter(|link| link.version > after).cloned(), now);
            assert!(update.encoded_len() < MAX_STATUS, "{}", update.encoded_len());
            heard.extend(update.peers);
        }
        assert_eq!(heard, all.into_iter().map(|link| link.to).collect::<Vec<_>>());
    }

    #[test]
    fn a_usual_status_is_small_and_a_wordy_one_is_cut() {
        let model = |words: usize| v1::ModelStatus {
            name: "smollm2-135m-instruct.q4_1".into(),
            digest: vec![7; 32],
            detail: "ü".repeat(words),
            nodes: vec!["a-host-name".into(); 4],
            ranges: vec![v1::LayerRange { start: 10, end: 20 }; 4],
            tools: "native (hermes)".into(),
            ..Default::default()
        };
        let stage = v1::StageStatus { model: "smollm2".into(), detail: "ready".into(), ..Default::default() };
        let status = |words| v1::NodeStatus {
            models: vec![model(words); 8],
            stages: vec![stage.clone(); 8],
            ..Default::default()
        };
        let mut usual = status(20);
        let before = usual.clone();
        fit(&mut usual);
        assert_eq!(usual, before);
        assert!(usual.encoded_len() < MAX_STATUS);
        let mut wordy = status(400);
        fit(&mut wordy);
        assert!(wordy.encoded_len() < MAX_STATUS, "{}", wordy.encoded_len());
        assert!(wordy.models[0].detail.ends_with("ü…"));
    }
}
