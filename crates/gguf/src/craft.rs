//! GGUFs made by hand for tests: sound ones, and ones that lie.

/// Builds the bytes of a GGUF field by field, with no checks at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Craft {
    keys: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: Vec<u8>,
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Craft {
    /// A key of any type, its value encoded by the caller.
    pub(crate) fn key(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        self.keys.push([&string(key), value_type.to_le_bytes().as_slice(), value].concat());
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.key(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn str(self, key: &str, value: &str) -> Self {
        self.key(key, 8, &string(value))
    }

    pub(crate) fn u32s(self, key: &str, values: &[u32]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 4, values.len() as u64, &items)
    }

    pub(crate) fn strs(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| string(value)).collect();
        self.array(key, 8, values.len() as u64, &items)
    }

    pub(crate) fn array(self, key: &str, element: u32, len: u64, items: &[u8]) -> Self {
        self.key(key, 9, &[element.to_le_bytes().as_slice(), &len.to_le_bytes(), items].concat())
    }

    /// A tensor described as the caller likes, with no data.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], ggml_type: u32, offset: u64) -> Self {
        self.tensors.push((name.to_owned(), dims.to_vec(), ggml_type, offset));
        self
    }

    /// A sound f32 tensor (padded to the default alignment) with data of its own.
    pub(crate) fn f32s(mut self, name: &str, dims: &[u64]) -> Self {
        let n: u64 = dims.iter().product();
        let offset = self.data.len() as u64;
        let salt = self.tensors.len() as u64 * 1000;
        self.data.extend((0..n).flat_map(|i| ((salt + i) as f32).to_le_bytes()));
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.tensor(name, dims, 0, offset)
    }

    /// Where the next tensor's data would begin.
    pub(crate) fn f32s_end(&self) -> u64 {
        self.data.len() as u64
    }

    /// Magic, version, counts, keys and tensors, without padding.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().for_each(|key| out.extend(key));
        for (name, dims, ggml_type, offset) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(ggml_type.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out
    }

    /// Shard number `number` of `count`, with the tensors `range`; only the first one has the model's keys.
    pub(crate) fn shard(&self, range: std::ops::Range<usize>, number: u16, count: u16) -> Self {
        let mut shard = Self { keys: if number == 0 { self.keys.clone() } else { Vec::new() }, ..Self::default() };
        for (name, dims, ggml_type, offset) in &self.tensors[range] {
            let len = dims.iter().product::<u64>().next_multiple_of(8) * 4;
            shard.tensors.push((name.clone(), dims.clone(), *ggml_type, shard.data.len() as u64));
            shard.data.extend(&self.data[*offset as usize..(*offset + len) as usize]);
        }
        shard.key("split.no", 2, &number.to_le_bytes()).key("split.count", 2, &count.to_le_bytes()).key(
            "split.tensors.count",
            5,
            &(self.tensors.len() as i32).to_le_bytes(),
        )
    }

    /// How many tensors it has.
    pub(crate) fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The whole file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut out = self.head();
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

/// A model of `layers` layers, 8 values in a row and a vocabulary of 40; its head is tied unless `untied`.
pub(crate) fn model(architecture: &str, layers: u32, untied: bool) -> Craft {
    let tokens: Vec<String> = (0..40).map(|i| format!("t{i}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut craft = Craft::default()
        .str("general.architecture", architecture)
        .str("general.name", "crafted")
        .u32(&format!("{architecture}.block_count"), layers)
        .u32(&format!("{architecture}.context_length"), 512)
        .u32(&format!("{architecture}.embedding_length"), 8)
        .u32(&format!("{architecture}.attention.head_count"), 2)
        .u32s(&format!("{architecture}.feed_forward_length"), &(100..100 + layers).collect::<Vec<_>>())
        .str("tokenizer.ggml.model", "llama")
        .strs("tokenizer.ggml.tokens", &tokens)
        .str("tokenizer.chat_template", "{{ messages }}")
        .f32s("token_embd.weight", &[8, 40]);
    for layer in 0..layers {
        craft = craft.f32s(&format!("blk.{layer}.attn_norm.weight"), &[8]);
        craft = craft.f32s(&format!("blk.{layer}.attn_q.weight"), &[8, 8]);
    }
    craft = craft.f32s("output_norm.weight", &[8]).f32s("rope_freqs.weight", &[4]);
    if untied { craft.f32s("output.weight", &[8, 40]) } else { craft }
}
