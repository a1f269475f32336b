use super::*;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn observed(ip: &str) -> Multiaddr {
    format!("/ip4/{ip}/tcp/51234").parse().unwrap()
}

fn members() -> [PeerId; 3] {
    [1, 2, 3].map(|_| PeerId::random())
}

#[test]
fn an_address_that_one_member_reaches_is_good_and_others_come_last() {
    let ([alpha, beta, gamma], now) = (members(), Instant::now());
    let mut reach = Reach::new(9338);
    for (peer, ip, reached) in [(alpha, "192.0.2.7", true), (beta, "192.0.2.7", false), (gamma, "198.51.100.3", false)]
    {
        reach.judge(peer, at(&format!("{ip}:9338")), reached, now);
    }
    let found = reach.found();
    assert_eq!(
        found.iter().map(|one| one.address).collect::<Vec<_>>(),
        ["192.0.2.7:9338", "198.51.100.3:9338"].map(at)
    );
    assert_eq!((found[0].reached_by.len(), found[0].missed_by.len(), found[1].is_reached()), (1, 1, false));

    let own = ["198.51.100.3:9338", "203.0.113.1:9338", "192.0.2.7:9338"].map(at);
    let ranked = ["192.0.2.7:9338", "203.0.113.1:9338", "198.51.100.3:9338"].map(at);
    assert_eq!(rank(&own, &found), ranked, "told to others all the same");
    assert_eq!(rank(&own, &[]), own);
}

#[test]
fn an_address_that_no_interface_has_is_told_once_a_member_came_through() {
    let ([alpha, beta, gamma], now) = (members(), Instant::now());
    let mut reach = Reach::new(9338);
    let own = [at("10.0.0.5:9338")];
    reach.judge(alpha, at("203.0.113.9:9338"), false, now);
    assert_eq!(rank(&own, &reach.found()), own, "the router does not pass it on");
    reach.judge(beta, at("203.0.113.9:9338"), true, now);
    reach.judge(gamma, at("127.0.0.1:9338"), true, now);
    assert_eq!(rank(&own, &reach.found()), ["203.0.113.9:9338", "10.0.0.5:9338"].map(at), "loopback is nobody else's");
    assert!(reach.forget(&beta) && !reach.forget(&beta));
    assert_eq!(rank(&own, &reach.found()), own);
    reach.judge(beta, at("203.0.113.9:9338"), true, now);
    reach.judge(alpha, at("10.0.0.5:9338"), true, now + GOOD_FOR);
    assert_eq!(rank(&own, &reach.found()), own, "that was long ago");
    reach.clear();
    assert!(reach.found().is_empty());
}

#[test]
fn a_member_that_sees_this_node_through_a_relay_says_nothing_of_addresses() {
    let ([relay, alpha, _], mut reach) = (members(), Reach::new(9338));
    let through = paths::circuit(relay, &observed("192.0.2.1"), Some(alpha));
    reach.seen(alpha, &through);
    assert!(reach.seen.is_empty());
    reach.seen(alpha, &observed("192.0.2.7"));
    assert_eq!(reach.seen[&alpha].to_string(), "192.0.2.7");
}
