//! Whose clock is wrong, judged by how far the peers' clocks are from this one. Pure.

use std::time::Duration;

use super::{Check, Finding, State};

/// Clocks that differ by less agree, in milliseconds: a slow answer and a slow machine may make that much.
const EQUAL: i64 = 3_000;
/// More than this, and tokens expire too early or too late.
const WRONG: i64 = 60_000;
/// 2024-01-01 in milliseconds since 1970: no clock that was ever set shows less.
const BUILT_AFTER: i64 = 1_704_067_200_000;

const SET_IT: &str = "set the clock, and have it kept right (on most systems: `timedatectl set-ntp true`); a join token \
                      that expires is judged by it";

/// What to make of this node's clock, which shows `now`, and of the peers', each by how far it is ahead.
pub(super) fn judge(now: i64, peers: &[(String, i64)]) -> Vec<Finding> {
    if now < BUILT_AFTER {
        let what = "this node's clock was never set: it shows a time before 2024".to_owned();
        return vec![Finding::bad(Check::Clock, "", State::Failure, (what, SET_IT))];
    }
    let off: Vec<&(String, i64)> = peers.iter().filter(|(_, ahead)| ahead.abs() > EQUAL).collect();
    if off.is_empty() {
        let what = match peers.len() {
            0 => "no other node to compare the clock with".to_owned(),
            1 => format!("this clock and that of {} agree", peers[0].0),
            others => format!("this clock and those of {others} other nodes agree"),
        };
        return vec![Finding::good(Check::Clock, "", what)];
    }
    let ahead = off[0].1;
    let alike = off.iter().filter(|(_, other)| (other - ahead).abs() <= EQUAL).count();
    if peers.len() > 1 && alike * 2 > peers.len() {
        let names: Vec<_> = off.iter().map(|(name, _)| name.as_str()).collect();
        let what = format!("this node's clock is {} the clocks of {}", against(-ahead), names.join(", "));
        return vec![Finding::bad(Check::Clock, "", state(ahead), (what, SET_IT))];
    }
    let one = |(name, ahead): &&(String, i64)| {
        let which = if peers.len() == 1 { ": one of the two is wrong" } else { "" };
        let what = format!("the clock of {name} is {} this node's{which}", against(*ahead));
        Finding::bad(Check::Clock, name.as_str(), state(*ahead), (what, SET_IT))
    };
    off.iter().map(one).collect()
}

fn state(ahead: i64) -> State {
    if ahead.abs() > WRONG { State::Failure } else { State::Warning }
}

/// `3 min 20 s ahead of` or `… behind`.
fn against(ahead: i64) -> String {
    let span = crate::admin::show::span(Duration::from_secs(ahead.unsigned_abs().saturating_add(500) / 1000));
    format!("{span} {}", if ahead > 0 { "ahead of" } else { "behind" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn said(peers: &[(&str, i64)]) -> Vec<(State, String)> {
        let peers: Vec<_> = peers.iter().map(|(name, ahead)| ((*name).to_owned(), *ahead)).collect();
        judge(NOW, &peers).into_iter().map(|finding| (finding.state, finding.what)).collect()
    }

    #[test]
    fn the_odd_one_out_is_named() {
        assert_eq!(said(&[("a", 40), ("b", -1900)])[0].0, State::Good);
        let odd = said(&[("a", 0), ("b", 3_600_000), ("c", 10)]);
        assert_eq!(odd, [(State::Failure, "the clock of b is 1 h 0 min ahead of this node's".to_owned())]);
        let own = said(&[("a", 3_600_000), ("b", 3_600_500)]);
        assert_eq!(own, [(State::Failure, "this node's clock is 1 h 0 min behind the clocks of a, b".to_owned())]);
        let either = said(&[("a", -20_000)]);
        assert_eq!(
            either,
            [(State::Warning, "the clock of a is 20 s behind this node's: one of the two is wrong".to_owned())]
        );
        assert_eq!(judge(0, &[])[0].state, State::Failure);
        assert_eq!(judge(NOW, &[])[0].state, State::Good);
    }
}
