//! The planner against the rules, against a search of everything on small inputs, and on random meshes.

use std::cmp::Ordering;

use mesh_types::{ByteSize, LayerRange, MeshView, PeerState, PeerView};
use proptest::prelude::*;

use super::*;
use crate::placement::tests::peer;

const MIB: u64 = 1 << 20;
/// Speeds of a slow, a usual and a fast node.
const SLOW: Speed = Speed { decode: 2_000 * MIB, prefill: 20_000 * MIB };
const USUAL: Speed = Speed { decode: 10_000 * MIB, prefill: 100_000 * MIB };
const FAST: Speed = Speed { decode: 100_000 * MIB, prefill: 1_000_000 * MIB };

/// 32 layers of 100 MiB with 10 MiB of cache each, a head of `head` MiB, 300 MiB of buffers a stage.
fn shape(head: u64) -> ModelShape {
    let layers = [LayerCost { weights: 100 * MIB, cache: 10 * MIB }; 32];
    ModelShape::new(&layers, Parts { head: head * MIB, buffers: 300 * MIB, ..Parts::default() }, (1..32).collect())
}

fn node(name: &str, mib: u64, speed: Speed) -> PeerView {
    PeerView { memory: ByteSize(mib * MIB), memory_free: ByteSize(mib * MIB), speed: Some(speed), ..peer(name) }
}

/// The first node holds the model.
fn mesh(peers: &[PeerView]) -> Vec<Host> {
    let mut peers = peers.to_vec();
    peers[0].local = true;
    let own = peers[0].memory_free;
    hosts(&MeshView { peers }, own)
}

fn placed(shape: &ModelShape, hosts: &[Host]) -> Vec<String> {
    let plan = plan(shape, hosts).unwrap();
    let text = |stage: CandidateStage| format!("{} {}", stage.stage.name, stage.stage.layers);
    plan.chosen().stages.clone().into_iter().map(text).collect()
}

fn reason(plan: &Plan, name: &str) -> String {
    let report = plan.hosts.iter().find(|report| report.name == name).unwrap();
    report.left_out.clone().unwrap_or_else(|| format!("it takes {}", report.layers.unwrap()))
}

#[test]
fn a_model_that_fits_stays_whole_and_the_others_hear_why() {
    let hosts = mesh(&[node("holder", 4000, SLOW), node("gpu", 90_000, FAST)]);
    assert_eq!(placed(&shape(100), &hosts), ["holder 0-31"]);
    let plan = plan(&shape(100), &hosts).unwrap();
    assert_eq!(reason(&plan, "gpu"), "it is not needed: the model fits on holder alone");
    assert_eq!(plan.candidates.len(), 2, "the other way is shown: {plan:?}");
    assert!(plan.candidates[1].decode > plan.chosen().decode);
}

#[test]
fn fewest_nodes_then_speed() {
    let hosts = mesh(&[node("a", 2200, USUAL), node("b", 2200, USUAL), node("c", 2200, USUAL), node("d", 2200, USUAL)]);
    assert_eq!(placed(&shape(0), &hosts), ["a 0-15", "b 16-31"]);
    let plan = plan(&shape(0), &hosts).unwrap();
    assert_eq!(reason(&plan, "c"), "it is not needed: 3.1 tok/s with it, 3.1 without");
}

