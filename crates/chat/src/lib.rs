//! mesh-chat
