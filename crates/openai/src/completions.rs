//! `POST /v1/completions`: a prompt as it is, without roles and without a template.

use mesh_types::chat::{RawInput, RawPrompt};
use mesh_types::{ChatRequest, Fault, ResponseFormat, TokenId, ToolChoice};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::event::{Answer, Event, total};
use crate::fields::COMPLETIONS;
use crate::ignored::Ignored;
use crate::json::{self, Object, invalid, missing, wrong};
use crate::reply::{Context, Parsed, Reply};
use crate::response::{Head, UsageObject, finish_reason};
use crate::stream::Slot;
use crate::{logprobs, settings, sse};

/// The dialect's own ceiling where a request names none.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// See [`crate::parse`].
pub(crate) fn parse(body: &[u8], context: &Context) -> Result<Parsed, Fault> {
    let map = json::body(body)?;
    let mut ignored = Ignored::default();
    COMPLETIONS.sort(&map, "", &mut ignored)?;
    let request = Object::root(&map);
    let stream = request.flag("stream")?.unwrap_or(false);
    let echo = request.flag("echo")?.unwrap_or(false);
    let prompts = prompts(request.get("prompt"), "prompt", settings::MAX_CHOICES)?;
    let n = settings::choices(&request, prompts.len())?;
    let base = ChatRequest {
        request: context.request.clone(),
        model: settings::model(&request)?,
        messages: Vec::new(),
        raw: None,
        max_tokens: Some(settings::count_or_zero(&request, "max_tokens")?.unwrap_or(DEFAULT_MAX_TOKENS)),
        sampling: settings::sampling(&request, 2.0)?,
        logit_bias: settings::logit_bias(&request)?,
        logprobs: settings::top("logprobs", request.integer("logprobs")?)?,
        stop: settings::stops(&request, "stop")?,
        tools: Vec::new(),
        tool_choice: ToolChoice::None,
        parallel_tool_calls: true,
        response_format: ResponseFormat::Text,
        grammar: settings::grammar(&request)?,
        cache_prompt: request.flag("cache_prompt")?,
        conversation: settings::conversation(&request, "prompt_cache_key"),
        template_kwargs: Map::new(),
    };
    let head = Head::new("cmpl-", base.model.as_str(), context);
    let include_usage = settings::include_usage(&request, stream)?;
    let chat = |input| ChatRequest { raw: Some(RawPrompt { input, echo }), ..base.clone() };
    let runs = settings::runs(prompts.into_iter().map(chat).collect(), n);
    let reply =
        Writer { head, n, answers: vec![Answer::default(); runs.len()], offsets: vec![0; runs.len()], include_usage };
    Ok(Parsed { runs, stream, ignored: ignored.into(), reply: Box::new(reply) })
}

/// The texts at `path`, at most so many: each is a text or an array of tokens; an array of such is several.
pub(crate) fn prompts(value: Option<&Value>, path: &str, most: usize) -> Result<Vec<RawInput>, Fault> {
    let items = match value {
        None => return Err(missing(path)),
        Some(Value::Array(items)) if items.is_empty() => return Err(invalid(path, format!("`{path}` is empty."))),
        Some(Value::Array(items)) => items,
        Some(other) => return Ok(vec![prompt(other, path)?]),
    };
    if items.iter().all(Value::is_number) {
        return Ok(vec![tokens(items, path)?]);
    }
    if items.len() > most {
        return Err(invalid(path, format!("`{path}` holds {} texts; at most {most} are allowed.", items.len())));
    }
    items.iter().enumerate().map(|(index, item)| prompt(item, &format!("{path}[{index}]"))).collect()
}

fn prompt(value: &Value, path: &str) -> Result<RawInput, Fault> {
    match value {
        Value::String(text) => Ok(RawInput::Text { text: text.clone(), add_special: true, parse_special: true }),
        Value::Array(items) => tokens(items, path),
        other => Err(wrong(path, "a string or an array of tokens", other)),
    }
}

