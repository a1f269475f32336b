//! A chat request between its wire message and [`ChatRequest`]: messages, tools and their settings.

use std::collections::HashSet;

use mesh_types::chat::{RawInput, RawPrompt, SamplingOverrides};
use mesh_types::{
    ChatRequest, Message, ModelId, RequestId, ResponseFormat, ResponseSchema, TokenId, Tool, ToolCall, ToolChoice,
};
use serde_json::{Map, Value};

use super::Malformed;
use crate::v1;
use crate::v1::raw_prompt::Input;
use crate::v1::response_format::Kind;
use crate::v1::tool_choice::Mode;

impl From<&ChatRequest> for v1::GenerateRequest {
    fn from(request: &ChatRequest) -> Self {
        Self {
            request_id: request.request.to_string(),
            model: request.model.to_string(),
            messages: request.messages.iter().map(Into::into).collect(),
            max_tokens: request.max_tokens,
            sampling: Some(request.sampling.into()),
            stop: request.stop.clone(),
            tools: request.tools.iter().map(|tool| tool.definition.to_string()).collect(),
            tool_choice: Some((&request.tool_choice).into()),
            parallel_tool_calls: Some(request.parallel_tool_calls),
            response_format: Some((&request.response_format).into()),
            template_kwargs: match &request.template_kwargs {
                none if none.is_empty() => String::new(),
                // Maps of strings to JSON values: serialising them cannot fail.
                kwargs => serde_json::to_string(kwargs).unwrap_or_default(),
            },
            logit_bias: request
                .logit_bias
                .iter()
                .map(|&(token, bias)| v1::LogitBias { token: token.0, bias })
                .collect(),
            logprobs: request.logprobs.map(u32::from),
            raw: request.raw.as_ref().map(Into::into),
            grammar: request.grammar.clone(),
            cache_prompt: request.cache_prompt,
        }
    }
}

impl TryFrom<v1::GenerateRequest> for ChatRequest {
    type Error = Malformed;

    fn try_from(request: v1::GenerateRequest) -> Result<Self, Malformed> {
        let tools = tools(&request.tools)?;
        let raw = request.raw.map(RawPrompt::try_from).transpose()?;
        if raw.is_some() && !(request.messages.is_empty() && tools.is_empty()) {
            return Err(Malformed("a prompt besides messages or tools"));
        }
        let tool_choice = match request.tool_choice {
            None => ToolChoice::Auto,
            Some(choice) => choice.try_into()?,
        };
        if tool_choice.names().iter().any(|name| !tools.iter().any(|tool| tool.name == *name)) {
            return Err(Malformed("the choice of a tool that is not offered"));
        }
        if tool_choice.forces() && tools.is_empty() {
            return Err(Malformed("the choice of a tool where none is"));
        }
        let response_format = match request.response_format {
            None => ResponseFormat::Text,
            Some(format) => format.try_into()?,
        };
        if request.grammar.is_some() && !(tools.is_empty() && response_format == ResponseFormat::Text) {
            return Err(Malformed("a grammar besides tools or a response format"));
        }
        Ok(Self {
            request: RequestId::new(request.request_id),
            model: ModelId::new(request.model),
            messages: request.messages.into_iter().map(Message::try_from).collect::<Result<_, _>>()?,
            max_tokens: request.max_tokens,
            sampling: request.sampling.unwrap_or_default().into(),
            stop: request.stop,
            tools,
            tool_choice,
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            response_format,
            grammar: request.grammar,
            cache_prompt: request.cache_prompt,
            template_kwargs: kwargs(&request.template_kwargs)?,
            logit_bias: request.logit_bias.iter().map(|entry| (TokenId(entry.token), entry.bias)).collect(),
            logprobs: request.logprobs.map(|top| u8::try_from(top).unwrap_or(u8::MAX)),
            raw,
            conversation: None,
        })
    }
}

