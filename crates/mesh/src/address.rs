//! Which of this host's addresses to tell others: those of real interfaces, where others can reach them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use if_addrs::{IfOperStatus, Interface};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// The IP addresses at which a listener on `listen` can be reached from elsewhere. Loopback only where it listens on
/// nothing else, or there is nothing else.
pub fn reachable(listen: IpAddr) -> Vec<IpAddr> {
    if !listen.is_unspecified() {
        return vec![listen];
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the network interfaces");
        Vec::new()
    });
    choose(&interfaces, listen)
}

/// The addresses of this host's interfaces that are up, with the interfaces' names.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let up = interfaces.into_iter().filter(|interface| interface.oper_status != IfOperStatus::Down);
    up.map(|interface| (interface.name.clone(), interface.ip())).collect()
}

/// `ip` and `port` as libp2p writes them.
pub(crate) fn multiaddr(ip: IpAddr, port: u16) -> Multiaddr {
    Multiaddr::empty().with(Protocol::from(ip)).with(Protocol::Tcp(port))
}

/// The IP address and TCP port that a multiaddress begins with.
pub(crate) fn socket_addr(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => IpAddr::V4(ip),
        Protocol::Ip6(ip) => IpAddr::V6(ip),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

fn choose(interfaces: &[Interface], listen: IpAddr) -> Vec<IpAddr> {
    let mut chosen: Vec<IpAddr> =
        interfaces.iter().filter(|interface| is_of_a_network(interface, listen)).map(Interface::ip).collect();
    chosen.dedup();
    if chosen.is_empty() {
        chosen.push(if listen.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    chosen
}

/// Whether other hosts can reach a listener on `listen` at this address of an interface.
pub(crate) fn is_of_a_network(interface: &Interface, listen: IpAddr) -> bool {
    let ip = interface.ip();
    let listens = if listen.is_unspecified() { ip.is_ipv4() == listen.is_ipv4() } else { ip == listen };
    let elsewhere = !ip.is_loopback() && !is_link_local(&ip) && !is_container_bridge(&interface.name);
    listens && elsewhere && interface.oper_status != IfOperStatus::Down
}

/// Networks that exist on this host only: every host of the mesh may have the same one.
fn is_container_bridge(name: &str) -> bool {
    let numbered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    let docker_network =
        name.strip_prefix("br-").is_some_and(|id| id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    docker_network
        || ["docker", "cni", "cni-podman", "podman", "virbr", "lxcbr", "lxdbr", "incusbr"].into_iter().any(numbered)
        || ["docker_gwbridge", "cbr0", "cilium_host", "cilium_net", "flannel.1"].contains(&name)
}

/// Whether it is an address that means something on one link only.
pub(crate) fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use if_addrs::{IfAddr, Ifv4Addr, Ifv6Addr};

    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        let addr = match ip.parse().unwrap() {
            IpAddr::V4(ip) => IfAddr::V4(Ifv4Addr { ip, netmask: Ipv4Addr::BROADCAST, prefixlen: 24, broadcast: None }),
            IpAddr::V6(ip) => IfAddr::V6(Ifv6Addr { ip, netmask: ip, prefixlen: 64, broadcast: None }),
        };
        Interface { name: name.into(), addr, index: None, oper_status: IfOperStatus::Up, is_p2p: false }
    }

    fn chosen(interfaces: &[(&str, &str)], listen: &str) -> Vec<String> {
        let interfaces: Vec<_> = interfaces.iter().map(|(name, ip)| interface(name, ip)).collect();
        choose(&interfaces, listen.parse().unwrap()).iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn real_interfaces_are_advertised() {
        let host = [
            ("lo", "127.0.0.1"),
            ("eth0", "192.0.2.7"),
            ("wlan0", "198.51.100.3"),
            ("br0", "203.0.113.1"),
            ("docker0", "172.17.0.1"),
            ("br-0123456789ab", "172.18.0.1"),
            ("cni0", "10.42.0.1"),
            ("eth0", "169.254.3.4"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::7"),
        ];
        assert_eq!(chosen(&host, "0.0.0.0"), ["192.0.2.7", "198.51.100.3", "203.0.113.1"]);
        assert_eq!(chosen(&host, "::"), ["2001:db8::7"]);
    }

    #[test]
    fn loopback_is_the_last_resort() {
        let host = [("lo", "127.0.0.1"), ("docker0", "172.17.0.1")];
        assert_eq!(chosen(&host, "0.0.0.0"), ["127.0.0.1"]);
        assert!(is_of_a_network(&interface("eth0", "192.0.2.7"), "192.0.2.7".parse().unwrap()));
        assert!(!is_of_a_network(&interface("eth1", "198.51.100.3"), "192.0.2.7".parse().unwrap()), "pinned");
        assert_eq!(reachable("172.17.0.1".parse().unwrap()), ["172.17.0.1".parse::<IpAddr>().unwrap()]);
    }
}
