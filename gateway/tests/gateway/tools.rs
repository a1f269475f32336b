//! Tools on their way through: definitions, calls and results to the node, its calls to the client.

use mesh_types::{ErrorClass, Fault, FinishReason};
use serde_json::{Value, json};

use crate::client::{Answer, chat, config, frame, post, serve};
use crate::fake::{Mesh, Script, Step};

const ARGUMENTS: &str = "{\"city\": \"Köln\", \"days\": 1.0 }";

fn two_calls() -> Vec<Step> {
    vec![
        Step::Started,
        Step::Reasoning("Hm"),
        Step::Reasoning("."),
        Step::Text("Let me see."),
        Step::Call(0, "call_a", "get_weather"),
        Step::Text(""),
        Step::Arguments(0, "{\"city\": \"Kö"),
        Step::Arguments(0, ""),
        Step::Arguments(0, "ln\", \"days\": 1.0 }"),
        Step::Call(1, "call_b", "get_time"),
        Step::Arguments(1, "{}"),
        Step::Finished(FinishReason::ToolCalls),
    ]
}

fn tool(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn ask(extra: Value) -> Value {
    let mut body = chat(json!({"tools": [tool("get_weather"), tool("get_time")]}));
    if let (Some(body), Value::Object(extra)) = (body.as_object_mut(), extra) {
        body.extend(extra);
    }
    body
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn mesh(steps: Vec<Step>) -> std::sync::Arc<Mesh> {
    Mesh::new(vec![("alpha", 0, Script::Steps(steps))])
}

/// The deltas of a streamed answer, and its finish reasons, usage and end left out.
fn deltas(answer: &Answer) -> Vec<Value> {
    let events = answer.events();
    let chunks = events.iter().filter(|event| *event != "[DONE]");
    chunks.map(|chunk| serde_json::from_str::<Value>(chunk).unwrap()["choices"][0]["delta"].clone()).collect()
}

#[tokio::test]
async fn calls_are_collected() {
    let mesh = mesh(two_calls());
    let served = serve(&mesh, config()).await;
    let answer = served.chat(&ask(json!({}))).await;
    assert_eq!(answer.status(), 200);
    let choice = answer.json()["choices"][0].clone();
    let expected = json!({
        "role": "assistant", "content": "Let me see.", "refusal": null, "reasoning_content": "Hm.",
        "tool_calls": [call("call_a", "get_weather", ARGUMENTS), call("call_b", "get_time", "{}")],
    });
    assert_eq!((&choice["message"], &choice["finish_reason"]), (&expected, &json!("tool_calls")));

    let steps = vec![Step::Started, Step::Call(0, "a", "f"), Step::Arguments(0, "{}")];
    let steps = steps.into_iter().chain([Step::Finished(FinishReason::ToolCalls)]).collect();
    mesh.node("alpha").set(Script::Steps(steps));
    let message = served.chat(&ask(json!({}))).await.json()["choices"][0]["message"].clone();
    let expected = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call("a", "f", "{}")]});
    assert_eq!(message, expected);
}

