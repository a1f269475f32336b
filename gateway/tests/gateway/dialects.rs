//! The other ways to ask: completions, responses, Anthropic's messages, tokens; and several choices at once.

use http::Method;
use mesh_types::{ErrorClass, Fault, FinishReason};
use serde_json::{Value, json};

use crate::client::{Answer, Served, chat, config, request, serve, soon};
use crate::fake::{Mesh, Script, Step, whole_answer};

fn mesh(steps: Vec<Step>) -> std::sync::Arc<Mesh> {
    Mesh::new(vec![("alpha", 0, Script::Steps(steps))])
}

/// Reasoning, text, a call and the end.
fn turn() -> Vec<Step> {
    vec![
        Step::Started,
        Step::Reasoning("Hm."),
        Step::Text("Let "),
        Step::Text("me see."),
        Step::Call(0, "call_a", "read"),
        Step::Arguments(0, "{\"path\":"),
        Step::Arguments(0, " \"a\"}"),
        Step::Finished(FinishReason::ToolCalls),
    ]
}

async fn ask(served: &Served, path: &str, body: &Value) -> Answer {
    served.ask(request(Method::POST, path, body.to_string())).await
}

/// The events of a named stream: name and data.
fn named(answer: &Answer) -> Vec<(String, Value)> {
    let events = answer.body.split_terminator("\n\n").map(|event| event.split_once('\n').unwrap());
    let read = |(name, data): (&str, &str)| {
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    events.map(read).collect()
}

#[tokio::test]
async fn messages_are_answered_whole_and_streamed() {
    let served = serve(&mesh(turn()), config()).await;
    let body = |stream: bool| json!({"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": "hi"}]});
    let whole = ask(&served, "/v1/messages?beta=true", &body(false)).await;
    assert_eq!(whole.status(), 200);
    assert!(!whole.header("request-id").is_empty());
    let message = whole.json();
    assert_eq!((&message["type"], &message["stop_reason"]), (&json!("message"), &json!("tool_use")));
    let signature = message["content"][0]["signature"].as_str().unwrap().to_owned();
    assert_eq!(
        message["content"][2],
        json!({"type": "tool_use", "id": "call_a", "name": "read", "input": {"path": "a"}})
    );

    let stream = ask(&served, "/v1/messages", &body(true)).await;
    let events = named(&stream);
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 11, "the length of the prompt comes first");
    assert_eq!(events[1].0, "ping");
    assert_eq!(events.last().unwrap().0, "message_stop");
    let text: String = events.iter().filter_map(|event| event.1["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Let me see.");

    // What the model thought comes back from under the seal, whatever the client shows.
    let thinking = json!({"type": "thinking", "thinking": "", "signature": signature});
    let turns = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [thinking]}]);
    let mesh = mesh(turn());
    let served = serve(&mesh, config()).await;
    assert_eq!(ask(&served, "/v1/messages", &json!({"model": "m", "messages": turns})).await.status(), 200);
    let heard = mesh.node("alpha").requests.lock().unwrap()[0].messages[1].reasoning_content.clone();
    assert_eq!(heard.as_deref(), Some("Hm."));
}

#[tokio::test]
async fn responses_are_answered_whole_and_streamed() {
    let served = serve(&mesh(turn()), config()).await;
    let body = |stream: bool| json!({"model": "m", "input": "hi", "stream": stream});
    let whole = ask(&served, "/v1/responses", &body(false)).await.json();
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["store"]),
        (&json!("response"), &json!("completed"), &json!(false))
    );
    let kinds: Vec<_> = whole["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let stream = ask(&served, "/v1/responses", &body(true)).await;
    let events = named(&stream);
    assert_eq!(events[0].0, "response.created");
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "response.completed");
    let said = |response: &Value| {
        let text = response["output"][1]["content"][0]["text"].clone();
        (text, response["output"][2]["arguments"].clone(), response["usage"].clone())
    };
    assert_eq!(said(&last["response"]), said(&whole));
}

