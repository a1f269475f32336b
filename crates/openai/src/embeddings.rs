//! `POST /v1/embeddings`: vectors of texts (<https://platform.openai.com/docs/api-reference/embeddings/create>).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use mesh_types::chat::RawInput;
use mesh_types::{Fault, ModelId};
use serde::Serialize;

use crate::fields::EMBEDDINGS;
use crate::ignored::Ignored;
use crate::json::{self, Object, invalid};
use crate::{completions, settings};

/// Most texts in one request.
const MAX_INPUTS: usize = 2048;

/// A request for vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// The model.
    pub model: ModelId,
    /// The texts, or their tokens; at least one.
    pub inputs: Vec<RawInput>,
    encoding: Encoding,
    dimensions: Option<u32>,
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// As numbers.
    Float,
    /// As base64 of 32-bit floats, little endian.
    Base64,
}

impl Embeddings {
    /// Reads the body. Gives the fields without effect, too.
    ///
    /// # Errors
    /// An invalid request.
    pub fn parse(body: &[u8]) -> Result<(Self, Vec<String>), Fault> {
        let map = json::body(body)?;
        let mut ignored = Ignored::default();
        EMBEDDINGS.sort(&map, "", &mut ignored)?;
        let request = Object::root(&map);
        let inputs = completions::prompts(request.get("input"), "input", MAX_INPUTS)?;
        let encoding = match request.text("encoding_format")? {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(_) => return Err(request.invalid("encoding_format", "must be `float` or `base64`")),
        };
        let dimensions = settings::count(&request, "dimensions")?;
        Ok((Self { model: settings::model(&request)?, inputs, encoding, dimensions }, ignored.into()))
    }

    /// The answer: one vector for each input, scaled to the length of one, of which `tokens` were read.
    ///
    /// # Errors
    /// More `dimensions` are asked for than the model's vectors have.
    pub fn reply(&self, vectors: &[Vec<f32>], tokens: u32) -> Result<Vec<u8>, Fault> {
        let own = vectors.iter().map(Vec::len).min().unwrap_or_default();
        let wanted = self.dimensions.map_or(own, |wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
        if wanted > own {
            let message = format!("`dimensions` must be at most {own}: the vectors of `{}` have no more.", self.model);
            return Err(invalid("dimensions", message));
        }
        let entry = |(index, vector): (usize, &Vec<f32>)| {
            let embedding = self.encoding.write(unit(vector.get(..wanted).unwrap_or(vector)));
            Entry { object: "embedding", index, embedding }
        };
        let data = vectors.iter().enumerate().map(entry).collect();
        let usage = UsageObject { prompt_tokens: tokens, total_tokens: tokens };
        let list = List { object: "list", data, model: self.model.as_str(), usage };
        // Struct fields, numbers and strings only: serialising them cannot fail.
        Ok(serde_json::to_vec(&list).unwrap_or_default())
    }
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry>,
    model: &'a str,
    usage: UsageObject,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct UsageObject {
    prompt_tokens: u32,
    total_tokens: u32,
}

impl Encoding {
    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Float => Vector::Float(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

/// The vector of length one in the same direction; of none, none.
fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.iter().map(|value| (f64::from(*value) * scale) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(extra: Value) -> Result<Embeddings, Fault> {
        let mut body = json!({"model": "m", "input": "a"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Embeddings::parse(body.to_string().as_bytes()).map(|(request, _)| request)
    }

    fn reply(request: &Embeddings, vectors: &[Vec<f32>]) -> Value {
        serde_json::from_slice(&request.reply(vectors, 5).unwrap()).unwrap()
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (extra, param) in [
            (json!({"input": null}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": 3}), "input"),
            (json!({"input": ["a", {}]}), "input[1]"),
            (json!({"input": vec!["a"; 2049]}), "input"),
            (json!({"model": null}), "model"),
            (json!({"encoding_format": "int8"}), "encoding_format"),
            (json!({"dimensions": 0}), "dimensions"),
        ] {
            assert_eq!(parsed(extra.clone()).unwrap_err().param.as_deref(), Some(param), "{extra}");
        }
    }

    #[test]
    fn an_answer_has_the_dialects_shape() {
        let request = parsed(json!({"input": ["a", [1, 2]], "encoding_format": null})).unwrap();
        assert_eq!(request.inputs.len(), 2);
        let entry =
            |index: usize, vector: [f64; 2]| json!({"object": "embedding", "index": index, "embedding": vector});
        let expected = json!({
            "object": "list", "data": [entry(0, [0.6, 0.8]), entry(1, [0.0, 0.0])], "model": "m",
            "usage": {"prompt_tokens": 5, "total_tokens": 5},
        });
        assert_eq!(reply(&request, &[vec![3.0, 4.0], vec![0.0, 0.0]]), expected);
    }

    #[test]
    fn vectors_are_cut_before_they_are_scaled() {
        let request = parsed(json!({"dimensions": 2})).unwrap();
        assert_eq!(reply(&request, &[vec![3.0, 4.0, 12.0]])["data"][0]["embedding"], json!([0.6, 0.8]));
        let refused = request.reply(&[vec![1.0]], 1).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("dimensions"));
    }

    #[test]
    fn base64_holds_little_endian_floats() {
        let request = parsed(json!({"encoding_format": "base64"})).unwrap();
        // 1.0 is 00 00 80 3f.
        assert_eq!(reply(&request, &[vec![2.0, 0.0]])["data"][0]["embedding"], "AACAPwAAAAA=");
    }
}