#[test]
fn two_more_nodes_may_gain_together_what_one_alone_does_not() {
    let layers = [(1, 0), (2, 1), (2, 0), (3, 2)]
        .map(|(weights, cache)| LayerCost { weights: weights * MIB, cache: cache * MIB });
    let parts = Parts { first: 2 * MIB, whole: 2 * MIB, head: 2 * MIB, logits: MIB, buffers: 0 };
    let shape = ModelShape::new(&layers, parts, vec![1, 2, 3]);
    let nodes = [("a", 17, 8, 0), ("b", 18, 11, 7), ("c", 3, 18, 23), ("d", 21, 11, 38)];
    let peers = nodes.map(|(name, mib, speed, ms)| {
        let mut peer = node(name, mib, Speed { decode: speed * MIB, prefill: 10 * speed * MIB });
        peer.links = vec![mesh_types::LinkView { peer: "id-a".into(), rtt_us: ms * 1000, relayed: false }];
        peer
    });
    let plan = plan(&shape, &mesh(&peers)).unwrap();
    let gain = |stages: usize| {
        let way = plan.candidates.iter().find(|way| way.stages.len() == stages).unwrap();
        plan.chosen().decode / way.decode
    };
    assert_eq!(placed(&shape, &mesh(&peers)), ["a 0-0", "b 1-1", "c 2-2", "d 3-3"]);
    assert!(gain(2) > WORTH && (1.0..WORTH).contains(&gain(3)), "{} and {}", gain(2), gain(3));
}

#[test]
fn the_head_counts_as_the_layers_that_it_weighs() {
    let hosts = mesh(&[node("a", 3000, USUAL), node("b", 3000, USUAL)]);
    assert_eq!(placed(&shape(0), &hosts), ["a 0-15", "b 16-31"]);
    assert_eq!(placed(&shape(800), &hosts), ["a 0-19", "b 20-31"], "four layers' worth moves to the first");
}

#[test]
fn a_slow_node_is_left_out_where_the_others_are_faster_without() {
    let peers = [node("a", 2200, USUAL), node("b", 1500, USUAL), node("c", 1500, USUAL), node("slow", 9000, SLOW)];
    assert_eq!(placed(&shape(0), &mesh(&peers)), ["a 0-11", "b 12-21", "c 22-31"]);
    let plan = plan(&shape(0), &mesh(&peers)).unwrap();
    let reason = reason(&plan, "slow");
    assert!(reason.starts_with("it would slow the model down: "), "{reason}");
    assert_eq!(
        placed(&shape(0), &mesh(&[peers[0].clone(), peers[3].clone()])),
        ["a 0-16", "slow 17-31"],
        "else it is used"
    );
}

#[test]
fn the_fast_node_takes_what_it_can_hold() {
    let hosts = mesh(&[node("slow", 3000, SLOW), node("gpu", 90_000, FAST)]);
    assert_eq!(placed(&shape(0), &hosts), ["slow 0-0", "gpu 1-31"]);
}

#[test]
fn who_can_not_take_a_stage_is_named_with_the_reason() {
    let mut gateway = node("gateway", 9000, FAST);
    gateway.stage_addresses.clear();
    let (mut leaving, mut drained) = (node("leaving", 9000, FAST), node("drained", 9000, FAST));
    leaving.state = PeerState::Leaving;
    drained.draining = true;
    let peers = [node("a", 2200, USUAL), node("b", 2200, USUAL), node("tiny", 350, USUAL), gateway, leaving, drained];
    let plan = plan(&shape(0), &mesh(&peers)).unwrap();
    assert_eq!(reason(&plan, "b"), "it takes 16-31");
    assert_eq!(reason(&plan, "tiny"), "it has 350.0 MiB, and the smallest stage of this model takes 410.0 MiB");
    assert_eq!(reason(&plan, "gateway"), "it takes no stages (a gateway)");
    assert_eq!(reason(&plan, "leaving"), "it is leaving the mesh");
    assert_eq!(reason(&plan, "drained"), "it is being drained");
}

#[test]
fn a_model_that_fits_nowhere_is_told_in_numbers() {
    let mut gone = node("gone", 9000, FAST);
    gone.state = PeerState::Gone;
    let error = plan(&shape(100), &mesh(&[node("a", 1000, USUAL), node("b", 400, USUAL), gone])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it takes 3.8 GiB on one node and 1.4 GiB are offered: a: it has 1000.0 MiB; b: it has 400.0 MiB, and the \
         smallest stage of this model takes 410.0 MiB; gone: its connection is lost"
    );
    let whole = ModelShape::new(&[LayerCost { weights: 100 * MIB, cache: 0 }; 4], Parts::default(), Vec::new());
    let error = plan(&whole, &mesh(&[node("a", 200, USUAL), node("b", 4000, USUAL)])).unwrap_err();
    assert!(error.to_string().contains("the model cannot be split"), "{error}");
}

