//! mesh-openai