#[tokio::test]
async fn calls_are_streamed_with_one_name_and_many_fragments() {
    let mesh = mesh(two_calls());
    let served = serve(&mesh, config()).await;
    let answer = served.chat(&ask(json!({"stream": true}))).await;
    let fragment = |index: u32, text: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]});
    let begin = |index: u32, id: &str, name: &str| {
        let function = json!({"name": name, "arguments": ""});
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    };
    let expected = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "Hm"}),
        json!({"reasoning_content": "."}),
        json!({"content": "Let me see."}),
        begin(0, "call_a", "get_weather"),
        fragment(0, "{\"city\": \"Kö"),
        fragment(0, "ln\", \"days\": 1.0 }"),
        begin(1, "call_b", "get_time"),
        fragment(1, "{}"),
        json!({}),
    ];
    assert_eq!(deltas(&answer), expected);
    assert!(answer.body.contains(r#""delta":{},"logprobs":null,"finish_reason":"tool_calls""#), "{}", answer.body);
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_call_is_sent_as_it_comes() {
    let mut steps = two_calls();
    steps.insert(7, Step::Gate);
    let mesh = mesh(steps);
    let served = serve(&mesh, config()).await;
    let mut client = served.client().await;
    let mut response = client.send(post(&ask(json!({"stream": true})))).await;
    let mut seen = String::new();
    while !seen.contains("Kö") {
        seen += &frame(&mut response).await;
    }
    assert!(seen.contains("get_weather") && !seen.contains("days"));
    mesh.node("alpha").open_gate();
    assert!(Answer::read(response).await.body.contains("days"));
}

#[tokio::test]
async fn the_node_hears_of_tools_calls_and_results_as_the_client_wrote_them() {
    let mesh = mesh(two_calls());
    let served = serve(&mesh, config()).await;
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "reasoning_content": "Hm.",
            "tool_calls": [call("call_a", "get_weather", ARGUMENTS)]},
        {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
    ]);
    let body = ask(json!({
        "messages": messages, "tool_choice": "none", "parallel_tool_calls": false, "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": false},
    }));
    let answer = served.chat(&body).await;
    assert_eq!((answer.status().as_u16(), answer.header("x-mesh-ignored")), (200, ""));
    let heard = mesh.node("alpha").requests.lock().unwrap()[0].clone();
    assert_eq!(heard.tools, [tool("get_weather").to_string(), tool("get_time").to_string()]);
    let heard = mesh_types::ChatRequest::try_from(heard).unwrap();
    assert_eq!(heard.tool_choice, mesh_types::ToolChoice::None);
    assert!(!heard.parallel_tool_calls);
    assert_eq!(Value::Object(heard.template_kwargs), json!({"enable_thinking": false, "reasoning_effort": "low"}));
    let [_, asked, result] = &heard.messages[..] else { panic!("three messages") };
    assert_eq!((asked.content.as_deref(), asked.reasoning_content.as_deref()), (None, Some("Hm.")));
    assert_eq!(asked.tool_calls[0].arguments, ARGUMENTS);
    assert_eq!((result.role.as_str(), result.tool_call_id.as_deref()), ("tool", Some("call_a")));
}

#[tokio::test]
async fn what_a_node_does_not_enforce_is_said_in_the_header() {
    let steps = vec![Step::Relaxed("tools[0].function.parameters.n\u{e9}.not"), Step::Finished(FinishReason::Stop)];
    let mesh = mesh(steps);
    let served = serve(&mesh, config()).await;
    for stream in [false, true] {
        let answer = served.chat(&ask(json!({"stream": stream, "temprature": 1}))).await;
        assert_eq!(answer.header("x-mesh-ignored"), "temprature, tools[0].function.parameters.n?.not");
    }
}

#[tokio::test]
async fn what_a_node_says_of_calls_has_to_make_sense() {
    let mesh = mesh(Vec::new());
    let served = serve(&mesh, config()).await;
    for end in [
        vec![Step::Arguments(0, "{}")],
        vec![Step::Call(1, "a", "f")],
        vec![Step::Call(0, "", "f")],
        vec![Step::Call(0, "a", "")],
        vec![Step::Call(0, "a", "f"), Step::Call(0, "b", "f")],
        vec![Step::Call(0, "a", "f"), Step::Arguments(1, "{}")],
        vec![Step::Finished(FinishReason::ToolCalls)],
    ] {
        let begin = vec![Step::Started, Step::Text("Hel")];
        mesh.node("alpha").set(Script::Steps(begin.into_iter().chain(end.clone()).chain([Step::Hang]).collect()));
        let answer = served.chat(&ask(json!({}))).await;
        assert_eq!(answer.error().0, 502, "{end:?}");
        let answer = served.chat(&ask(json!({"stream": true}))).await;
        let last: Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], "bad_gateway", "{end:?}");
    }
    mesh.node("alpha").set(Script::Steps(vec![Step::Call(0, "a", "f")]));
    assert_eq!(served.chat(&ask(json!({}))).await.error().0, 502, "a call before the start");
}

#[tokio::test]
async fn a_call_without_an_end_is_cut_off_by_the_limit_of_tokens() {
    let steps = vec![Step::Started, Step::Call(0, "a", "f"), Step::Arguments(0, "{\"x")];
    let mesh = mesh(steps.into_iter().chain([Step::Finished(FinishReason::Length)]).collect());
    let served = serve(&mesh, config()).await;
    let choice = served.chat(&ask(json!({}))).await.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["tool_calls"], json!([call("a", "f", "{\"x")]));
}

#[tokio::test]
async fn a_node_that_cannot_do_tools_says_so_with_a_400() {
    let mesh = mesh(Vec::new());
    let fault =
        Fault::new(ErrorClass::InvalidRequest, "no tools").with_param("tools").with_code("unsupported_parameter");
    mesh.node("alpha").set(Script::Refuse(fault));
    let served = serve(&mesh, config()).await;
    for stream in [false, true] {
        let answer = served.chat(&ask(json!({"stream": stream}))).await;
        assert_eq!(answer.error(), (400, Some("tools".into()), Some("unsupported_parameter".into())));
    }
}