#[test]
fn only_allowed_cuts_are_made() {
    let layers = [LayerCost { weights: 100 * MIB, cache: 0 }; 30];
    let parts = Parts::default();
    let shape = ModelShape::new(&layers, parts, vec![4, 8, 12, 24]);
    let hosts = mesh(&[node("a", 1900, USUAL), node("b", 1900, USUAL)]);
    assert_eq!(placed(&shape, &hosts), ["a 0-11", "b 12-29"]);
}

#[test]
fn stages_of_a_size_that_is_not_allowed_are_not_made() {
    let layers = [LayerCost { weights: 100 * MIB, cache: 0 }; 61];
    let shape =
        |avoided: &[u32]| ModelShape::new(&layers, Parts::default(), (1..61).collect()).without_stages_of(avoided);
    let hosts = |a, b| mesh(&[node("a", a, USUAL), node("b", b, USUAL)]);
    assert_eq!(placed(&shape(&[]), &hosts(3100, 3000)), ["a 0-30", "b 31-60"]);
    assert_eq!(placed(&shape(&[30, 31]), &hosts(3300, 3300)), ["a 0-31", "b 32-60"]);
    assert_eq!(placed(&shape(&[27]), &hosts(2700, 3500)), ["a 0-25", "b 26-60"]);
    assert_eq!(placed(&shape(&[35]), &hosts(2700, 3500)), ["a 0-26", "b 27-60"]);
    assert!(plan(&shape(&[26, 27]), &hosts(2700, 3500)).is_err(), "too many are left for the other");
    // The whole model may have as many layers as it has.
    assert_eq!(placed(&shape(&[61]), &hosts(9000, 9000)), ["a 0-60"]);
    let three = mesh(&[node("a", 2700, USUAL), node("b", 2700, USUAL), node("c", 2700, USUAL)]);
    let plan = plan(&shape(&[26, 27, 48]), &three).unwrap();
    assert!(plan.chosen().stages.iter().all(|stage| shape(&[26, 27, 48]).may_be_stage(stage.stage.layers)));
}

#[test]
fn a_chain_goes_on_to_the_nearest_and_the_way_counts() {
    let link = |name: &str, ms: u32| mesh_types::LinkView {
        peer: format!("id-{name}").as_str().into(),
        rtt_us: ms * 1000,
        relayed: false,
    };
    let mut a = node("a", 1700, USUAL);
    a.links = vec![link("far", 40), link("near", 4), link("beyond", 44)];
    let mut far = node("far", 1700, USUAL);
    far.links = vec![link("beyond", 4), link("near", 40)];
    let near = node("near", 1300, USUAL);
    let mut beyond = node("beyond", 1700, USUAL);
    beyond.links = vec![link("near", 44)];
    let hosts = mesh(&[a, beyond, far, near]);
    assert_eq!(placed(&shape(0), &hosts)[1].split(' ').next(), Some("near"));
    let plan = plan(&shape(0), &hosts).unwrap();
    assert_eq!(plan.chosen().stages[2].stage.name, "far", "a short way home");
    // 320 ms of work; 4, 40 and 40 ms of round trips, half of each.
    let expected = 1.0 / (0.320 + 0.042 + 3.0 * HOP);
    assert!((plan.chosen().decode - expected).abs() < 0.01, "{} is not {expected}", plan.chosen().decode);
}

