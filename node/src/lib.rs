//! mesh-node
