//! Which tensors a slice has, under which names and in which shapes, and where their bytes come from.

use super::{Bytes, Columns, Cut, SMALL_VOCABULARY, SliceKind};
use crate::error::{HeaderError, TensorFault};
use crate::ggml::GgmlType;
use crate::header::{Header, TensorInfo};
use crate::info::{ModelInfo, layer_of};

/// The slice's tensors, and where the bytes of each come from.
pub(super) struct Tensors<'a> {
    header: &'a Header,
    info: &'a ModelInfo,
    cut: Cut,
}

impl Tensors<'_> {
    pub(super) fn cut(
        header: &Header,
        info: &ModelInfo,
        cut: Cut,
    ) -> Result<(Vec<TensorInfo>, Vec<Bytes>), HeaderError> {
        let all = Tensors { header, info, cut };
        let (mut tensors, mut sources) = (Vec::new(), Vec::new());
        for (index, tensor) in header.tensors().iter().enumerate() {
            let sliced = match layer_of(tensor.name()) {
                Some((layer, rest)) => all.of_layer(index, tensor, layer, rest)?,
                None => Some(all.global(index, tensor)?),
            };
            if let Some((sliced, bytes)) = sliced {
                check_vocabulary(&sliced, info, cut.kind)?;
                tensors.push(sliced);
                sources.push(bytes);
            }
        }
        Ok((tensors, sources))
    }

    fn of_layer(
        &self,
        index: usize,
        tensor: &TensorInfo,
        layer: u32,
        rest: &str,
    ) -> Result<Option<(TensorInfo, Bytes)>, HeaderError> {
        if !self.cut.contains(layer) {
            return Ok(None);
        }
        let name = format!("blk.{}.{rest}", layer - self.cut.start);
        let renamed = TensorInfo::new(&name, tensor.dims(), tensor.ggml_type())?;
        let lead = self.cut.lead && layer == self.cut.start;
        Ok(Some((renamed, if lead { Bytes::Hole } else { Bytes::Source { tensor: index } })))
    }

    fn global(&self, index: usize, tensor: &TensorInfo) -> Result<(TensorInfo, Bytes), HeaderError> {
        let untied = self.header.tensor("output.weight").is_some();
        let hole = || Ok((tensor.clone(), Bytes::Hole));
        match (tensor.name(), self.cut.kind) {
            ("token_embd.weight" | "output.weight" | "output.bias", SliceKind::Rows) => {
                Ok((shrunk(tensor)?, Bytes::Hole))
            }
            ("token_embd.weight", SliceKind::Last) if untied && !self.cut.lead => hole(),
            ("output.weight" | "output.bias", SliceKind::Tokens | SliceKind::Led) => hole(),
            // Added to whatever comes in, rows as well.
            ("position_embd.weight", _) if self.cut.start > 0 => hole(),
            ("per_layer_token_embd.weight" | "per_layer_model_proj.weight", _) if !self.covers_all() => {
                self.columns(index, tensor)
            }
            _ => Ok((tensor.clone(), Bytes::Source { tensor: index })),
        }
    }

    /// The part of a tensor that has a share for every layer: of each of its rows, or of its rows.
    fn columns(&self, index: usize, tensor: &TensorInfo) -> Result<(TensorInfo, Bytes), HeaderError> {
        let in_rows = tensor.name() == "per_layer_token_embd.weight";
        let (cut, layers) = (self.cut, u64::from(self.info.n_layer));
        let wrong = || HeaderError::tensor(tensor.name(), TensorFault::PerLayer { layers: self.info.n_layer });
        let mut dims = tensor.dims().to_vec();
        let shared = dims.get_mut(usize::from(!in_rows)).filter(|dim| dim.is_multiple_of(layers)).ok_or_else(wrong)?;
        *shared = *shared / layers * u64::from(cut.layers());
        let sliced = TensorInfo::new(tensor.name(), &dims, tensor.ggml_type())?;
        let row = if in_rows { tensor.ggml_type().row_bytes(tensor.dims()[0]) } else { Some(tensor.n_bytes()) };
        let columns = row.and_then(|row| Columns::of_layers(row, layers, (cut.start, cut.end), tensor.n_bytes()));
        Ok((sliced, Bytes::Columns { tensor: index, columns: columns.ok_or_else(wrong)? }))
    }

    fn covers_all(&self) -> bool {
        self.cut.layers() >= self.info.n_layer
    }
}

/// The stand-in for a tensor whose last dimension is the vocabulary.
fn shrunk(tensor: &TensorInfo) -> Result<TensorInfo, HeaderError> {
    let mut dims = tensor.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = SMALL_VOCABULARY.into();
    }
    TensorInfo::new(tensor.name(), &dims, GgmlType::F32)
}

/// A stage with a small vocabulary cannot keep a tensor over the large one: the loader would refuse its shape.
fn check_vocabulary(tensor: &TensorInfo, info: &ModelInfo, kind: SliceKind) -> Result<(), HeaderError> {
    let vocabulary = u64::from(info.n_vocab);
    let global = layer_of(tensor.name()).is_none();
    // A vocabulary as small as the row is wide tells nothing.
    let distinct = info.n_vocab != info.n_embd;
    if kind == SliceKind::Rows && global && distinct && tensor.dims().last() == Some(&vocabulary) {
        let expected = vec![u64::from(SMALL_VOCABULARY)];
        let why = TensorFault::Mismatch { found: tensor.dims().to_vec(), expected };
        return Err(HeaderError::tensor(tensor.name(), why));
    }
    Ok(())
}
