//! What is answered: whole completions and the list of models, in the shapes of
//! <https://platform.openai.com/docs/api-reference/chat/object>.

use mesh_types::{FinishReason, ToolCall, Usage};
use serde::Serialize;

/// What all parts of one answer share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// `chatcmpl-…`, unique.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
}

/// Token counts, in the dialect's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UsageObject {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// `finish_reason` as the dialect names it.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: UsageObject,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: AssistantMessage<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning_content: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

/// All that a model said and did in one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it said.
    pub content: String,
    /// What it thought before; empty: nothing.
    pub reasoning: String,
    /// The tools that it calls.
    pub calls: Vec<ToolCall>,
}

impl Answer {
    fn message(&self) -> AssistantMessage<'_> {
        // An answer that is empty altogether still is text.
        let is_silent = self.content.is_empty() && !(self.reasoning.is_empty() && self.calls.is_empty());
        AssistantMessage {
            role: "assistant",
            content: (!is_silent).then_some(&self.content),
            refusal: None,
            reasoning_content: &self.reasoning,
            tool_calls: self.calls.iter().map(Call::from).collect(),
        }
    }
}

impl<'a> From<&'a ToolCall> for Call<'a> {
    fn from(call: &'a ToolCall) -> Self {
        let function = Function { name: &call.name, arguments: &call.arguments };
        Self { id: &call.id, kind: "function", function }
    }
}

/// A whole chat completion as JSON.
pub fn completion(head: &Head, answer: &Answer, reason: FinishReason, usage: Usage) -> Vec<u8> {
    let message = answer.message();
    let choice = Choice { index: 0, message, logprobs: None, finish_reason: finish_reason(reason) };
    let completion = Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: [choice],
        usage: usage.into(),
    };
    // Struct fields and strings only: serialising them cannot fail.
    serde_json::to_vec(&completion).unwrap_or_default()
}

/// One entry of `/v1/models`, with this product's additions under `meta`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The name it is served under.
    pub id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// What this product knows beyond the dialect.
    pub meta: ModelMeta,
}

/// How a model is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelMeta {
    /// Tokens one sequence can hold; the smallest of its replicas.
    pub context: u32,
    /// Layers in all.
    pub layers: u32,
    /// Node names in stage order, of each replica.
    pub replicas: Vec<Vec<String>>,
    /// Whether a script answers instead of weights.
    pub scripted: bool,
}

impl Model {
    /// The entry of the model `id`; `created` is Unix time in seconds.
    pub fn new(id: impl Into<String>, created: u64, meta: ModelMeta) -> Self {
        Self { id: id.into(), object: "model", created, owned_by: "mesh-node", meta }
    }
}

/// The body of `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelList {
    object: &'static str,
    /// The models, in the order shown.
    pub data: Vec<Model>,
}

impl ModelList {
    /// The list of `data`.
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list", data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_completion_has_the_dialects_shape() {
        let head = Head { id: "chatcmpl-1".into(), created: 7, model: "m".into() };
        let usage = Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: 4 };
        let answer = Answer { content: "hi".into(), ..Answer::default() };
        let body: Value = serde_json::from_slice(&completion(&head, &answer, FinishReason::Length, usage)).unwrap();
        let expected = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                "logprobs": null, "finish_reason": "length",
            }],
            "usage": {
                "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        });
        assert_eq!(body, expected);
    }

    /// The message and the finish reason of a completion.
    fn message(answer: &Answer) -> Value {
        let head = Head { id: "chatcmpl-1".into(), created: 7, model: "m".into() };
        let body = completion(&head, answer, FinishReason::ToolCalls, Usage::default());
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
        body["choices"][0]["message"].clone()
    }

    #[test]
    fn calls_stand_in_an_array_and_silence_is_null() {
        let call =
            |id: &str, arguments: &str| ToolCall { id: id.into(), name: "f".into(), arguments: arguments.into() };
        let mut answer = Answer { calls: vec![call("a", "{\"x\": 1.0 }"), call("b", "{}")], ..Answer::default() };
        let calls = json!([
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1.0 }"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]);
        let expected = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": calls});
        assert_eq!(message(&answer), expected);
        answer.content = "Let me see.".into();
        answer.reasoning = "Hm.".into();
        let expected = json!({
            "role": "assistant", "content": "Let me see.", "refusal": null, "reasoning_content": "Hm.",
            "tool_calls": calls,
        });
        assert_eq!(message(&answer), expected);
    }

    #[test]
    fn an_empty_answer_is_an_empty_text() {
        assert_eq!(message(&Answer::default())["content"], "");
        let thought = Answer { reasoning: "Hm.".into(), ..Answer::default() };
        assert_eq!(message(&thought)["content"], Value::Null);
    }

    #[test]
    fn a_model_list_has_the_dialects_shape() {
        let list = ModelList::new(vec![Model::new("m", 7, ModelMeta::default())]);
        let body = serde_json::to_value(list).unwrap();
        assert_eq!(body["object"], "list");
        assert_eq!(body["data"][0]["id"], "m");
        assert_eq!(body["data"][0]["object"], "model");
        assert_eq!(body["data"][0]["created"], 7);
        assert_eq!(body["data"][0]["owned_by"], "mesh-node");
    }
}