impl From<&RawPrompt> for v1::RawPrompt {
    fn from(prompt: &RawPrompt) -> Self {
        let input = match &prompt.input {
            RawInput::Text { text, add_special, parse_special } => {
                let (add_special, parse_special) = (*add_special, *parse_special);
                Input::Text(v1::RawText { text: text.clone(), add_special, parse_special })
            }
            RawInput::Tokens(tokens) => {
                Input::Tokens(v1::RawTokens { tokens: tokens.iter().map(|token| token.0).collect() })
            }
        };
        Self { input: Some(input), echo: prompt.echo }
    }
}

impl From<&RawInput> for v1::EmbedInput {
    fn from(input: &RawInput) -> Self {
        use v1::embed_input::Input;
        let input = match input {
            RawInput::Text { text, add_special, parse_special } => {
                let (add_special, parse_special) = (*add_special, *parse_special);
                Input::Text(v1::RawText { text: text.clone(), add_special, parse_special })
            }
            RawInput::Tokens(tokens) => {
                Input::Tokens(v1::RawTokens { tokens: tokens.iter().map(|token| token.0).collect() })
            }
        };
        Self { input: Some(input) }
    }
}

impl TryFrom<v1::RawPrompt> for RawPrompt {
    type Error = Malformed;

    fn try_from(prompt: v1::RawPrompt) -> Result<Self, Malformed> {
        let input = match prompt.input.ok_or(Malformed("a prompt of an unknown kind"))? {
            Input::Text(v1::RawText { text, add_special, parse_special }) => {
                RawInput::Text { text, add_special, parse_special }
            }
            Input::Tokens(v1::RawTokens { tokens }) => RawInput::Tokens(tokens.into_iter().map(TokenId).collect()),
        };
        Ok(Self { input, echo: prompt.echo })
    }
}

impl From<&Message> for v1::ChatMessage {
    fn from(message: &Message) -> Self {
        let call = |call: &ToolCall| v1::ToolCall {
            id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        };
        Self {
            role: message.role.clone(),
            content: message.content.clone(),
            name: message.name.clone(),
            reasoning_content: message.reasoning_content.clone(),
            tool_calls: message.tool_calls.iter().map(call).collect(),
            tool_call_id: message.tool_call_id.clone(),
        }
    }
}

impl TryFrom<v1::ChatMessage> for Message {
    type Error = Malformed;

    fn try_from(message: v1::ChatMessage) -> Result<Self, Malformed> {
        if message.role.is_empty() {
            return Err(Malformed("a message without a role"));
        }
        if message.tool_calls.iter().any(|call| call.id.is_empty() || call.name.is_empty()) {
            return Err(Malformed("a tool call without an id or a name"));
        }
        if message.role == "tool" && message.tool_call_id.as_ref().is_none_or(String::is_empty) {
            return Err(Malformed("a tool's result that answers no call"));
        }
        let call = |v1::ToolCall { id, name, arguments }| ToolCall { id, name, arguments };
        Ok(Self {
            role: message.role,
            content: message.content,
            name: message.name,
            reasoning_content: message.reasoning_content,
            tool_calls: message.tool_calls.into_iter().map(call).collect(),
            tool_call_id: message.tool_call_id,
        })
    }
}

impl From<&ToolChoice> for v1::ToolChoice {
    fn from(choice: &ToolChoice) -> Self {
        let (mode, name, names) = match choice {
            ToolChoice::Auto => (Mode::Auto, "", Vec::new()),
            ToolChoice::None => (Mode::None, "", Vec::new()),
            ToolChoice::Required => (Mode::Required, "", Vec::new()),
            ToolChoice::Named(name) => (Mode::Named, name.as_str(), Vec::new()),
            ToolChoice::Allowed { names, required: false } => (Mode::Allowed, "", names.clone()),
            ToolChoice::Allowed { names, required: true } => (Mode::AllowedRequired, "", names.clone()),
        };
        Self { mode: mode.into(), name: name.to_owned(), names }
    }
}

