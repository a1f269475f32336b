//! Answers of a scripted model, all the way through stage 0: template, constraint, pipeline, reader, events.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt as _;
use mesh_chat::capability::Reason;
use mesh_chat::{Demand, Format, Strategy};
use mesh_engine::StageSpec;
use mesh_engine::scripted::ScriptedStage;
use mesh_pipeline::{Config, Pipeline};
use mesh_proto::v1::generate_event::Event;
use mesh_routing::Split;
use mesh_types::{
    ChatRequest, Fault, LayerRange, Message, ModelId, RequestId, ResponseFormat, TokenId, Tool, ToolChoice,
};
use serde_json::{Value, json};

use super::model::{Availability, ServedModel};
use super::{Answer, demand, prompt};
use crate::settings::ModelSettings;

const CONTEXT: u32 = 4096;
/// A template that renders calls as Hermes models do.
const HERMES: &str = "{% for t in tools or [] %}{{ t|tojson }}{% endfor %}{% for m in messages %}[{{ m.role }}]\
    {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \
    \"arguments\": {{ c.function.arguments|tojson }}}\n</tool_call>{% endfor %}{% endfor %}[assistant]";
const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";

/// What an answer came to.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    content: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    reason: String,
    relaxed: Vec<String>,
}

struct Scripted {
    model: Arc<ServedModel>,
    _folder: tempfile::TempDir,
}

fn smollm2() -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("mesh-node/models")
    });
    folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

impl Scripted {
    fn new(template: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("template.jinja");
        std::fs::write(&path, template).unwrap();
        let settings = ModelSettings {
            path: smollm2(),
            name: ModelId::new("m"),
            split: Split::Auto,
            chat_template: Some(path),
            force_tool_emulation: false,
            scripted: None,
            draft: None,
        };
        let model = Arc::new(ServedModel::open(&settings, Some(CONTEXT)).unwrap());
        Self { model, _folder: folder }
    }

    /// Lets the model say `output` after any prompt.
    async fn says(&self, output: &str) {
        let mut tokens = self.model.vocab.tokenize(output, false, true).unwrap();
        tokens.push(self.model.vocab.eog_tokens()[0]);
        let spec = StageSpec {
            model: ModelId::new("m"),
            layers: LayerRange::new(0, 1).unwrap(),
            n_layer: 1,
            n_embd: 8,
            n_vocab: self.model.vocab.n_tokens(),
            n_ctx: CONTEXT,
            n_seq: 1,
            n_batch: 512,
            n_cells: CONTEXT,
            cuts_back: true,
            rolls_back: true,
            n_parked: 0,
            n_states: 0,
        };
        let last = *tokens.last().unwrap();
        let script = move |_: &[TokenId], index: u32| TokenId(tokens.get(index as usize).copied().unwrap_or(last));
        let pipeline = Pipeline::start(Arc::new(ScriptedStage::new(spec, script)), Config::default()).await.unwrap();
        self.model.availability.send_replace(Availability::Ready(Arc::new(pipeline)));
    }

    async fn answer(&self, request: ChatRequest) -> Result<Said, Fault> {
        let events = Answer::start(&self.model, request).await?.into_stream();
        let mut said = Said { content: String::new(), calls: Vec::new(), reason: String::new(), relaxed: Vec::new() };
        let mut events = Box::pin(events);
        while let Some(event) = events.next().await {
            match event.event.unwrap() {
                Event::Started(started) => said.relaxed = started.relaxed,
                Event::Delta(delta) => said.content += &delta.text,
                Event::ToolCallStart(start) => said.calls.push((start.name, String::new())),
                Event::ToolCallDelta(delta) => said.calls[delta.index as usize].1 += &delta.text,
                Event::Finished(finished) => said.reason = finished.reason().as_str_name().to_owned(),
                Event::Reasoning(_) => {}
                Event::Fault(fault) => panic!("{fault:?}"),
            }
        }
        Ok(said)
    }
}

fn tool(name: &str, parameters: Value) -> Tool {
    let function = json!({"name": name, "description": "Does it.", "parameters": parameters});
    Tool::from_definition(json!({"type": "function", "function": function})).unwrap()
}

fn city() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
}

fn ask(tools: Vec<Tool>, tool_choice: ToolChoice) -> ChatRequest {
    ChatRequest {
        request: RequestId::new("r"),
        model: ModelId::new("m"),
        messages: vec![Message { role: "user".into(), content: Some("Weather in Oslo?".into()), ..Message::default() }],
        max_tokens: Some(512),
        sampling: Default::default(),
        stop: Vec::new(),
        tools,
        tool_choice,
        parallel_tool_calls: true,
        response_format: ResponseFormat::Text,
        grammar: None,
        cache_prompt: None,
        logit_bias: Vec::new(),
        logprobs: None,
        conversation: None,
        template_kwargs: Default::default(),
        raw: None,
    }
}

fn call(name: &str, city: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>")
}

#[tokio::test]
async fn no_call_comes_where_none_is_wanted_and_the_prompt_stays_that_of_auto() {
    let scripted = Scripted::new(HERMES);
    let output = call("get_weather", "Oslo");
    scripted.says(&output).await;
    let said = scripted.answer(ask(vec![tool("get_weather", city())], ToolChoice::None)).await.unwrap();
    assert_eq!((said.calls, said.reason.as_str()), (vec![], "REASON_STOP"));
    assert_eq!(said.content, output);
    for template in [HERMES, PLAIN] {
        let model = Scripted::new(template).model;
        let prompt =
            |choice| prompt::Prompt::of(&ask(vec![tool("get_weather", city())], choice), &model).unwrap().tokens;
        assert_eq!(prompt(ToolChoice::None), prompt(ToolChoice::Auto));
    }
}

