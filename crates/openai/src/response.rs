//! What is answered: whole completions and the list of models, in the shapes of
//! <https://platform.openai.com/docs/api-reference/chat/object>.

use mesh_types::{FinishReason, ToolCall, Usage};
use serde::Serialize;

use crate::event::{Answer, total};
use crate::logprobs::ChatLogprobs;
use crate::reply::Context;

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

impl Head {
    /// The head of the answer to the request of `context`; its id begins with `prefix`.
    pub(crate) fn new(prefix: &str, model: &str, context: &Context) -> Self {
        Self { id: format!("{prefix}{}", context.unique), created: context.created, model: model.to_owned() }
    }
}

/// Token counts, in the dialect's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UsageObject {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: u32,
    /// Where tokens were computed ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<u32>,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        let is_drafted = usage.accepted_tokens > 0 || usage.rejected_tokens > 0;
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: usage.reasoning_tokens,
                accepted_prediction_tokens: is_drafted.then_some(usage.accepted_tokens),
                rejected_prediction_tokens: is_drafted.then_some(usage.rejected_tokens),
            },
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
    choices: Vec<Choice<'a>>,
    usage: UsageObject,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: AssistantMessage<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
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

impl<'a> From<&'a Answer> for AssistantMessage<'a> {
    fn from(answer: &'a Answer) -> Self {
        let (content, reasoning_content) = (answer.text(), answer.reasoning());
        let tool_calls: Vec<_> = answer.calls().map(Call::from).collect();
        // An answer that is empty altogether still is text.
        let is_silent = content.is_empty() && !(reasoning_content.is_empty() && tool_calls.is_empty());
        let content = (!is_silent).then_some(content);
        Self { role: "assistant", content, refusal: None, reasoning_content, tool_calls }
    }
}

impl<'a> From<&'a ToolCall> for Call<'a> {
    fn from(call: &'a ToolCall) -> Self {
        let function = Function { name: &call.name, arguments: &call.arguments };
        Self { id: &call.id, kind: "function", function }
    }
}

/// A whole chat completion as JSON.
pub(crate) fn completion(head: &Head, answers: &[Answer]) -> Vec<u8> {
    let completion = Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: answers
            .iter()
            .enumerate()
            .map(|(index, answer)| Choice {
                index: index as u32,
                message: AssistantMessage::from(answer),
                logprobs: ChatLogprobs::of(&answer.logprobs),
                finish_reason: finish_reason(answer.reason()),
            })
            .collect(),
        usage: total(answers, answers.len()).into(),
    };
    // Struct fields and strings only: serialising them cannot fail.
    serde_json::to_vec(&completion).unwrap_or_default()
}

/// One entry of `/v1/models`, with this product's additions under `x-mesh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The name it is served under.
    pub id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens one sequence can hold, where vLLM's clients look for it.
    max_model_len: u32,
    /// What this product knows beyond the dialect.
    #[serde(rename = "x-mesh")]
    pub mesh: ModelMeta,
}

/// How a model is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelMeta {
    /// Tokens one sequence can hold; the smallest of its replicas.
    pub context: u32,
    /// Layers in all.
    pub layers: u32,
    /// How it calls tools: `native (FORMAT)`, or `emulated: REASON`.
    pub tools: String,
    /// Where it runs: one for each replica.
    pub replicas: Vec<Replica>,
    /// Whether a script answers instead of weights.
    pub scripted: bool,
}

/// One replica of a model: a chain of stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replica {
    /// Its stages in their order.
    pub stages: Vec<StagePlace>,
}

/// Where a stage runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StagePlace {
    /// The node's name.
    pub node: String,
    /// Its layers, as in `0-14`; empty: not said.
    pub layers: String,
}

impl Model {
    /// The entry of the model `id`; `created` is Unix time in seconds.
    pub fn new(id: impl Into<String>, created: u64, mesh: ModelMeta) -> Self {
        let max_model_len = mesh.context;
        Self { id: id.into(), object: "model", created, owned_by: "mesh-node", max_model_len, mesh }
    }
}

