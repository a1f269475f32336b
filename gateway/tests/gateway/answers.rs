//! What a client gets when all goes well.

use mesh_types::FinishReason;
use serde_json::{Value, json};

use crate::client::{Answer, chat, config, post, serve};
use crate::fake::{Mesh, Script, Step, whole_answer};

fn one_node(script: Script) -> std::sync::Arc<Mesh> {
    Mesh::new(vec![("alpha", 0, script)])
}

#[tokio::test]
async fn a_whole_answer_is_collected() {
    let mesh = one_node(whole_answer());
    let served = serve(&mesh, config()).await;
    let answer = served.chat(&chat(json!({"max_tokens": 5, "stop": "x", "seed": 3, "temperature": 0}))).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("content-type"), "application/json");
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("m")));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(body["choices"][0]["message"], json!({"role": "assistant", "content": "Hello 🌍", "refusal": null}));
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let usage = json!({
        "prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1},
    });
    assert_eq!(body["usage"], usage);

    let requests = mesh.node("alpha").requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].request_id, answer.header("x-request-id"));
    assert_eq!((requests[0].model.as_str(), requests[0].max_tokens), ("m", Some(5)));
    assert_eq!(requests[0].stop, ["x"]);
    let sampling = requests[0].sampling.unwrap();
    assert_eq!((sampling.temperature, sampling.seed, sampling.top_p), (Some(0.0), Some(3), None));
}

#[tokio::test]
async fn a_streamed_answer_has_the_dialects_order() {
    let mesh = one_node(whole_answer());
    let served = serve(&mesh, config()).await;
    let answer = served.chat(&chat(json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("content-type"), "text/event-stream; charset=utf-8");
    assert_eq!(answer.header("cache-control"), "no-cache");
    let events = answer.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["object"] == "chat.completion.chunk"));
    let deltas: Vec<_> = chunks.iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect();
    let expected = [
        json!({"role": "assistant", "content": ""}),
        json!({"content": "Hel"}),
        json!({"content": "lo 🌍"}),
        json!({}),
        Value::Null,
    ];
    assert_eq!(deltas, expected);
    let reasons: Vec<_> = chunks.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [Value::Null, Value::Null, Value::Null, json!("stop"), Value::Null]);
    assert_eq!(chunks[4]["choices"], json!([]));
    assert_eq!(chunks[4]["usage"]["total_tokens"], 14);
    assert!(chunks[..4].iter().all(|chunk| chunk.as_object().unwrap().get("usage") == Some(&Value::Null)));
}

#[tokio::test]
async fn text_is_sent_as_it_comes() {
    let steps = vec![Step::Started, Step::Text("one"), Step::Gate, Step::Finished(FinishReason::Length)];
    let mesh = one_node(Script::Steps(steps));
    let served = serve(&mesh, config()).await;
    let mut client = served.client().await;
    let mut response = client.send(post(&chat(json!({"stream": true})))).await;
    let mut seen = String::new();
    while !seen.contains("one") {
        seen += &crate::client::frame(&mut response).await;
    }
    assert!(!seen.contains("length"));
    mesh.node("alpha").open_gate();
    let rest = Answer::read(response).await;
    assert!(rest.body.contains(r#""finish_reason":"length""#) && rest.body.ends_with("data: [DONE]\n\n"), "{rest:?}");
    assert!(!rest.body.contains("usage"));
}

#[tokio::test]
async fn fields_that_nobody_knows_are_named_in_a_header() {
    let mesh = one_node(whole_answer());
    let served = serve(&mesh, config()).await;
    for stream in [false, true] {
        let answer = served.chat(&chat(json!({"temprature": 1, "späß": 2, "stream": stream}))).await;
        assert_eq!((answer.status().as_u16(), answer.header("x-mesh-ignored")), (200, "temprature, sp??"));
    }
    assert_eq!(served.chat(&chat(json!({}))).await.header("x-mesh-ignored"), "");
}

#[tokio::test]
async fn a_large_request_is_read() {
    let mesh = one_node(whole_answer());
    let served = serve(&mesh, config()).await;
    let content = "word ".repeat(1 << 20);
    let answer = served.chat(&chat(json!({"messages": [{"role": "user", "content": content}]}))).await;
    // The scripted node's own limit is tonic's 4 MiB.
    assert_eq!(answer.error().0, 400, "{answer:?}");
    assert!(answer.body.contains("too large for alpha"), "{}", answer.body);
    let content = "word ".repeat(1 << 19);
    let answer = served.chat(&chat(json!({"messages": [{"role": "user", "content": content}]}))).await;
    assert_eq!(answer.status(), 200);
}
