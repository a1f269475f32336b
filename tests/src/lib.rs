//! mesh-tests