#[tokio::test]
async fn completions_send_the_prompt_as_it_is() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let answer = ask(&served, "/v1/completions", &json!({"model": "m", "prompt": "Once", "max_tokens": 3})).await;
    assert_eq!(answer.json()["choices"][0]["text"], "Hello 🌍");
    let stream = ask(&served, "/v1/completions", &json!({"model": "m", "prompt": [1, 2], "stream": true})).await;
    let events = stream.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let text: String = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "Hello 🌍");
    let requests = mesh.node("alpha").requests.lock().unwrap().clone();
    assert!(requests.iter().all(|request| request.messages.is_empty() && request.raw.is_some()));
}

#[tokio::test]
async fn choices_are_runs_of_one_request_at_one_node() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer()), ("beta", 1, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let whole = served.chat(&chat(json!({"n": 3, "seed": 5}))).await.json();
    let texts: Vec<_> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (choice["index"].clone(), choice["message"]["content"].clone()))
        .collect();
    assert_eq!(texts, [0, 1, 2].map(|index| (json!(index), json!("Hello 🌍"))));
    assert_eq!((&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]), (&json!(11), &json!(9)));
    let seeds: Vec<_> =
        mesh.node("alpha").requests.lock().unwrap().iter().map(|r| r.sampling.unwrap().seed.unwrap()).collect();
    assert_eq!(seeds, [5, 6, 7]);
    assert!(mesh.node("beta").requests.lock().unwrap().is_empty());

    let stream = served.chat(&chat(json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}}))).await;
    let events = stream.events();
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for index in [0, 1] {
        let of = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).filter(|choice| choice["index"] == index);
        let text: String = of.clone().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, "Hello 🌍");
        assert_eq!(of.filter(|choice| choice["finish_reason"] == "stop").count(), 1);
    }
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn a_choice_that_fails_ends_the_answer_and_the_other_choices() {
    let steps = vec![Step::Started, Step::Text("a"), Step::Gate, Step::Fault(Fault::unavailable("beta was lost"))];
    let mesh = mesh(steps);
    let served = serve(&mesh, config()).await;
    let body = chat(json!({"n": 2, "stream": true}));
    let asking = served.chat(&body);
    let (answer, ()) = tokio::join!(asking, async {
        mesh.node("alpha").begun(2).await;
        mesh.node("alpha").open_gate();
    });
    let events = answer.events();
    assert!(events.last().unwrap().contains("beta was lost"), "{events:?}");
    assert_eq!(events.iter().filter(|event| event.contains("beta was lost")).count(), 1);
    mesh.node("alpha").cancelled(1).await;
}

#[tokio::test]
async fn errors_are_in_the_shape_of_the_dialect() {
    let full = Script::Refuse(Fault::new(ErrorClass::Overloaded, "9 wait"));
    let mesh = Mesh::new(vec![("alpha", 0, full)]);
    let served = serve(&mesh, config().with_api_key(Some("k".into()))).await;
    let keyed = |path: &str, body: &Value, key: &str| {
        let mut request = request(Method::POST, path, body.to_string());
        request.headers_mut().insert("x-api-key", key.parse().unwrap());
        request
    };
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let answer = served.ask(keyed("/v1/messages", &body, "k")).await;
    let expected = json!({
        "type": "error", "error": {"type": "rate_limit_error", "message": "9 wait"},
        "request_id": answer.header("request-id"),
    });
    assert_eq!((answer.status().as_u16(), answer.json()), (429, expected));
    assert_eq!(answer.header("retry-after"), "1");
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let answer = served.ask(keyed(path, &body, "wrong")).await;
        assert_eq!((answer.status().as_u16(), &answer.json()["error"]["type"]), (401, &json!("authentication_error")));
        let answer = served.ask(keyed(path, &json!({}), "k")).await;
        assert_eq!((answer.status().as_u16(), &answer.json()["error"]["type"]), (400, &json!("invalid_request_error")));
    }
    let answer = served.ask(keyed("/v1/responses", &json!({"model": "m", "input": "hi"}), "k")).await;
    assert_eq!(answer.error(), (429, None, Some("overloaded".into())));
    // A node says it of the conversation, which each dialect has in a field of its own.
    mesh.node("alpha").set(Script::Refuse(Fault::invalid("too long").with_param("messages")));
    let answer = served.ask(keyed("/v1/responses", &json!({"model": "m", "input": "hi"}), "k")).await;
    assert_eq!(answer.error(), (400, Some("input".into()), None));
    assert_eq!(served.ask(keyed("/v1/chat/completions", &body, "k")).await.error().1.as_deref(), Some("messages"));
}