/// The tokens in an array at `path`.
pub(crate) fn tokens(items: &[Value], path: &str) -> Result<RawInput, Fault> {
    let token = |(index, item): (usize, &Value)| {
        let token = item.as_i64().and_then(|token| i32::try_from(token).ok());
        token.map(TokenId).ok_or_else(|| wrong(&format!("{path}[{index}]"), "a token's number", item))
    };
    items.iter().enumerate().map(token).collect::<Result<_, _>>().map(RawInput::Tokens)
}

struct Writer {
    head: Head,
    /// Choices of each prompt.
    n: usize,
    /// Of each choice: its end, and log probabilities that wait for their text.
    answers: Vec<Answer>,
    /// Of each choice: characters of the tokens whose log probabilities were written.
    offsets: Vec<usize>,
    include_usage: bool,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Slot::is_absent")]
    usage: Slot,
}

#[derive(Serialize)]
struct Choice<'a> {
    text: &'a str,
    index: u32,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

impl Writer {
    fn completion<'a>(&'a self, choices: Vec<Choice<'a>>, usage: Slot) -> Completion<'a> {
        let Head { id, created, model } = &self.head;
        Completion { id, object: "text_completion", created: *created, model, choices, usage }
    }

    fn chunk(&self, choices: Vec<Choice<'_>>) -> Vec<u8> {
        let usage = if self.include_usage { Slot::Null } else { Slot::Absent };
        sse::event(&self.completion(choices, usage))
    }

    /// Those that wait.
    fn logprobs(&mut self, choice: u32) -> Option<Value> {
        let waiting = std::mem::take(&mut self.answers.get_mut(choice as usize)?.logprobs);
        let offset = self.offsets.get_mut(choice as usize)?;
        let (shown, after) = logprobs::completion(&waiting, *offset);
        *offset = after;
        shown
    }

    fn usage(&self, answers: &[Answer]) -> UsageObject {
        total(answers, self.n).into()
    }
}

impl Reply for Writer {
    fn begin(&mut self, _prompt_tokens: u32) -> Vec<u8> {
        Vec::new()
    }

