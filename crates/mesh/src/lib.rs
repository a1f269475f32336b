//! mesh-mesh
