use super::*;
use crate::json::UNSUPPORTED;
use mesh_types::{ResponseFormat, ResponseSchema, ToolCall, ToolChoice};

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

/// The refusal of one tool.
fn refused_tool(tool: Value) -> (String, Option<String>) {
    refused(json!({"tools": [function("first"), tool]}))
}

/// The one message given, read.
fn message(message: Value) -> Message {
    ok(json!({"messages": [message]})).chat.messages.remove(0)
}

#[test]
fn tools_are_read_whole_and_in_their_order() {
    let definition = json!({"type": "function", "x-own": 1, "function": {
        "parameters": {"type": "object", "properties": {"z": {"const": 1.0}, "a": {"anyOf": [{}, null]}}},
        "name": "get_weather-2", "description": "Says how it is.", "strict": false,
    }});
    let bare = json!({"type": "function", "function": {
        "name": "f", "description": null, "parameters": null, "strict": null,
    }});
    let parsed = ok(json!({"tools": [definition, bare]}));
    let [weather, bare] = &parsed.chat.tools[..] else { panic!("two tools") };
    assert_eq!(weather.name, "get_weather-2");
    assert_eq!(weather.description.as_deref(), Some("Says how it is."));
    assert_eq!(weather.parameters.as_ref().unwrap(), &definition["function"]["parameters"]);
    assert_eq!(weather.definition.to_string(), definition.to_string());
    assert_eq!((bare.name.as_str(), &bare.description, &bare.parameters), ("f", &None, &None));
    assert!(parsed.ignored.is_empty());
}

#[test]
fn a_malformed_tool_names_its_place() {
    for (tool, param) in [
        (json!(null), "tools[1]"),
        (json!("f"), "tools[1]"),
        (json!({}), "tools[1].type"),
        (json!({"type": 1}), "tools[1].type"),
        (json!({"type": "web_search"}), "tools[1].type"),
        (json!({"type": "function"}), "tools[1].function"),
        (json!({"type": "function", "name": "flat"}), "tools[1].function"),
        (json!({"type": "function", "function": "f"}), "tools[1].function"),
        (json!({"type": "function", "function": {}}), "tools[1].function.name"),
        (json!({"type": "function", "function": {"name": 1}}), "tools[1].function.name"),
        (function(""), "tools[1].function.name"),
        (function("a b"), "tools[1].function.name"),
        (function("a.b"), "tools[1].function.name"),
        (function("grüß"), "tools[1].function.name"),
        (function(&"x".repeat(MAX_TOOL_NAME + 1)), "tools[1].function.name"),
        (function("first"), "tools[1].function.name"),
        (json!({"type": "function", "function": {"name": "f", "description": 1}}), "tools[1].function.description"),
        (json!({"type": "function", "function": {"name": "f", "parameters": []}}), "tools[1].function.parameters"),
        (json!({"type": "function", "function": {"name": "f", "parameters": "{}"}}), "tools[1].function.parameters"),
        (json!({"type": "function", "function": {"name": "f", "strict": "no"}}), "tools[1].function.strict"),
    ] {
        assert_eq!(refused_tool(tool.clone()), (param.to_owned(), None), "{tool}");
    }
    assert_eq!(refused(json!({"tools": "f"})), ("tools".to_owned(), None));
    assert_eq!(refused(json!({"tools": {}})), ("tools".to_owned(), None));
    let many: Vec<_> = (0..=MAX_TOOLS).map(|index| function(&format!("f{index}"))).collect();
    assert_eq!(refused(json!({"tools": many})), ("tools".to_owned(), None));
    assert_eq!(ok(json!({"tools": many[1..]})).chat.tools.len(), MAX_TOOLS);
}

#[test]
fn a_strict_function_has_to_meet_the_demands_of_strictness() {
    let strict = |parameters: Value| json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": parameters}});
    let object = |additional: Value| {
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
            "additionalProperties": additional})
    };
    for parameters in [json!(null), json!({}), object(json!(false))] {
        assert!(ok(json!({"tools": [strict(parameters)]})).chat.tools[0].is_strict());
    }
    let param = "tools[1].function.parameters".to_owned();
    let refusal = (param, Some("invalid_function_parameters".to_owned()));
    for parameters in [object(json!(true)), json!({"type": "object"}), json!({"type": "string"})] {
        assert_eq!(refused_tool(strict(parameters)), refusal);
    }
    let unsupported = ("tools[1].type".to_owned(), Some(UNSUPPORTED.to_owned()));
    assert_eq!(refused_tool(json!({"type": "custom", "custom": {"name": "f"}})), unsupported);
}

