use serde_json::json;

use super::super::json;
use super::*;

fn range(start: u32, end: u32) -> v1::LayerRange {
    v1::LayerRange { start, end }
}

fn mesh() -> v1::PeersResponse {
    let model = v1::ModelStatus {
        name: "m".into(),
        ready: true,
        nodes: vec!["alpha".into(), "beta".into()],
        ranges: vec![range(0, 5), range(5, 9)],
        ..Default::default()
    };
    let stage = |layers| v1::StageStatus { model: "m".into(), layers: Some(layers), ..Default::default() };
    let alpha = v1::NodeStatus {
        name: "alpha".into(),
        peer_id: "12D3KooWabcdefgh".into(),
        addresses: vec!["/ip4/192.0.2.7/tcp/9338/p2p/12D3KooWabcdefgh".into()],
        models: vec![model],
        stages: vec![stage(range(0, 5))],
        peers: vec![v1::PeerAddress { peer_id: "b".into(), rtt_us: 1500, ..Default::default() }],
        ..Default::default()
    };
    let beta = v1::NodeStatus {
        name: "beta".into(),
        peer_id: "b".into(),
        draining: true,
        stages: vec![stage(range(5, 9))],
        ..Default::default()
    };
    let peer = |status, local| v1::Peer {
        status: Some(status),
        state: "ready".into(),
        age_ms: 1,
        local,
        ..Default::default()
    };
    v1::PeersResponse { mesh_id: "x".into(), peers: vec![peer(alpha, true), peer(beta, false)], ..Default::default() }
}

#[test]
fn json_and_tables_say_where_layers_run() {
    assert!(models(&mesh(), &Screen::default()).contains("0-4 on alpha, 5-8 on beta"));
    assert_eq!(json::models(&mesh())["models"][0]["stages"][1], json!({"layers": "5-8", "node": "beta"}));
    assert_eq!(json::peers(&mesh())["peers"][0]["state"], "ready");
    assert_eq!(json::peers(&mesh())["peers"][1]["round_trip_us"], 1500);
    assert_eq!(json::stages(&mesh())["stages"][1]["node"], "beta");
}

#[test]
fn a_peer_shows_how_far_it_is_and_whether_it_is_drained() {
    let text = peers(&mesh(), &Screen::default());
    let beta = text.lines().find(|line| line.starts_with("beta")).unwrap();
    assert!(beta.contains("ready, draining") && beta.contains("1.5 ms"), "{text}");
    assert!(text.contains("192.0.2.7:9338") && !text.contains("/ip4/"), "{text}");
}

#[test]
fn every_table_fits_its_screen() {
    for width in [60, 80, 120] {
        let screen = Screen::of_width(width);
        for text in
            [status(&mesh(), &screen), peers(&mesh(), &screen), models(&mesh(), &screen), stages(&mesh(), &screen)]
        {
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
    }
}

#[test]
fn addresses_are_shown_as_people_write_them() {
    assert_eq!(host_and_port("/ip6/2001:db8::7/tcp/1/p2p/x"), "[2001:db8::7]:1");
    assert_eq!(host_and_port("/dns4/host.example/tcp/2"), "host.example:2");
    let relayed = "/ip4/192.0.2.1/tcp/1/p2p/r/p2p-circuit";
    assert_eq!(host_and_port(relayed), relayed);
}

#[test]
fn an_address_shows_who_comes_through() {
    let mut mesh = mesh();
    let reach = |reached: &[&str], missed: &[&str]| {
        let texts = |ids: &[&str]| ids.iter().map(ToString::to_string).collect();
        v1::AddressReach { address: "192.0.2.7:9338".into(), reached_by: texts(reached), missed_by: texts(missed) }
    };
    assert!(status(&mesh, &Screen::default()).contains("192.0.2.7:9338\n"));
    mesh.peers[0].reach = vec![reach(&["b"], &["c", "d"])];
    let text = status(&mesh, &Screen::default());
    assert!(text.contains("192.0.2.7:9338 (reached by 1 of 3 that tried)"), "{text}");
    assert_eq!(json::peers(&mesh)["peers"][0]["reach"][0]["missed_by"], json!(["c", "d"]));
}
