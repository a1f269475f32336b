//! What the test models are: for each family the metadata of a small one, eight layers with the mixture of layers that
//! the family's real models have. The cases are in `recipe/cases.rs` and `recipe/quantized.rs`.

use kernels_ffi::KvType;
use mesh_gguf::{Array, Metadata, Value};

mod cases;
mod keys;
mod quantized;

use cases::CASES;
use quantized::QUANTIZED;

pub(crate) const N_LAYER: u32 = 8;
pub(crate) const N_VOCAB: u32 = 160;

/// One model to prove a family with.
pub(crate) struct Case {
    pub(crate) architecture: &'static str,
    /// Tells cases of one family apart.
    pub(crate) variant: &'static str,
    /// Optional tensors that it does without.
    pub(crate) without: &'static [&'static str],
    /// Layers without experts in a model that has them, where no key says it but the tensors that there are.
    pub(crate) dense: &'static [u32],
    /// The types of its matrices, in turn; none: floats.
    pub(crate) stored_as: &'static [&'static str],
    /// The type of its experts' matrices, where that is another one.
    pub(crate) experts_as: Option<&'static str>,
    /// Type of the cache.
    pub(crate) kv_type: KvType,
    /// Adds to, and changes, the keys that all have.
    keys: fn(&mut Keys),
}

/// The metadata of a case under construction. Keys stand without their `{arch}.`.
pub(crate) struct Keys {
    architecture: &'static str,
    metadata: Metadata,
}

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.architecture, self.variant).trim_end().to_owned()
    }

    pub(crate) fn metadata(&self) -> Metadata {
        let mut keys = Keys { architecture: self.architecture, metadata: Metadata::default() };
        keys.metadata.set("general.architecture", Value::from(self.architecture));
        keys.u32("vocab_size", N_VOCAB).u32("context_length", 256).u32("embedding_length", 128);
        keys.u32("block_count", N_LAYER).u32("feed_forward_length", 192);
        keys.u32("attention.head_count", 4).u32("attention.head_count_kv", 2).u32("rope.dimension_count", 32);
        keys.f32("attention.layer_norm_epsilon", 1e-5).f32("attention.layer_norm_rms_epsilon", 1e-5);
        (self.keys)(&mut keys);
        let mut metadata = keys.metadata;
        metadata.set("tokenizer.ggml.model", Value::from("test"));
        let tokens = (0..N_VOCAB).map(|token| format!("token{token}"));
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs(tokens)));
        metadata.set("tokenizer.ggml.scores", Value::Array(Array::of_f32s((0..N_VOCAB).map(|_| 0.0))));
        metadata
    }

    const fn new(architecture: &'static str, keys: fn(&mut Keys)) -> Self {
        let (stored_as, experts_as, kv_type) = (&[], None, KvType::F16);
        Self { architecture, variant: "", without: &[], dense: &[], stored_as, experts_as, kv_type, keys }
    }

    const fn variant(self, variant: &'static str) -> Self {
        Self { variant, ..self }
    }

    /// With experts in the other layers only.
    const fn dense_at(self, dense: &'static [u32]) -> Self {
        Self { dense, ..self }
    }

    /// With matrices of these types.
    const fn stored_as(self, types: &'static [&'static str], variant: &'static str) -> Self {
        Self { stored_as: types, variant, ..self }
    }

    /// With a cache of another type, and fused attention.
    const fn cached_as(self, kv_type: KvType, variant: &'static str) -> Self {
        Self { kv_type, variant, ..self }
    }

    /// With a head that is tied to the embedding, and no factors for rotary frequencies.
    const fn lean(self) -> Self {
        Self { without: &["output.weight", "rope_freqs.weight"], variant: "lean", ..self }
    }
}

impl Keys {
    fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.set(&format!("{}.{key}", self.architecture), value);
        self
    }

    fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.set(key, Value::U32(value))
    }

    fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.set(key, Value::F32(value))
    }

    fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.set(key, Value::Bool(value))
    }

    /// A key without the family's name before it.
    fn bare_f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.metadata.set(key, Value::Array(Array::of_f32s(values.iter().copied())));
        self
    }

    fn u32s(&mut self, key: &str, values: &[u32]) -> &mut Self {
        self.set(key, Value::Array(Array::of_u32s(values.iter().copied())))
    }
}

/// All of them.
pub(crate) fn cases() -> Vec<&'static Case> {
    CASES.iter().chain(QUANTIZED).collect()
}