#[test]
fn a_choice_is_read_and_fits_the_tools() {
    let choice = |choice: Value| ok(json!({"tools": [function("f")], "tool_choice": choice})).chat.tool_choice;
    assert_eq!(choice(json!("auto")), ToolChoice::Auto);
    assert_eq!(choice(json!("none")), ToolChoice::None);
    assert_eq!(choice(json!(null)), ToolChoice::Auto);
    assert_eq!(choice(json!("required")), ToolChoice::Required);
    assert_eq!(choice(function("f")), ToolChoice::Named("f".to_owned()));
    let allowed =
        |mode: &str, tools: Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
    for (mode, required) in [("auto", false), ("required", true)] {
        let names = vec!["f".to_owned()];
        assert_eq!(choice(allowed(mode, json!([function("f")]))), ToolChoice::Allowed { names, required });
    }
    for (choice, param) in [
        (json!("any"), "tool_choice"),
        (json!(1), "tool_choice"),
        (json!({}), "tool_choice.type"),
        (json!({"type": "function"}), "tool_choice.function"),
        (json!({"type": "function", "function": {}}), "tool_choice.function.name"),
        (json!({"type": "function", "function": {"name": 1}}), "tool_choice.function.name"),
        (function("g"), "tool_choice"),
        (json!({"type": "allowed_tools"}), "tool_choice.allowed_tools"),
        (json!({"type": "allowed_tools", "allowed_tools": 1}), "tool_choice.allowed_tools"),
        (allowed("none", json!([function("f")])), "tool_choice.allowed_tools.mode"),
        (allowed("auto", json!([])), "tool_choice.allowed_tools.tools"),
        (allowed("auto", json!(["f"])), "tool_choice.allowed_tools.tools[0]"),
        (allowed("auto", json!([{"type": "function"}])), "tool_choice.allowed_tools.tools[0].function"),
        (allowed("required", json!([function("f"), function("g")])), "tool_choice"),
    ] {
        let extra = json!({"tools": [function("f")], "tool_choice": choice});
        assert_eq!(refused(extra.clone()), (param.to_owned(), None), "{extra}");
    }
    for extra in [
        json!({"tool_choice": "auto"}),
        json!({"tool_choice": "none", "tools": null}),
        json!({"tool_choice": "required", "tools": []}),
        json!({"tool_choice": function("f"), "tools": []}),
    ] {
        assert_eq!(refused(extra), ("tool_choice".to_owned(), None));
    }
    assert!(!ok(json!({"tools": [function("f")], "parallel_tool_calls": false})).chat.parallel_tool_calls);
    assert!(ok(json!({"tools": [function("f")]})).chat.parallel_tool_calls);
}