impl TryFrom<v1::ToolChoice> for ToolChoice {
    type Error = Malformed;

    fn try_from(choice: v1::ToolChoice) -> Result<Self, Malformed> {
        match choice.mode() {
            Mode::Auto => Ok(Self::Auto),
            Mode::None => Ok(Self::None),
            Mode::Required => Ok(Self::Required),
            Mode::Named => Ok(Self::Named(choice.name)),
            Mode::Allowed | Mode::AllowedRequired if choice.names.is_empty() => {
                Err(Malformed("a tool choice that allows none"))
            }
            mode @ (Mode::Allowed | Mode::AllowedRequired) => {
                Ok(Self::Allowed { names: choice.names, required: mode == Mode::AllowedRequired })
            }
            // What it might allow is not known, so nothing is right but to say so.
            Mode::Unspecified => Err(Malformed("a tool choice of an unknown kind")),
        }
    }
}

impl From<&ResponseFormat> for v1::ResponseFormat {
    fn from(format: &ResponseFormat) -> Self {
        let plain = |kind: Kind| Self { kind: kind.into(), ..Self::default() };
        match format {
            ResponseFormat::Text => plain(Kind::Text),
            ResponseFormat::JsonObject => plain(Kind::JsonObject),
            ResponseFormat::JsonSchema(ResponseSchema { name, schema, strict }) => {
                Self { name: name.clone(), schema: schema.to_string(), strict: *strict, ..plain(Kind::JsonSchema) }
            }
        }
    }
}

impl TryFrom<v1::ResponseFormat> for ResponseFormat {
    type Error = Malformed;

    fn try_from(format: v1::ResponseFormat) -> Result<Self, Malformed> {
        match format.kind() {
            Kind::Text => Ok(Self::Text),
            Kind::JsonObject => Ok(Self::JsonObject),
            Kind::JsonSchema => match serde_json::from_str(&format.schema) {
                Ok(schema @ (Value::Object(_) | Value::Bool(_))) => {
                    Ok(Self::JsonSchema(ResponseSchema { name: format.name, schema, strict: format.strict }))
                }
                _ => Err(Malformed("a response format whose schema is none")),
            },
            Kind::Unspecified => Err(Malformed("a response format of an unknown kind")),
        }
    }
}

impl From<SamplingOverrides> for v1::SamplingOverrides {
    fn from(sampling: SamplingOverrides) -> Self {
        Self {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: sampling.repeat_penalty,
            repeat_last_n: sampling.repeat_last_n,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: sampling.seed,
            ignore_eos: sampling.ignore_eos,
        }
    }
}

impl From<v1::SamplingOverrides> for SamplingOverrides {
    fn from(sampling: v1::SamplingOverrides) -> Self {
        Self {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: sampling.repeat_penalty,
            repeat_last_n: sampling.repeat_last_n,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: sampling.seed,
            ignore_eos: sampling.ignore_eos,
        }
    }
}

