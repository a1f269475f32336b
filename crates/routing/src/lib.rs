//! mesh-routing