#[test]
fn calls_and_results_stay_as_they_are() {
    let arguments = "{ \"b\": 1.0,\n\t\"a\": \"\\u00e9\" ";
    let call = json!({
        "id": "call_1", "type": "function", "index": 0, "function": {"name": "f", "arguments": arguments},
    });
    let asked = message(json!({
        "role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [call, {
            "id": "call_2", "function": {"name": "g", "arguments": ""},
        }],
    }));
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(asked.tool_calls, [call("call_1", "f", arguments), call("call_2", "g", "")]);
    assert_eq!((asked.content, asked.reasoning_content.as_deref()), (None, Some("Hm.")));
    let result = message(json!({"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "x"}]}));
    assert_eq!((result.role.as_str(), result.tool_call_id.as_deref()), ("tool", Some("call_1")));
    assert_eq!(result.content.as_deref(), Some("x"));
    let plain = message(json!({"role": "user", "content": "x", "tool_call_id": null, "tool_calls": []}));
    assert_eq!(plain, Message { role: "user".into(), content: Some("x".into()), ..Message::default() });
}

#[test]
fn a_malformed_call_or_result_names_its_place() {
    let call = |call: Value| json!({"role": "assistant", "tool_calls": [call]});
    let function = json!({"name": "f", "arguments": "{}"});
    for (message, param) in [
        (json!({"role": "assistant", "tool_calls": {}}), "messages[0].tool_calls"),
        (call(json!(1)), "messages[0].tool_calls[0]"),
        (call(json!({"function": function})), "messages[0].tool_calls[0].id"),
        (call(json!({"id": "", "function": function})), "messages[0].tool_calls[0].id"),
        (call(json!({"id": "a"})), "messages[0].tool_calls[0].function"),
        (call(json!({"id": "a", "function": {"arguments": "{}"}})), "messages[0].tool_calls[0].function.name"),
        (call(json!({"id": "a", "function": {"name": "f"}})), "messages[0].tool_calls[0].function.arguments"),
        (
            call(json!({"id": "a", "function": {"name": "f", "arguments": {}}})),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            json!({"role": "user", "content": "x", "tool_calls": [{"id": "a", "function": function}]}),
            "messages[0].tool_calls",
        ),
        (json!({"role": "user", "content": "x", "tool_call_id": "a"}), "messages[0].tool_call_id"),
        (json!({"role": "tool", "content": "x"}), "messages[0].tool_call_id"),
        (json!({"role": "tool", "content": "x", "tool_call_id": ""}), "messages[0].tool_call_id"),
        (json!({"role": "tool", "tool_call_id": "a"}), "messages[0].content"),
        (json!({"role": "assistant", "content": "x", "reasoning_content": 1}), "messages[0].reasoning_content"),
    ] {
        assert_eq!(refused(json!({"messages": [message]})), (param.to_owned(), None), "{message}");
    }
    let custom = call(json!({"id": "a", "type": "custom", "custom": {}}));
    let unsupported = ("messages[0].tool_calls[0].type".to_owned(), Some(UNSUPPORTED.to_owned()));
    assert_eq!(refused(json!({"messages": [custom]})), unsupported);
}

#[test]
fn the_legacy_fields_point_to_their_successors() {
    for (extra, successor) in [
        (json!({"functions": [{"name": "f"}]}), "`tools`"),
        (json!({"function_call": {"name": "f"}}), "`tool_choice`"),
        (json!({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}), "`tool_calls`"),
        (json!({"messages": [{"role": "function", "name": "f", "content": "x"}]}), "`tool`"),
    ] {
        let fault = parse_value(&with(extra)).unwrap_err();
        assert!(fault.message.contains(&format!("use {successor}")), "{fault}");
    }
}

#[test]
fn template_variables_are_kept() {
    let kwargs = |extra: Value| Value::Object(ok(extra).chat.template_kwargs);
    assert_eq!(kwargs(json!({})), json!({}));
    assert_eq!(kwargs(json!({"chat_template_kwargs": {}, "reasoning_effort": null})), json!({}));
    let given = json!({"enable_thinking": false, "deep": {"x": [null]}});
    assert_eq!(kwargs(json!({"chat_template_kwargs": given})), given);
    assert_eq!(kwargs(json!({"reasoning_effort": "high"})), json!({"reasoning_effort": "high"}));
    let both = json!({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "deep"}});
    assert_eq!(kwargs(both), json!({"reasoning_effort": "deep"}));
    assert_eq!(refused(json!({"reasoning_effort": "very"})), ("reasoning_effort".to_owned(), None));
    let reserved = json!({"chat_template_kwargs": {"messages": []}});
    assert_eq!(refused(reserved), ("chat_template_kwargs.messages".to_owned(), None));
}

#[test]
fn a_response_format_is_read() {
    let format = |format: Value| ok(json!({"response_format": format})).chat.response_format;
    assert_eq!(format(json!(null)), ResponseFormat::Text);
    assert_eq!(format(json!({"type": "text"})), ResponseFormat::Text);
    assert_eq!(format(json!({"type": "json_object"})), ResponseFormat::JsonObject);
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let read = |name: &str, schema: &Value, strict| {
        ResponseFormat::JsonSchema(ResponseSchema { name: name.into(), schema: schema.clone(), strict })
    };
    let asked = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": null}});
    assert_eq!(format(asked), read("n", &schema, false));
    assert_eq!(format(json!({"type": "json_object", "schema": schema})), read("response", &schema, false));
    assert_eq!(format(json!({"type": "json_schema", "json_schema": {"name": "n"}})), read("n", &json!({}), false));
    let closed = json!({"type": "object", "additionalProperties": false});
    let asked = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": closed, "strict": true}});
    assert_eq!(format(asked), read("n", &closed, true));
    let strict = json!({"name": "n", "schema": schema, "strict": true});
    for (format, param) in [
        (json!({"type": "yaml"}), "response_format.type"),
        (json!({"type": null}), "response_format.type"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (json!({"type": "json_schema", "json_schema": []}), "response_format.json_schema"),
        (json!({"type": "json_schema", "json_schema": {}}), "response_format.json_schema.name"),
        (json!({"type": "json_schema", "json_schema": {"name": "a b"}}), "response_format.json_schema.name"),
        (
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": true}}),
            "response_format.json_schema.schema",
        ),
        (
            json!({"type": "json_schema", "json_schema": {"name": "n", "strict": 1}}),
            "response_format.json_schema.strict",
        ),
        (json!({"type": "json_schema", "json_schema": strict}), "response_format"),
        (json!({"type": "json_object", "schema": 1}), "response_format.schema"),
    ] {
        assert_eq!(refused(json!({"response_format": format})), (param.to_owned(), None), "{format}");
    }
}

proptest! {
    #[test]
    fn arguments_of_any_text_survive(arguments in ".*") {
        let function = json!({"name": "f", "arguments": arguments.clone()});
        let asked = message(json!({"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}));
        prop_assert_eq!(&asked.tool_calls[0].arguments, &arguments);
    }
}
