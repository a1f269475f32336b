//! mesh-transport