/// The body of `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelList {
    object: &'static str,
    /// The models, in the order shown.
    pub data: Vec<Model>,
    #[serde(rename = "x-mesh", skip_serializing_if = "Option::is_none")]
    mesh: Option<ListMeta>,
}

/// What a list of models says beyond those that answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ListMeta {
    loading: Vec<Loading>,
}

/// A model that does not answer yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loading {
    /// Its name.
    pub id: String,
    /// What is missing or going on, for people: by replica.
    pub progress: Vec<String>,
}

impl ModelList {
    /// The list of `data`.
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list", data, mesh: None }
    }

    /// The same, with models that do not answer yet.
    #[must_use]
    pub fn with_loading(self, loading: Vec<Loading>) -> Self {
        Self { mesh: (!loading.is_empty()).then_some(ListMeta { loading }), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Part;
    use serde_json::{Value, json};

    fn answer(parts: Vec<Part>, reason: FinishReason) -> Answer {
        let usage =
            Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: 4, reasoning_tokens: 1, ..Usage::default() };
        let end = Some((reason, usage));
        Answer { parts, end, ..Answer::default() }
    }

    fn whole(answers: &[Answer]) -> Value {
        let head = Head { id: "chatcmpl-1".into(), created: 7, model: "m".into() };
        serde_json::from_slice(&completion(&head, answers)).unwrap()
    }

    #[test]
    fn a_completion_has_the_dialects_shape() {
        let body = whole(&[answer(vec![Part::Text("hi".into())], FinishReason::Length)]);
        let expected = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                "logprobs": null, "finish_reason": "length",
            }],
            "usage": {
                "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 1},
            },
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn choices_are_indexed_and_their_prompt_counts_once() {
        let said = |text: &str| answer(vec![Part::Text(text.into())], FinishReason::Stop);
        let body = whole(&[said("a"), said("b"), said("c")]);
        let seen = |index: usize| {
            (body["choices"][index]["index"].clone(), body["choices"][index]["message"]["content"].clone())
        };
        assert_eq!(
            [seen(0), seen(1), seen(2)],
            [(json!(0), json!("a")), (json!(1), json!("b")), (json!(2), json!("c"))]
        );
        assert_eq!(body["usage"]["prompt_tokens"], 5);
        assert_eq!(body["usage"]["completion_tokens"], 6);
        assert_eq!(body["usage"]["total_tokens"], 11);
    }

    /// The message of a completion.
    fn message(parts: Vec<Part>) -> Value {
        let body = whole(&[answer(parts, FinishReason::ToolCalls)]);
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
        body["choices"][0]["message"].clone()
    }

    #[test]
    fn calls_stand_in_an_array_and_silence_is_null() {
        let call = |id: &str, arguments: &str| {
            Part::Call(ToolCall { id: id.into(), name: "f".into(), arguments: arguments.into() })
        };
        let calls = || [call("a", "{\"x\": 1.0 }"), call("b", "{}")];
        let shown = json!([
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1.0 }"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]);
        let expected = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": shown});
        assert_eq!(message(calls().into()), expected);
        let parts = [Part::Reasoning("Hm.".into()), Part::Text("Let me see.".into())].into_iter().chain(calls());
        let expected = json!({
            "role": "assistant", "content": "Let me see.", "refusal": null, "reasoning_content": "Hm.",
            "tool_calls": shown,
        });
        assert_eq!(message(parts.collect()), expected);
    }

    #[test]
    fn an_empty_answer_is_an_empty_text() {
        assert_eq!(message(Vec::new())["content"], "");
        assert_eq!(message(vec![Part::Reasoning("Hm.".into())])["content"], Value::Null);
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
        assert!(body.get("x-mesh").is_none());
        let loading = Loading { id: "n".into(), progress: vec!["fetching: 1 MiB of 9 MiB".into()] };
        let body = serde_json::to_value(ModelList::new(Vec::new()).with_loading(vec![loading])).unwrap();
        assert_eq!(body["x-mesh"]["loading"][0]["id"], "n");
    }
}