    fn event(&mut self, choice: u32, event: &Event) -> Vec<u8> {
        if let (Event::Logprobs(_) | Event::Stop(_) | Event::Finished(..), Some(answer)) =
            (event, self.answers.get_mut(choice as usize))
        {
            answer.push(event);
        }
        match event {
            Event::Text(text) => {
                let logprobs = self.logprobs(choice);
                self.chunk(vec![Choice { text, index: choice, logprobs, finish_reason: None }])
            }
            Event::Finished(reason, _) => {
                let logprobs = self.logprobs(choice);
                let finish_reason = Some(finish_reason(*reason));
                self.chunk(vec![Choice { text: "", index: choice, logprobs, finish_reason }])
            }
            Event::Logprobs(_) | Event::Stop(_) => Vec::new(),
            // A raw prompt's answer is read as text alone.
            Event::Reasoning(_) | Event::Call { .. } | Event::Arguments { .. } => Vec::new(),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.include_usage {
            out.extend(sse::event(&self.completion(Vec::new(), Slot::Usage(self.usage(&self.answers)))));
        }
        out.extend_from_slice(sse::DONE);
        out
    }

    fn error(&mut self, error: &ApiError) -> Vec<u8> {
        sse::event(&serde_json::json!({ "error": error.error }))
    }

    fn whole(&mut self, answers: &[Answer]) -> Vec<u8> {
        let texts: Vec<_> = answers.iter().map(Answer::text).collect();
        let choice = |(index, (answer, text)): (usize, (&Answer, _))| {
            let finish_reason = Some(finish_reason(answer.reason()));
            let (logprobs, _) = logprobs::completion(&answer.logprobs, 0);
            Choice { text, index: index as u32, logprobs, finish_reason }
        };
        let choices = answers.iter().zip(texts.iter().map(String::as_str)).enumerate().map(choice).collect();
        // Struct fields and strings only: serialising them cannot fail.
        serde_json::to_vec(&self.completion(choices, Slot::Usage(self.usage(answers)))).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Part;
    use crate::testkit::context;
    use mesh_types::{FinishReason, Usage};
    use serde_json::json;

    fn parsed(extra: Value) -> Result<Parsed, Fault> {
        let mut body = json!({"model": "m", "prompt": "Once"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(body.to_string().as_bytes(), &context())
    }

    fn text(text: &str) -> RawInput {
        RawInput::Text { text: text.into(), add_special: true, parse_special: true }
    }

    #[test]
    fn a_prompt_is_text_tokens_or_several() {
        let inputs = |prompt: Value| -> Vec<RawInput> {
            let runs = parsed(json!({"prompt": prompt, "n": 2})).unwrap().runs;
            runs.into_iter().step_by(2).map(|run| run.raw.unwrap().input).collect()
        };
        let ids = |ids: &[i32]| RawInput::Tokens(ids.iter().copied().map(TokenId).collect());
        assert_eq!(inputs(json!("a")), [text("a")]);
        assert_eq!(inputs(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(inputs(json!([1, 2])), [ids(&[1, 2])]);
        assert_eq!(inputs(json!([[1, 2], [3], "c"])), [ids(&[1, 2]), ids(&[3]), text("c")]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (extra, param) in [
            (json!({"prompt": null}), "prompt"),
            (json!({"prompt": 3}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt[0]"),
            (json!({"prompt": [[1, 1.5]]}), "prompt[0][1]"),
            (json!({"prompt": ["a", {}]}), "prompt[1]"),
            (json!({"suffix": "end"}), "suffix"),
            (json!({"best_of": 2}), "best_of"),
            (json!({"prompt": vec!["a"; 9], "n": 2}), "n"),
            (json!({"model": null}), "model"),
            (json!({"max_tokens": -1}), "max_tokens"),
            (json!({"logprobs": 21}), "logprobs"),
        ] {
            assert_eq!(parsed(extra.clone()).err().unwrap().param.as_deref(), Some(param), "{extra}");
        }
        assert_eq!(parsed(json!({})).unwrap().runs[0].max_tokens, Some(16));
        assert_eq!(parsed(json!({"max_tokens": 0})).unwrap().runs[0].max_tokens, Some(0));
    }

    #[test]
    fn an_answer_has_the_dialects_shape_whole_and_streamed() {
        let usage = Usage { prompt_tokens: 1, completion_tokens: 2, ..Usage::default() };
        let end = (FinishReason::Length, usage);
        let answer = Answer { parts: vec![Part::Text(" upon".into())], end: Some(end), ..Answer::default() };
        let mut reply = parsed(json!({})).unwrap().reply;
        let whole: Value = serde_json::from_slice(&reply.whole(&[answer])).unwrap();
        let usage_json = json!({
            "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        });
        let expected = json!({
            "id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m",
            "choices": [{"text": " upon", "index": 0, "logprobs": null, "finish_reason": "length"}],
            "usage": usage_json,
        });
        assert_eq!(whole, expected);

        let parsed = parsed(json!({"stream": true, "stream_options": {"include_usage": true}})).unwrap();
        let mut reply = parsed.reply;
        let mut bytes = reply.begin(1);
        bytes.extend(reply.event(0, &Event::Text(" upon".into())));
        bytes.extend(reply.event(0, &Event::Finished(end.0, end.1)));
        bytes.extend(reply.end());
        let bytes = bytes.strip_suffix(sse::DONE).unwrap();
        let events: Vec<Value> = crate::testkit::events(bytes).into_iter().map(|event| event.1).collect();
        let choice =
            |text: &str, reason: Value| json!([{"text": text, "index": 0, "logprobs": null, "finish_reason": reason}]);
        assert_eq!(events[0]["choices"], choice(" upon", Value::Null));
        assert_eq!(events[1]["choices"], choice("", json!("length")));
        assert_eq!((&events[2]["choices"], &events[2]["usage"]), (&json!([]), &usage_json));
    }
}
