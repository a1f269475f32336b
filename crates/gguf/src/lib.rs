//! mesh-gguf
