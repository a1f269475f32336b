//! Settings that dialects share, whatever each calls them.

use mesh_types::chat::SamplingOverrides;
use mesh_types::{ChatRequest, Fault, GenerateSpec, Logprobs, ModelId, Sampling, TokenId};
use serde_json::{Map, Value};

use crate::json::{Object, invalid, wrong};

/// Most stop strings in one request. OpenAI takes 4; local servers take more.
pub const MAX_STOPS: usize = 64;
/// Most choices of one request.
pub const MAX_CHOICES: usize = 16;

/// More makes a model say nothing twice.
const MAX_REPEAT_PENALTY: f64 = 10.0;

/// Variables that have fields of their own, or are the model's: a template gets them from there alone.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
/// OpenAI's efforts, and `max`, which templates know.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

pub(crate) fn model(request: &Object<'_>) -> Result<ModelId, Fault> {
    match request.text("model")? {
        Some("") => Err(request.invalid("model", "is empty")),
        Some(name) => Ok(ModelId::new(name)),
        None => Err(request.missing("model")),
    }
}

/// What the client calls the conversation, in `field`. Routing alone reads it: a value of another type is no mistake.
pub(crate) fn conversation(request: &Object<'_>, field: &str) -> Option<String> {
    request.get(field).and_then(Value::as_str).map(str::to_owned)
}

/// How tokens are drawn.
pub(crate) fn sampling(request: &Object<'_>, max_temperature: f64) -> Result<SamplingOverrides, Fault> {
    Ok(SamplingOverrides {
        temperature: number(request, "temperature", max_temperature)?,
        top_k: request.integer("top_k")?.map(top_k).transpose()?,
        top_p: number(request, "top_p", 1.0)?,
        min_p: number(request, "min_p", 1.0)?,
        repeat_penalty: repeat_penalty(request)?,
        repeat_last_n: request.integer("repeat_last_n")?.map(last_n).transpose()?,
        presence_penalty: penalty(request, "presence_penalty")?,
        frequency_penalty: penalty(request, "frequency_penalty")?,
        seed: seed(request)?,
        ignore_eos: request.flag("ignore_eos")?,
    })
}

/// Any 64 bits are a seed: -1 is one like every other.
fn seed(request: &Object<'_>) -> Result<Option<u64>, Fault> {
    match request.get("seed") {
        None => Ok(None),
        Some(value) => match (value.as_u64(), value.as_i64()) {
            (Some(seed), _) => Ok(Some(seed)),
            (None, Some(seed)) => Ok(Some(seed.cast_unsigned())),
            (None, None) => Err(wrong("seed", "a 64-bit integer", value)),
        },
    }
}

