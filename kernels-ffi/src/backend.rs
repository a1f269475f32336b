//! The process-wide state of llama.cpp, and the devices that it found.

use std::sync::Once;

use llama_cpp_2::{LlamaBackendDeviceType, list_llama_ggml_backend_devices};
use llama_cpp_sys_2 as sys;

/// Proof that llama.cpp is initialised and logs to `tracing`.
///
/// It stays initialised for the life of the process: `llama_backend_free` does nothing that a process end does not.
#[derive(Clone, Copy, Debug)]
pub struct Backend(());

impl Backend {
    /// Initialises llama.cpp on the first call; free afterwards. Everything in this crate that needs it calls it.
    pub fn init() -> Self {
        static INIT: Once = Once::new();
        INIT.call_once(|| {
            crate::log::install();
            // SAFETY: called once, before any other use of llama.cpp by this crate; `Once` orders it.
            unsafe { sys::llama_backend_init() };
        });
        Self(())
    }

    /// The devices of this machine, the CPU included, with their memory as of now.
    pub fn devices(self) -> Vec<Device> {
        list_llama_ggml_backend_devices()
            .into_iter()
            .map(|device| Device {
                name: device.name,
                description: device.description,
                backend: device.backend,
                kind: DeviceKind::from(device.device_type),
                memory_total: device.memory_total as u64,
                memory_free: device.memory_free as u64,
            })
            .collect()
    }

    /// Most sequences that a context can hold.
    pub fn max_sequences(self) -> u32 {
        // SAFETY: returns a constant.
        u32::try_from(unsafe { sys::llama_max_parallel_sequences() }).unwrap_or(u32::MAX)
    }

    /// llama.cpp's version text, for logs and diagnosis.
    pub fn version(self) -> String {
        // SAFETY: returns a NUL-terminated string in static memory.
        unsafe { std::ffi::CStr::from_ptr(sys::llama_version()) }.to_string_lossy().into_owned()
    }
}

/// A device that can compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What it is called in settings, such as `CPU`, `CUDA0`, `Vulkan1`.
    pub name: String,
    /// What its maker calls it.
    pub description: String,
    /// The ggml back end that drives it.
    pub backend: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// Bytes of memory it has. For an accelerator without memory of its own: the host's, or 0.
    pub memory_total: u64,
    /// Bytes of memory that are free now.
    pub memory_free: u64,
}

/// What sort of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A library or unit beside the processor that uses its memory, such as BLAS.
    Accelerator,
    /// A graphics card with memory of its own.
    Gpu,
    /// A graphics unit that shares the host's memory.
    IntegratedGpu,
    /// Something that this version does not know.
    Unknown,
}

impl From<LlamaBackendDeviceType> for DeviceKind {
    fn from(kind: LlamaBackendDeviceType) -> Self {
        match kind {
            LlamaBackendDeviceType::Cpu => Self::Cpu,
            LlamaBackendDeviceType::Accelerator => Self::Accelerator,
            LlamaBackendDeviceType::Gpu => Self::Gpu,
            LlamaBackendDeviceType::IntegratedGpu => Self::IntegratedGpu,
            LlamaBackendDeviceType::Unknown => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_a_device() {
        let devices = Backend::init().devices();
        let cpu = devices.iter().find(|d| d.kind == DeviceKind::Cpu).expect("a CPU device");
        assert!(cpu.memory_total > 0, "{cpu:?}");
        assert_eq!(Backend::init().max_sequences(), 256);
    }
}
