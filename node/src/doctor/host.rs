//! What the machine has: memory, disk, devices, addresses.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use kernels_ffi::{Backend, DeviceKind};
use mesh_types::ByteSize;

use super::{Check, Finding, State};

/// A disk with less free than this counts as full.
const FULL: u64 = 64 << 20;
/// One with less free than this will be soon.
const NEARLY_FULL: u64 = 1 << 30;
/// What is written to see whether something can be.
const SAMPLE: usize = 256 << 10;

const FREE_DISK: &str = "free some space, give less of it to slices (--cache), or keep the data elsewhere (--data-dir)";

/// The disk that `data_dir` lies on. Writes a file there for a moment. Blocks.
pub(super) fn disk(data_dir: &Path) -> Finding {
    let about = data_dir.display().to_string();
    if let Err(error) = write_sample(data_dir) {
        let what = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "the disk is full: nothing can be written to the data directory".to_owned()
            }
            _ => format!("nothing can be written to the data directory: {error}"),
        };
        return Finding::bad(Check::Disk, about, State::Failure, (what, FREE_DISK));
    }
    match fs4::available_space(data_dir) {
        Ok(free) if free < FULL => {
            let what = format!("the disk is full but for {}", ByteSize(free));
            Finding::bad(Check::Disk, about, State::Failure, (what, FREE_DISK))
        }
        Ok(free) if free < NEARLY_FULL => {
            let what =
                format!("the disk is nearly full: {} are free, and slices of models are kept there", ByteSize(free));
            Finding::bad(Check::Disk, about, State::Warning, (what, FREE_DISK))
        }
        Ok(free) => Finding::good(Check::Disk, about, format!("{} free", ByteSize(free))),
        Err(error) => {
            let why = (format!("how much of the disk is free cannot be found out: {error}"), "");
            Finding::bad(Check::Disk, about, State::Warning, why)
        }
    }
}

fn write_sample(data_dir: &Path) -> std::io::Result<()> {
    let path = data_dir.join(format!("doctor.{}.tmp", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    let written = file.write_all(&[0; SAMPLE]).and_then(|()| file.sync_all());
    drop(file);
    std::fs::remove_file(&path)?;
    written
}

/// What computes here; `wanted` is the device that was asked for.
pub(super) fn devices(wanted: Option<&str>) -> Finding {
    let devices = Backend::init().devices();
    let shown = |device: &kernels_ffi::Device| match device.kind {
        DeviceKind::Cpu => format!("{} ({})", device.name, device.description.trim()),
        _ => format!("{} ({}, {})", device.name, device.description.trim(), ByteSize(device.memory_total)),
    };
    let all = devices.iter().map(shown).collect::<Vec<_>>().join(", ");
    match wanted {
        Some(name) if devices.iter().all(|device| device.name != name) => {
            let what = format!("there is no device `{name}`; there are: {all}");
            let advice = "give one of these to --device, or none; a GPU is there only in a build with its back end";
            Finding::bad(Check::Devices, name, State::Failure, (what, advice))
        }
        Some(name) => Finding::good(Check::Devices, name, format!("is there, among: {all}")),
        None => Finding::good(Check::Devices, "", all),
    }
}

/// What is offered, against what the machine has. `used` is what stages of the node take of it already.
pub(super) fn memory(offered: ByteSize, used: ByteSize) -> Finding {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let (total, free) = (ByteSize(system.total_memory()), ByteSize(system.available_memory()));
    let left = ByteSize(offered.0.saturating_sub(used.0));
    let advice = "offer less (--memory), or end other programs: a stage that finds no memory is killed by the system";
    if offered > total {
        let what = format!("{offered} are offered, and this machine has {total} in all");
        return Finding::bad(Check::Memory, "", State::Failure, (what, advice));
    }
    if left > free {
        let what = format!("{left} are still offered, and only {free} of this machine's {total} are free");
        return Finding::bad(Check::Memory, "", State::Warning, (what, advice));
    }
    Finding::good(Check::Memory, "", format!("{offered} offered, {left} of them unused; {free} of {total} are free"))
}

/// Whether `listen` is an address that this machine has, and others can reach.
pub(super) fn address(listen: SocketAddr) -> Finding {
    let about = listen.to_string();
    let ip = listen.ip();
    let interfaces = mesh_mesh::interfaces();
    let all = || {
        let all: Vec<_> = interfaces.iter().map(|(name, ip)| format!("{ip} ({name})")).collect();
        all.join(", ")
    };
    if ip.is_unspecified() {
        let outside: Vec<IpAddr> = mesh_mesh::advertised(ip);
        if outside.iter().all(IpAddr::is_loopback) {
            let what =
                "no interface of this machine but loopback has an address: no other machine reaches it".to_owned();
            return Finding::bad(Check::Addresses, about, State::Warning, (what, "connect it to a network"));
        }
        let outside: Vec<_> = outside.iter().map(IpAddr::to_string).collect();
        return Finding::good(Check::Addresses, about, format!("others are told {}", outside.join(", ")));
    }
    if interfaces.iter().all(|(_, other)| *other != ip) {
        let what = format!("no interface of this machine has the address {ip}; it has: {}", all());
        let advice = "give one of these to --listen, or 0.0.0.0 for all of them";
        return Finding::bad(Check::Addresses, about, State::Failure, (what, advice));
    }
    if ip.is_loopback() {
        let what = "only this machine itself reaches the node: it listens on loopback".to_owned();
        let advice = "for other machines, listen on all interfaces (--listen 0.0.0.0:9338) or on one of theirs";
        return Finding::bad(Check::Addresses, about, State::Warning, (what, advice));
    }
    Finding::good(Check::Addresses, about, "others are told this address")
}