fn number(request: &Object<'_>, field: &str, max: f64) -> Result<Option<f32>, Fault> {
    match request.number(field)? {
        Some(value) if !(0.0..=max).contains(&value) => {
            Err(invalid(field, format!("`{field}` must be from 0 to {max}, not {value}.")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Under llama.cpp's name, else under vLLM's.
fn repeat_penalty(request: &Object<'_>) -> Result<Option<f32>, Fault> {
    for field in ["repeat_penalty", "repetition_penalty"] {
        match request.number(field)? {
            None => {}
            Some(value) if value > 0.0 && value <= MAX_REPEAT_PENALTY => return Ok(Some(value as f32)),
            Some(value) => {
                let message = format!("`{field}` must be above 0 and at most {MAX_REPEAT_PENALTY}, not {value}.");
                return Err(invalid(field, message));
            }
        }
    }
    Ok(None)
}

fn last_n(value: i64) -> Result<u32, Fault> {
    match value {
        // -1 is how llama.cpp's server writes "the whole context".
        -1 => Ok(Sampling::MAX_LAST_N),
        value => u32::try_from(value)
            .map_err(|_| invalid("repeat_last_n", format!("`repeat_last_n` must be at least 0, not {value}."))),
    }
}

fn penalty(request: &Object<'_>, field: &str) -> Result<Option<f32>, Fault> {
    match request.number(field)? {
        Some(value) if !(-2.0..=2.0).contains(&value) => {
            Err(invalid(field, format!("`{field}` must be from -2 to 2, not {value}.")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Numbers of tokens, as texts, to what is added to their logits.
pub(crate) fn logit_bias(request: &Object<'_>) -> Result<Vec<(TokenId, f32)>, Fault> {
    let Some(biases) = request.object("logit_bias")? else { return Ok(Vec::new()) };
    if biases.map().len() > GenerateSpec::MAX_LOGIT_BIAS {
        let message = format!(
            "`logit_bias` has {} entries; at most {} are allowed.",
            biases.map().len(),
            GenerateSpec::MAX_LOGIT_BIAS
        );
        return Err(invalid("logit_bias", message));
    }
    let entry = |name: &String| {
        let bias = biases.number(name)?.ok_or_else(|| biases.missing(name))?;
        let token = name.parse().ok().filter(|token: &i32| *token >= 0);
        match token {
            Some(token) if (-100.0..=100.0).contains(&bias) => Ok((TokenId(token), bias as f32)),
            Some(_) => Err(biases.invalid(name, "must be from -100 to 100")),
            None => Err(biases.invalid(name, "must be named after a token's number")),
        }
    };
    biases.map().keys().map(entry).collect()
}

/// `logprobs` as a flag, with `top_logprobs`.
pub(crate) fn top_logprobs(request: &Object<'_>) -> Result<Option<u8>, Fault> {
    let wanted = request.flag("logprobs")?.unwrap_or(false);
    let top = top("top_logprobs", request.integer("top_logprobs")?)?;
    match (wanted, top) {
        (false, Some(top)) if top > 0 => {
            Err(invalid("top_logprobs", "`top_logprobs` is only allowed when `logprobs` is true."))
        }
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// A number of most likely tokens.
pub(crate) fn top(field: &str, value: Option<i64>) -> Result<Option<u8>, Fault> {
    let Some(value) = value else { return Ok(None) };
    let top = u8::try_from(value).ok().filter(|top| *top <= Logprobs::MAX_TOP);
    let message = || format!("`{field}` must be from 0 to {}, not {value}.", Logprobs::MAX_TOP);
    top.map(Some).ok_or_else(|| invalid(field, message()))
}

fn top_k(value: i64) -> Result<u32, Fault> {
    match value {
        // -1 is how other local servers write "all".
        -1 => Ok(0),
        value if value < 0 => Err(invalid("top_k", format!("`top_k` must be at least 0, not {value}."))),
        value => Ok(u32::try_from(value).unwrap_or(u32::MAX)),
    }
}

/// A positive number of things.
pub(crate) fn count(request: &Object<'_>, field: &str) -> Result<Option<u32>, Fault> {
    match request.integer(field)? {
        None => Ok(None),
        Some(value) if value < 1 => Err(invalid(field, format!("`{field}` must be at least 1, not {value}."))),
        // The context is far smaller than that and bounds it.
        Some(value) => Ok(Some(u32::try_from(value).unwrap_or(u32::MAX))),
    }
}

/// A number of things, of which none may be wanted.
pub(crate) fn count_or_zero(request: &Object<'_>, field: &str) -> Result<Option<u32>, Fault> {
    if request.integer(field)? == Some(0) { Ok(Some(0)) } else { count(request, field) }
}

/// How many choices a request wants for each of `prompts`.
pub(crate) fn choices(request: &Object<'_>, prompts: usize) -> Result<usize, Fault> {
    let n = count(request, "n")?.unwrap_or(1) as usize;
    match n.saturating_mul(prompts) > MAX_CHOICES {
        false => Ok(n),
        true if prompts == 1 => Err(request.invalid("n", &format!("must be at most {MAX_CHOICES}, not {n}"))),
        true => {
            let message =
                format!("{prompts} prompts with `n` = {n} make too many choices: at most {MAX_CHOICES} are allowed.");
            Err(invalid("n", message))
        }
    }
}

/// The runs for `n` choices of each of `chats`. Of several choices with one seed, each has its own, as far from the
/// first as it is later. Those behind the first take over its prompt.
pub(crate) fn runs(chats: Vec<ChatRequest>, n: usize) -> Vec<ChatRequest> {
    let choice = |chat: &ChatRequest, index: u64| {
        let mut chat = chat.clone();
        chat.sampling.seed = chat.sampling.seed.map(|seed| seed.wrapping_add(index));
        chat.cache_prompt = if index == 0 { chat.cache_prompt } else { Some(true) };
        chat
    };
    chats.iter().flat_map(|chat| (0..n as u64).map(move |index| choice(chat, index))).collect()
}

/// The stop strings in `field`: a string, or an array of them.
pub(crate) fn stops(request: &Object<'_>, field: &str) -> Result<Vec<String>, Fault> {
    let stops = match request.get(field) {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => strings(stops, field)?,
        Some(other) => return Err(wrong(field, "a string or an array of strings", other)),
    };
    if stops.len() > MAX_STOPS {
        let message = format!("`{field}` holds {} strings; at most {MAX_STOPS} are allowed.", stops.len());
        return Err(invalid(field, message));
    }
    if stops.iter().any(String::is_empty) {
        return Err(invalid(field, format!("`{field}` must not hold an empty string.")));
    }
    Ok(stops)
}

fn strings(values: &[Value], path: &str) -> Result<Vec<String>, Fault> {
    let text = |(index, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong(&format!("{path}[{index}]"), "a string", other)),
    };
    values.iter().enumerate().map(text).collect()
}

/// A grammar in GBNF that the answer is held to, and nothing else is held to besides it.
pub(crate) fn grammar(request: &Object<'_>) -> Result<Option<String>, Fault> {
    let Some(grammar) = request.text("grammar")?.filter(|grammar| !grammar.is_empty()) else { return Ok(None) };
    for other in ["tools", "response_format", "text", "output_config", "output_format"] {
        let is_text = |value: &Value| value.get("type").is_some_and(|kind| kind == "text");
        let asks = match request.get(other) {
            None => false,
            Some(Value::Array(items)) => !items.is_empty(),
            Some(value) if other == "response_format" || other == "output_format" => !is_text(value),
            Some(value) => value.get("format").is_some_and(|format| !format.is_null() && !is_text(format)),
        };
        if asks {
            return Err(request.invalid("grammar", &format!("cannot hold together with `{other}`")));
        }
    }
    Ok(Some(grammar.to_owned()))
}

/// Whether a streamed answer ends with its usage.
pub(crate) fn include_usage(request: &Object<'_>, stream: bool) -> Result<bool, Fault> {
    let Some(options) = request.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(invalid("stream_options", "`stream_options` is only allowed when `stream` is true."));
    }
    Ok(options.flag("include_usage")?.unwrap_or(false))
}

/// More variables for the template: `chat_template_kwargs`, and the `effort` that stands at `path`, unless the former
/// has it already.
pub(crate) fn template(request: &Object<'_>, effort: Option<&str>, path: &str) -> Result<Map<String, Value>, Fault> {
    let mut variables = request.object("chat_template_kwargs")?.map(|kwargs| kwargs.map().clone()).unwrap_or_default();
    if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
        let path = format!("chat_template_kwargs.{name}");
        return Err(invalid(path.clone(), format!("`{path}` is not allowed: the template has a `{name}` already.")));
    }
    if let Some(effort) = effort {
        if !EFFORTS.contains(&effort) {
            return Err(invalid(path, format!("`{path}` must be one of `{}`.", EFFORTS.join("`, `"))));
        }
        variables.entry("reasoning_effort").or_insert(Value::String(effort.to_owned()));
    }
    Ok(variables)
}