fn tools(definitions: &[String]) -> Result<Vec<Tool>, Malformed> {
    let mut names = HashSet::new();
    let mut tools = Vec::new();
    for definition in definitions {
        let definition = serde_json::from_str(definition).map_err(|_| Malformed("a tool that is no JSON"))?;
        let tool = Tool::from_definition(definition).map_err(|_| Malformed("a tool that is not well defined"))?;
        if !names.insert(tool.name.clone()) {
            return Err(Malformed("two tools of one name"));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn kwargs(json: &str) -> Result<Map<String, Value>, Malformed> {
    match json {
        "" => Ok(Map::new()),
        json => serde_json::from_str(json).map_err(|_| Malformed("template variables that are no JSON object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(name: &str) -> Tool {
        let function =
            json!({"zeta": 1, "name": name, "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}});
        Tool::from_definition(json!({"type": "function", "function": function})).unwrap()
    }

    fn request() -> ChatRequest {
        let text = |role: &str, content: &str| Message {
            role: role.into(),
            content: Some(content.into()),
            ..Message::default()
        };
        let call =
            |id: &str, arguments: &str| ToolCall { id: id.into(), name: "f".into(), arguments: arguments.into() };
        ChatRequest {
            request: RequestId::new("r"),
            model: ModelId::new("m"),
            messages: vec![
                Message { name: Some("ann".into()), ..text("user", "hi") },
                Message {
                    role: "assistant".into(),
                    reasoning_content: Some("hm".into()),
                    tool_calls: vec![call("1", "{ \"b\" : 1.0,\n\"a\": \"\\u00e9\"}"), call("2", "no JSON")],
                    ..Message::default()
                },
                Message { tool_call_id: Some("1".into()), ..text("tool", "done") },
            ],
            max_tokens: Some(7),
            sampling: SamplingOverrides {
                seed: Some(u64::MAX),
                top_k: Some(0),
                repeat_penalty: Some(1.1),
                repeat_last_n: Some(9),
                presence_penalty: Some(-2.0),
                frequency_penalty: Some(0.25),
                ..SamplingOverrides::default()
            },
            logit_bias: vec![(TokenId(7), -100.0), (TokenId(2), 0.5)],
            logprobs: Some(20),
            stop: vec!["x".into()],
            tools: vec![tool("f"), tool("g")],
            tool_choice: ToolChoice::Named("g".into()),
            parallel_tool_calls: false,
            response_format: ResponseFormat::JsonSchema(ResponseSchema {
                name: "n".into(),
                schema: json!({"type": "object", "b": 1.0, "a": [null]}),
                strict: true,
            }),
            grammar: None,
            cache_prompt: Some(false),
            template_kwargs: json!({"z": {"deep": [1, null]}, "a": "é"}).as_object().unwrap().clone(),
            raw: None,
            conversation: None,
        }
    }

    #[test]
    fn a_request_survives_the_wire() {
        let allowed = |required| ToolChoice::Allowed { names: vec!["g".into(), "f".into()], required };
        for tool_choice in [
            ToolChoice::Auto,
            ToolChoice::None,
            ToolChoice::Required,
            ToolChoice::Named("f".into()),
            allowed(false),
            allowed(true),
        ] {
            let request = ChatRequest { tool_choice, ..request() };
            let wire = v1::GenerateRequest::from(&request);
            assert_eq!(wire.tools[0], request.tools[0].definition.to_string(), "fields in their order");
            let back = ChatRequest::try_from(wire).unwrap();
            assert_eq!(back.template_kwargs.keys().collect::<Vec<_>>(), ["z", "a"]);
            assert_eq!(back, request);
        }
        for response_format in [ResponseFormat::Text, ResponseFormat::JsonObject] {
            let request = ChatRequest { response_format, ..request() };
            assert_eq!(ChatRequest::try_from(v1::GenerateRequest::from(&request)).unwrap(), request);
        }
    }

    #[test]
    fn a_raw_prompt_survives_the_wire() {
        let text = RawInput::Text { text: "é <s>".into(), add_special: true, parse_special: false };
        for (input, echo) in [(text, true), (RawInput::Tokens(vec![TokenId(1), TokenId(-1)]), false)] {
            let raw = Some(RawPrompt { input, echo });
            let request = ChatRequest {
                raw,
                messages: Vec::new(),
                tools: Vec::new(),
                tool_choice: ToolChoice::Auto,
                ..request()
            };
            assert_eq!(ChatRequest::try_from(v1::GenerateRequest::from(&request)).unwrap(), request);
            let grammar = Some("root ::= \"a\"".to_owned());
            let held = ChatRequest { grammar, response_format: ResponseFormat::Text, ..request.clone() };
            assert_eq!(ChatRequest::try_from(v1::GenerateRequest::from(&held)).unwrap(), held);
            let both = ChatRequest { grammar: held.grammar.clone(), ..request.clone() };
            assert!(ChatRequest::try_from(v1::GenerateRequest::from(&both)).is_err());
            let mixed = ChatRequest { messages: self::request().messages, ..request };
            let error = ChatRequest::try_from(v1::GenerateRequest::from(&mixed)).unwrap_err();
            assert_eq!(error.0, "a prompt besides messages or tools");
        }
    }

    #[test]
    fn fields_of_today_may_be_absent() {
        let wire = v1::GenerateRequest { request_id: "r".into(), model: "m".into(), ..Default::default() };
        let request = ChatRequest::try_from(wire).unwrap();
        assert_eq!((request.tool_choice, request.parallel_tool_calls), (ToolChoice::Auto, true));
        assert!(request.tools.is_empty() && request.template_kwargs.is_empty());
        assert_eq!(request.response_format, ResponseFormat::Text);
    }

    #[test]
    fn what_cannot_be_is_malformed() {
        let spoilt = |spoil: fn(&mut v1::GenerateRequest)| {
            let mut wire = v1::GenerateRequest::from(&request());
            spoil(&mut wire);
            ChatRequest::try_from(wire).unwrap_err().0
        };
        let choice = |mode: i32, name: &str| Some(v1::ToolChoice { mode, name: name.into(), names: Vec::new() });
        assert_eq!(spoilt(|wire| wire.tools[0] = "{".into()), "a tool that is no JSON");
        assert_eq!(spoilt(|wire| wire.tools[0] = "{}".into()), "a tool that is not well defined");
        assert_eq!(spoilt(|wire| wire.tools[0] = "[".repeat(100_000)), "a tool that is no JSON");
        assert_eq!(spoilt(|wire| wire.tools[0] = wire.tools[1].clone()), "two tools of one name");
        assert_eq!(spoilt(|wire| wire.tools.clear()), "the choice of a tool that is not offered");
        assert_eq!(spoilt(|wire| wire.template_kwargs = "[]".into()), "template variables that are no JSON object");
        assert_eq!(spoilt(|wire| wire.messages[0].role.clear()), "a message without a role");
        let no_id = "a tool call without an id or a name";
        assert_eq!(spoilt(|wire| wire.messages[1].tool_calls[0].id.clear()), no_id);
        assert_eq!(spoilt(|wire| wire.messages[1].tool_calls[1].name.clear()), no_id);
        assert_eq!(spoilt(|wire| wire.messages[2].tool_call_id = None), "a tool's result that answers no call");
        for unknown in [0, 99] {
            let wire = v1::GenerateRequest { tool_choice: choice(unknown, ""), ..(&request()).into() };
            assert_eq!(ChatRequest::try_from(wire).unwrap_err().0, "a tool choice of an unknown kind");
        }
        for mode in [Mode::Allowed, Mode::AllowedRequired] {
            let wire = v1::GenerateRequest { tool_choice: choice(mode.into(), ""), ..(&request()).into() };
            assert_eq!(ChatRequest::try_from(wire).unwrap_err().0, "a tool choice that allows none");
        }
        let format = |kind: i32, schema: &str| {
            let format = v1::ResponseFormat { kind, schema: schema.into(), ..Default::default() };
            let wire = v1::GenerateRequest { response_format: Some(format), ..(&request()).into() };
            ChatRequest::try_from(wire).unwrap_err().0
        };
        assert_eq!(format(0, ""), "a response format of an unknown kind");
        for schema in ["", "{", "[]", "null"] {
            assert_eq!(format(Kind::JsonSchema.into(), schema), "a response format whose schema is none");
        }
        let required = choice(Mode::Required.into(), "");
        let wire = v1::GenerateRequest { tool_choice: required, tools: Vec::new(), ..(&request()).into() };
        assert_eq!(ChatRequest::try_from(wire).unwrap_err().0, "the choice of a tool where none is");
    }
}