#[tokio::test]
async fn one_call_comes_where_there_may_be_one() {
    let scripted = Scripted::new(HERMES);
    scripted.says(&format!("{}\n{}", call("get_weather", "Oslo"), call("get_weather", "Lima"))).await;
    let tools = || vec![tool("get_weather", city())];
    let said = scripted.answer(ChatRequest { parallel_tool_calls: false, ..ask(tools(), ToolChoice::Auto) }).await;
    let said = said.unwrap();
    assert_eq!(said.calls, [("get_weather".to_owned(), "{\"city\": \"Oslo\"}".to_owned())]);
    assert_eq!((said.content.trim(), said.reason.as_str()), ("", "REASON_TOOL_CALLS"));
    let said = scripted.answer(ask(tools(), ToolChoice::Required)).await.unwrap();
    assert_eq!(said.calls.len(), 2);
}

#[tokio::test]
async fn tools_without_parameters_are_called_with_none() {
    let bare = |name: &str, extra: Value| {
        let mut function = json!({"name": name});
        function.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Tool::from_definition(json!({"type": "function", "function": function})).unwrap()
    };
    let closed = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tools = || {
        vec![
            bare("get_time", json!({})),
            bare("get_date", json!({"parameters": null})),
            bare("get_zone", json!({"parameters": {}, "strict": null})),
            bare("get_moon", json!({"parameters": closed, "strict": true})),
        ]
    };
    for (template, output) in
        [(HERMES, "<tool_call>\n{\"name\": \"get_time\"}\n</tool_call>"), (PLAIN, "TOOL_CALL {\"name\": \"get_time\"}")]
    {
        let scripted = Scripted::new(template);
        scripted.says(output).await;
        let said = scripted.answer(ask(tools(), ToolChoice::Auto)).await.unwrap();
        assert_eq!(said.calls, [("get_time".to_owned(), "{}".to_owned())], "{output}");
        assert_eq!((said.reason.as_str(), said.relaxed.len()), ("REASON_TOOL_CALLS", 0));
    }
}

#[tokio::test]
async fn nested_arguments_come_back_and_relaxed_keywords_are_told() {
    let stop = json!({"type": "object", "properties": {"city": {"type": "string"}, "nights": {"type": "integer",
        "minimum": 1}}, "required": ["city"]});
    let parameters = json!({"type": "object", "$defs": {"Stop": stop}, "properties": {
        "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "uniqueItems": true},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "kind": {"enum": ["town", "city", null]}, "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }, "required": ["stops"]});
    let arguments = "{\"stops\": [{\"city\": \"Oslo\", \"nights\": 2}], \"grid\": [[1, 2.5], []]}";
    let scripted = Scripted::new(HERMES);
    let output = format!("<tool_call>\n{{\"name\": \"plan\", \"arguments\": {arguments}}}\n</tool_call>");
    scripted.says(&output).await;
    let said = scripted.answer(ask(vec![tool("plan", parameters)], ToolChoice::Auto)).await.unwrap();
    assert_eq!(said.calls, [("plan".to_owned(), arguments.to_owned())]);
    assert_eq!(said.relaxed, ["tools[0].function.parameters.properties.stops.uniqueItems"]);
}

#[test]
fn the_enforcer_takes_the_grammars_of_all_formats() {
    let model = Scripted::new(HERMES).model;
    let tools = [tool("f", city()), tool("now", json!(null))];
    let responses = [ResponseFormat::Text, ResponseFormat::JsonObject];
    for strategy in Format::all().map(Strategy::Native).chain([Strategy::Emulated(Reason::Forced)]) {
        for choice in [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required, ToolChoice::Named("f".into())] {
            for (parallel, response) in [(true, &responses[0]), (false, &responses[0]), (true, &responses[1])] {
                let (strategy, template, tools, choice) = (&strategy, &model.template, &tools, &choice);
                let demand = Demand { strategy, template, prompt: "", tools, choice, parallel, response };
                if let Some(constraint) = demand.enforced().unwrap().constraint {
                    let checked = mesh_engine::constraint::check(&constraint);
                    assert_eq!(checked, Ok(()), "{strategy} {choice:?} {:?}", constraint.start);
                }
            }
        }
    }
}

#[test]
fn demands_reach_the_run() {
    let model = Scripted::new(HERMES).model;
    let enforced = |request: &ChatRequest| demand::of(request, &model, "").unwrap();
    let tools = || vec![tool("f", city())];
    assert_eq!(enforced(&ask(Vec::new(), ToolChoice::Auto)).constraint, None);
    for choice in [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required] {
        assert!(enforced(&ask(tools(), choice)).constraint.is_some());
    }
    let response_format = ResponseFormat::JsonObject;
    assert!(enforced(&ChatRequest { response_format, ..ask(Vec::new(), ToolChoice::Auto) }).constraint.is_some());
    let beyond = json!({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"],
        "additionalProperties": false});
    let function = json!({"name": "f", "strict": true, "parameters": beyond});
    let strict = Tool::from_definition(json!({"type": "function", "function": function})).unwrap();
    let refused = demand::of(&ask(vec![strict], ToolChoice::Auto), &model, "").unwrap_err();
    assert_eq!(refused.param.as_deref(), Some("tools[0].function.parameters"));
}