#[tokio::test]
async fn tokens_are_counted_cut_and_put_together() {
    let served = serve(&Mesh::new(vec![("alpha", 0, whole_answer())]), config()).await;
    let counted = json!({"model": "m", "messages": [{"role": "user", "content": "hey"}]});
    assert_eq!(ask(&served, "/v1/messages/count_tokens", &counted).await.json(), json!({"input_tokens": 3}));
    let cut = ask(&served, "/tokenize", &json!({"content": "hé", "with_pieces": true})).await.json();
    assert_eq!(cut["tokens"], json!([{"id": 104, "piece": "h"}, {"id": 233, "piece": "é"}]));
    assert_eq!((&cut["count"], &cut["max_model_len"]), (&json!(2), &json!(2048)));
    let text = ask(&served, "/detokenize", &json!({"model": "m", "tokens": [104, 233], "colour": 1})).await;
    assert_eq!((&text.json()["content"], text.header("x-mesh-ignored")), (&json!("hé"), "colour"));
    let ignored = ask(&served, "/tokenize", &json!({"content": "h", "colour": 1})).await;
    assert_eq!((&ignored.json()["tokens"], ignored.header("x-mesh-ignored")), (&json!([104]), "colour"));
    let ignored = json!({"model": "m", "messages": [{"role": "user", "content": "hey"}], "service_tier": "auto"});
    assert_eq!(ask(&served, "/v1/messages/count_tokens", &ignored).await.header("x-mesh-ignored"), "service_tier");
    assert_eq!(ask(&served, "/detokenize", &json!({"tokens": [-1]})).await.error(), (400, Some("tokens".into()), None));
}

#[tokio::test]
async fn texts_become_vectors() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let asked = |extra: serde_json::Value| {
        let mut body = json!({"model": "m", "input": ["x", [1, 2]], "user": "u"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let answer = ask(&served, "/v1/embeddings", &asked(json!({}))).await;
    assert_eq!(answer.header("x-mesh-ignored"), "user");
    let answer = answer.json();
    assert_eq!(answer["data"][1], json!({"object": "embedding", "index": 1, "embedding": [1.0, 0.0]}));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 7, "total_tokens": 7}));
    let short = ask(&served, "/v1/embeddings", &asked(json!({"dimensions": 1, "encoding_format": "base64"}))).await;
    assert_eq!(short.json()["data"][0]["embedding"], "AACAPw==");
    let error = async |extra| ask(&served, "/v1/embeddings", &asked(extra)).await.error();
    assert_eq!(error(json!({"dimensions": 3})).await, (400, Some("dimensions".into()), None));
    assert_eq!(error(json!({"model": "x"})).await.0, 404);
    let generates = mesh_types::Fault::invalid("no").with_param("model").with_code("unsupported_parameter");
    mesh.node("alpha").set(crate::fake::Script::Refuse(generates));
    assert_eq!(error(json!({})).await, (400, Some("model".into()), Some("unsupported_parameter".into())));
    mesh.node("alpha").set(crate::fake::Script::Deaf);
    assert_eq!(error(json!({})).await.0, 502);
}

#[tokio::test]
async fn a_quiet_stream_says_that_it_lives_in_its_dialects_words() {
    let mesh = mesh(vec![Step::Started, Step::Gate, Step::Finished(FinishReason::Stop)]);
    let mut config = config();
    config.limits.keep_alive = std::time::Duration::from_millis(20);
    let served = serve(&mesh, config).await;
    for (path, body, sign) in [
        ("/v1/chat/completions", chat(json!({"stream": true})), ": keep-alive"),
        (
            "/v1/messages",
            json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "a"}]}),
            "event: ping",
        ),
    ] {
        let mut client = served.client().await;
        let mut response = client.send(request(Method::POST, path, body.to_string())).await;
        let mut seen = String::new();
        while seen.matches(sign).count() < 3 {
            seen += &crate::client::frame(&mut response).await;
        }
        mesh.node("alpha").open_gate();
        soon(Answer::read(response)).await;
    }
}