#[test]
fn no_stage_is_put_behind_a_relay() {
    let relayed =
        |name: &str| mesh_types::LinkView { peer: format!("id-{name}").as_str().into(), rtt_us: 500, relayed: true };
    let mut head = node("a", 1900, USUAL);
    head.links = vec![relayed("far")];
    let hosts = mesh(&[head, node("far", 9000, USUAL), node("near", 4000, USUAL)]);
    let stages = placed(&shape(0), &hosts);
    assert!(stages.iter().all(|stage| !stage.starts_with("far")), "{stages:?}");
    assert!(hosts[1].unfit.as_deref().is_some_and(|why| why.contains("relayed path")), "{:?}", hosts[1]);

    // Two workers that only the head reaches directly are never neighbours in a chain.
    let mut b = node("b", 1700, USUAL);
    b.links = vec![relayed("c")];
    let three = |c: mesh_types::PeerView| mesh(&[node("a", 1700, USUAL), b.clone(), c]);
    assert!(plan(&shape(0), &three(node("c", 1700, USUAL))).is_err());
    b.links.clear();
    let three = mesh(&[node("a", 1700, USUAL), b, node("c", 1700, USUAL)]);
    assert_eq!(placed(&shape(0), &three).len(), 3);
}

#[test]
fn what_runs_can_be_compared() {
    let hosts = mesh(&[node("a", 2200, USUAL), node("b", 2200, USUAL)]);
    let plan = plan(&shape(0), &hosts).unwrap();
    assert_eq!(predict(&shape(0), &hosts, &plan.chosen().placement()).as_ref(), Some(plan.chosen()));
    assert_eq!(predict(&shape(0), &hosts[..1], &plan.chosen().placement()), None);
}

#[test]
fn dozens_of_nodes_are_planned_in_no_time() {
    let layers = [LayerCost { weights: 100 * MIB, cache: 10 * MIB }; 126];
    let shape = ModelShape::new(&layers, Parts { buffers: 300 * MIB, ..Parts::default() }, (1..126).collect());
    let peers: Vec<_> = (0..60).map(|n| node(&format!("n{n:02}"), 1500 + 37 * (n % 11), USUAL)).collect();
    let hosts = mesh(&peers);
    let plan = plan(&shape, &hosts).unwrap();
    assert!(plan.chosen().stages.len() <= 12, "{} stages", plan.chosen().stages.len());
    let ranges: Vec<_> = plan.chosen().stages.iter().map(|stage| stage.stage.layers).collect();
    assert_eq!(crate::placement::check(126, &ranges), Ok(()));
}

/// The tokens a second of the best way there is for one set of hosts in one order, by trying all cuts.
fn exhaustive(shape: &ModelShape, hosts: &[Host], chain: &[usize]) -> bool {
    fn fits(shape: &ModelShape, hosts: &[Host], chain: &[usize], start: u32) -> bool {
        let Some((first, rest)) = chain.split_first() else { return false };
        let ends = shape.cuts().iter().copied().chain([shape.n_layer()]);
        ends.filter_map(|end| LayerRange::new(start, end))
            .filter(|layers| shape.may_be_stage(*layers) && shape.memory(*layers) <= hosts[*first].memory)
            .any(|layers| match rest {
                [] => layers.end() == shape.n_layer(),
                rest => layers.end() < shape.n_layer() && fits(shape, hosts, rest, layers.end()),
            })
    }
    fits(shape, hosts, chain, 0)
}

/// Whether any ordered set of hosts that begins with the holder can hold the model.
fn any_way(shape: &ModelShape, hosts: &[Host]) -> bool {
    fn extend(shape: &ModelShape, hosts: &[Host], chain: &mut Vec<usize>) -> bool {
        if exhaustive(shape, hosts, chain) {
            return true;
        }
        for at in 1..hosts.len() {
            if !chain.contains(&at) {
                chain.push(at);
                if extend(shape, hosts, chain) {
                    return true;
                }
                chain.pop();
            }
        }
        false
    }
    extend(shape, hosts, &mut vec![0])
}

fn any_shape(layers: usize) -> impl Strategy<Value = ModelShape> {
    let layer =
        (1..4_u64, 0..3_u64).prop_map(|(weights, cache)| LayerCost { weights: weights * MIB, cache: cache * MIB });
    let parts = (0..3_u64, 0..3_u64, 0..6_u64, 0..3_u64, 0..3_u64).prop_map(|(first, whole, head, logits, buffers)| {
        Parts { first: first * MIB, whole: whole * MIB, logits: logits * MIB, head: head * MIB, buffers: buffers * MIB }
    });
    let cuts = proptest::collection::vec(1..layers.max(2) as u32, 0..layers);
    let avoided = proptest::collection::vec(1..9_u32, 0..3);
    (proptest::collection::vec(layer, layers), parts, cuts, avoided)
        .prop_map(|(layers, parts, cuts, avoided)| ModelShape::new(&layers, parts, cuts).without_stages_of(&avoided))
}

