//! mesh-pipeline
