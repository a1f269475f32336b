//! mesh-gateway
