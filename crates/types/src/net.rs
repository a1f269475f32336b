//! Addresses of hosts.

use std::net::{IpAddr, Ipv6Addr};

/// What stands for the host behind `ip` where attempts are counted: its address, and for IPv6 its network, since one host
/// may have all of a /64. An IPv4 address written as IPv6 counts as IPv4.
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_host_and_an_ipv4_address_is_one() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