fn any_mesh(nodes: usize) -> impl Strategy<Value = Vec<Host>> {
    let one = (0..24_u64, 1..20_u64, 1..40_u32);
    proptest::collection::vec(one, 1..=nodes).prop_map(|nodes| {
        let peers: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(n, (mib, speed, rtt))| {
                let speed = Speed { decode: speed * MIB, prefill: 10 * speed * MIB };
                let mut peer = node(&format!("n{n}"), *mib, speed);
                peer.links = vec![mesh_types::LinkView { peer: "id-n0".into(), rtt_us: rtt * 1000, relayed: false }];
                peer
            })
            .collect();
        mesh(&peers)
    })
}

/// More nodes than the fewest are taken where they gain a tenth over those; of ways with more nodes still, none would
/// gain a tenth over the chosen one.
fn gains_enough(plan: &Plan, other: &Candidate) -> bool {
    let (chosen, fewest) = (plan.chosen(), plan.candidates.iter().min_by_key(|way| way.stages.len()).unwrap());
    match other.stages.len().cmp(&chosen.stages.len()) {
        Ordering::Less => chosen.decode > fewest.decode * WORTH && chosen.decode > other.decode,
        Ordering::Equal => true,
        Ordering::Greater => chosen.stages.len() == 1 || other.decode <= chosen.decode * WORTH,
    }
}

proptest! {
    #[test]
    fn what_is_placed_holds_and_what_is_not_can_not_be(shape in (1..9_usize).prop_flat_map(any_shape), hosts in any_mesh(4)) {
        match plan(&shape, &hosts) {
            Ok(plan) => {
                for candidate in &plan.candidates {
                    let ranges: Vec<_> = candidate.stages.iter().map(|stage| stage.stage.layers).collect();
                    prop_assert_eq!(crate::placement::check(shape.n_layer(), &ranges), Ok(()));
                    prop_assert!(candidate.stages.iter().all(|stage| stage.needs <= stage.has), "{:?}", candidate);
                    prop_assert!(ranges[1..].iter().all(|layers| shape.cuts().contains(&layers.start())));
                    prop_assert!(ranges.iter().all(|layers| shape.may_be_stage(*layers)), "{:?}", candidate);
                    prop_assert!(candidate.stages[0].stage.local);
                    prop_assert!(gains_enough(&plan, candidate), "{:?}", plan);
                }
                if hosts[0].memory >= shape.memory(shape.all().unwrap()) {
                    prop_assert_eq!(plan.chosen().stages.len(), 1, "solo if it fits");
                }
                for report in &plan.hosts {
                    prop_assert_eq!(report.left_out.is_some(), report.layers.is_none(), "{:?}", report);
                }
            }
            Err(error) => prop_assert!(!any_way(&shape, &hosts), "{} although there is a way", error),
        }
    }

    #[test]
    fn equal_nodes_get_equal_work(layers in 4..80_usize, count in 2..8_usize) {
        let shape = ModelShape::new(&vec![LayerCost { weights: MIB, cache: 0 }; layers], Parts::default(), (1..layers as u32).collect());
        let each = layers.div_ceil(count) as u64;
        let peers: Vec<_> = (0..count).map(|n| node(&format!("n{n}"), each, USUAL)).collect();
        let plan = plan(&shape, &mesh(&peers)).unwrap();
        let most = plan.chosen().stages.iter().map(|stage| stage.stage.layers.len()).max();
        let stages = plan.chosen().stages.len();
        prop_assert_eq!(most, Some(layers.div_ceil(stages) as u32));
    }
}
