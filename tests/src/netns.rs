//! Hosts that are network namespaces, and the local networks between them. Takes root and iproute2.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::process::{Node, Process, binary};

/// Networks that this process has made, so that no two have the same names.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Some hosts, taken down when dropped. No two are joined until [`Net::cable`] or [`Net::lan`] says so.
pub struct Net {
    tag: String,
    names: Vec<String>,
}

impl Net {
    /// Hosts of these names, with a loopback interface and no other. `None`, and a loud word, where this process may not
    /// make namespaces.
    pub fn new(hosts: &[&str]) -> Option<Self> {
        let tag = format!("mesh{}-{}-", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mut net = Self { tag, names: Vec::new() };
        for host in hosts {
            if !net.add(host) {
                eprintln!("SKIPPED: network namespaces take root and iproute2");
                return None;
            }
        }
        Some(net)
    }

    /// The hosts `alpha` (10.77.0.1) and `beta` (10.77.0.2), joined by a cable. `None` as for [`Net::new`].
    ///
    /// # Panics
    /// Where they can be made and not be joined.
    pub fn pair() -> Option<Self> {
        let net = Self::new(&["alpha", "beta"])?;
        net.cable(("alpha", "10.77.0.1/24"), ("beta", "10.77.0.2/24"));
        Some(net)
    }

    fn add(&mut self, host: &str) -> bool {
        let name = self.name(host);
        let made = ip(&["netns", "add", &name]);
        if made {
            assert!(ip(&["-n", &name, "link", "set", "lo", "up"]), "no loopback");
            self.names.push(name);
        }
        made
    }

    fn name(&self, host: &str) -> String {
        format!("{}{host}", self.tag)
    }

    /// A cable between two hosts: an interface named `cable` on each, with these addresses, as in `10.77.0.1/24`.
    ///
    /// # Panics
    /// Where the system refuses.
    pub fn cable(&self, (one, one_address): (&str, &str), (other, other_address): (&str, &str)) {
        self.join((one, "cable"), (other, "cable"));
        self.address(one, "cable", one_address);
        self.address(other, "cable", other_address);
    }

    /// Pulls a host's end of the cable, or plugs it in again: `down`, `up`.
    ///
    /// # Panics
    /// Where the system refuses.
    pub fn set_cable(&self, host: &str, state: &str) {
        assert!(self.ip(host, &["link", "set", "cable", state]), "the cable of {host} is {state}");
    }

    /// A local network: a switch, and at each host an interface named as the network. The hosts get the addresses
    /// `PREFIX.1/24` and so on.
    ///
    /// # Panics
    /// Where the system refuses, or the name is longer than 8 letters.
    pub fn lan(&mut self, name: &str, prefix: &str, hosts: &[&str]) {
        let switch = format!("-{name}");
        assert!(self.add(&switch), "no switch");
        assert!(self.ip(&switch, &["link", "add", "bridge", "type", "bridge"]), "no bridge");
        assert!(self.ip(&switch, &["link", "set", "bridge", "up"]), "no bridge");
        for (at, host) in hosts.iter().enumerate() {
            let port = format!("port{at}");
            self.join((host, name), (&switch, &port));
            assert!(self.ip(&switch, &["link", "set", &port, "master", "bridge", "up"]), "no port");
            self.address(host, name, &format!("{prefix}.{}/24", at + 1));
        }
    }

    fn join(&self, (one, one_end): (&str, &str), (other, other_end): (&str, &str)) {
        let (one, other) = (self.name(one), self.name(other));
        let pair = ["link", "add", one_end, "netns", &one, "type", "veth", "peer", "name", other_end, "netns", &other];
        assert!(ip(&pair), "no cable");
    }

    /// Gives an interface of a host this one address, and sets it up.
    ///
    /// # Panics
    /// Where the system refuses.
    pub fn address(&self, host: &str, interface: &str, address: &str) {
        self.ip(host, &["addr", "flush", "dev", interface]);
        assert!(self.ip(host, &["addr", "add", address, "dev", interface]), "no address");
        assert!(self.ip(host, &["link", "set", interface, "up"]), "no interface");
    }

    /// From now on a host drops what comes in over its cable for a port, as a firewall does: `protocol` is tcp or udp.
    ///
    /// # Panics
    /// Where the kernel has no routing by ports.
    pub fn drop_incoming(&self, host: &str, protocol: &str, port: u16) {
        let rule = |args: &[&str]| self.ip(host, &[&["rule"], args].concat());
        // What is for this host itself is looked up in the first table, which has to stand behind the rule. The second
        // time it does.
        rule(&["add", "pref", "100", "lookup", "local"]);
        rule(&["del", "pref", "0"]);
        let port = port.to_string();
        let dropped = rule(&["add", "pref", "10", "iif", "cable", "ipproto", protocol, "dport", &port, "blackhole"]);
        assert!(dropped, "no rule for {port}/{protocol}");
    }

    /// Runs `ip ARGS` at a host. Returns whether it did its work.
    pub fn ip(&self, host: &str, args: &[&str]) -> bool {
        ip(&[&["-n", &self.name(host)], args].concat())
    }

    /// Lets a host pass packets on between its networks.
    ///
    /// # Panics
    /// Where the system refuses.
    pub fn forward(&self, host: &str) {
        let mut command = self.command(host, Path::new("sh"));
        let done = command.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).status();
        assert!(done.is_ok_and(|status| status.success()), "{host} cannot forward");
    }

    /// Bytes that a host has sent over an interface.
    ///
    /// # Panics
    /// Where it has no such interface.
    pub fn sent(&self, host: &str, interface: &str) -> u64 {
        let mut command = Command::new("ip");
        let output = command.args(["-n", &self.name(host), "-j", "-s", "link", "show", interface]).output();
        let told: Value = serde_json::from_slice(&output.expect("ip runs").stdout).expect("ip -j prints JSON");
        told[0]["stats64"]["tx"]["bytes"].as_u64().expect("a count of bytes")
    }

    /// `program` at a host.
    pub fn command(&self, host: &str, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host)]).arg(program);
        command
    }

    /// A node of the host's name, with the addresses and ports that it takes by itself, and its data below `folder`.
    pub fn node(&self, host: &str, folder: &Path, args: &[&str]) -> Node {
        let data_dir = folder.join(host);
        let mut command = self.command(host, &binary("mesh-node"));
        command.args(args).arg("--data-dir").arg(&data_dir).args(["--name", host, "--threads", "1"]);
        Node { process: Process::spawn(&mut command), data_dir }
    }

    /// curl at a host, to the gateway there.
    pub fn chat(&self, host: &str, body: &Value) -> Command {
        let mut command = self.command(host, Path::new("curl"));
        command.args(["-sN", "http://127.0.0.1:9337/v1/chat/completions", "-d", &body.to_string()]);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
