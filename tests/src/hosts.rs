//! Two hosts, each a network namespace of its own, joined by a cable that can be pulled. Needs root; says so without.

use std::path::Path;
use std::process::Command;

use crate::process::{Node, Process, binary};

/// Two namespaces, `10.77.0.1` and `10.77.0.2`. Taken down when dropped.
pub struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `None`, and a loud word, where this process may not make namespaces.
    ///
    /// # Panics
    /// Where they can be made and not be joined.
    pub fn new() -> Option<Self> {
        let id = std::process::id();
        let hosts = Self { names: [format!("mesh{id}a"), format!("mesh{id}b")] };
        let [a, b] = &hosts.names;
        if !(ip(&["netns", "add", a]) && ip(&["netns", "add", b])) {
            eprintln!("SKIPPED: network namespaces take root and iproute2");
            return None;
        }
        let cable = ["link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b];
        assert!(ip(&cable), "no cable");
        for (index, name) in hosts.names.iter().enumerate() {
            let address = format!("10.77.0.{}/24", index + 1);
            assert!(ip(&["-n", name, "addr", "add", &address, "dev", "cable"]), "no address");
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]) && ip(&["-n", name, "link", "set", "cable", "up"]));
        }
        Some(hosts)
    }

    /// Sets the cable `up` or `down`.
    ///
    /// # Panics
    /// Where that fails.
    pub fn cable(&self, state: &str) {
        assert!(ip(&["-n", &self.names[0], "link", "set", "cable", state]), "the cable is {state}");
    }

    /// From now on host number `host` drops what comes in over the cable for a port, as a firewall does: `protocol` is tcp
    /// or udp.
    ///
    /// # Panics
    /// Where the kernel has no routing by ports.
    pub fn drop_incoming(&self, host: usize, protocol: &str, port: u16) {
        let name = self.names[host].as_str();
        let rule = |args: &[&str]| ip(&[&["-n", name, "rule"], args].concat());
        // What is for this host itself is looked up in the first table, which has to stand behind the rule. The second
        // time it does.
        rule(&["add", "pref", "100", "lookup", "local"]);
        rule(&["del", "pref", "0"]);
        let port = port.to_string();
        let dropped = rule(&["add", "pref", "10", "iif", "cable", "ipproto", protocol, "dport", &port, "blackhole"]);
        assert!(dropped, "no rule for {port}/{protocol}");
    }

    /// `program` on host number `host`.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).arg(program);
        command
    }

    /// A node on host number `host`, with the addresses and ports that it takes by itself.
    pub fn node(&self, host: usize, folder: &Path, name: &str, args: &[&str]) -> Node {
        let data_dir = folder.join(name);
        let mut command = self.command(host, &binary("mesh-node"));
        command.args(args).arg("--data-dir").arg(&data_dir).args(["--name", name, "--threads", "1"]);
        Node { process: Process::spawn(&mut command), data_dir }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
}
