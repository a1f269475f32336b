//! What a client gets when something is wrong: with its request, with a node, or on the way.

use std::time::Duration;

use http::Method;
use mesh_types::{ErrorClass, Fault, FinishReason, ModelId};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::client::{Answer, chat, config, get, post, request, serve};
use crate::fake::{Mesh, Script, Step, whole_answer};

fn owned(param: Option<&str>) -> Option<String> {
    param.map(str::to_owned)
}

#[tokio::test]
async fn a_bad_request_is_a_400_before_any_node_hears_of_it() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    for body in ["", "{", "no", "\u{0}"] {
        let answer = served.ask(request(Method::POST, "/v1/chat/completions", body)).await;
        assert_eq!(answer.error(), (400, None, None), "{answer:?}");
    }
    for (extra, param, code) in [
        (json!({"messages": []}), "messages", None),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content", None),
        (json!({"temperature": "hot"}), "temperature", None),
        (json!({"max_tokens": 0}), "max_tokens", None),
        (json!({"n": 99}), "n", None),
        (json!({"tools": [{}]}), "tools[0].type", None),
        (json!({"tools": "x"}), "tools", None),
        (json!({"tool_choice": "auto"}), "tool_choice", None),
        (json!({"functions": [{"name": "f"}]}), "functions", Some("unsupported_parameter")),
        (json!({"guided_regex": "x"}), "guided_regex", Some("unsupported_parameter")),
        (json!({"grammar": 3}), "grammar", None),
    ] {
        let answer = served.chat(&chat(extra)).await;
        assert_eq!(answer.error(), (400, owned(Some(param)), owned(code)));
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert!(mesh.node("alpha").requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_nodes_refusal_is_a_status_streamed_or_not() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let too_long = Fault::invalid("too long").with_param("messages").with_code("context_length_exceeded");
    let cases = [
        (Script::Refuse(too_long), (400, owned(Some("messages")), owned(Some("context_length_exceeded")))),
        (Script::Refuse(Fault::new(ErrorClass::Overloaded, "9 wait")), (429, None, owned(Some("overloaded")))),
        (Script::Refuse(Fault::unavailable("gone")), (503, None, owned(Some("unavailable")))),
        (Script::Refuse(Fault::new(ErrorClass::Internal, "bug")), (500, None, owned(Some("internal_error")))),
        (Script::Steps(vec![Step::Fault(Fault::unavailable("gone"))]), (503, None, owned(Some("unavailable")))),
        (Script::Steps(vec![Step::Text("x")]), (502, None, owned(Some("bad_gateway")))),
        (Script::Steps(vec![]), (502, None, owned(Some("bad_gateway")))),
        (Script::Status(Status::new(Code::Unknown, "internals")), (503, None, owned(Some("peer_lost")))),
    ];
    for (script, expected) in cases {
        mesh.node("alpha").set(script);
        for stream in [false, true] {
            let answer = served.chat(&chat(json!({"stream": stream}))).await;
            assert_eq!(answer.error(), expected);
            assert!(!answer.body.contains("internals"));
            let may_work_later = [429, 503].contains(&expected.0);
            assert_eq!(!answer.header("retry-after").is_empty(), may_work_later, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn an_unknown_model_is_told_what_there_is() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let answer = served.chat(&chat(json!({"model": "gpt-9"}))).await;
    assert_eq!(answer.error(), (404, owned(Some("model")), owned(Some("model_not_found"))));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("served is `m`"));
    mesh.change(|view| {
        view.peers[0].models[0].ready = false;
        view.peers[0].models[0].detail = "layers 15-29 on beta were lost".into();
    });
    let answer = served.chat(&chat(json!({}))).await;
    assert_eq!(answer.error(), (503, owned(Some("model")), owned(Some("model_unavailable"))));
    assert!(answer.body.contains("layers 15-29 on beta were lost"));
}

#[tokio::test]
async fn a_model_that_no_status_tells_of_is_looked_for_before_it_is_missing() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    assert_eq!(served.chat(&chat(json!({}))).await.status(), 200);
    assert!(mesh.asked_for().is_empty(), "the view tells of it");
    for path in ["/v1/models/m", "/v1/models/gpt-9"] {
        mesh.hide_all();
        assert_eq!(served.ask(get(path)).await.status() == 200, path.ends_with('m'), "{path}");
    }
    assert_eq!(served.chat(&chat(json!({"model": "gpt-9"}))).await.error().0, 404);
    assert_eq!(served.chat(&chat(json!({}))).await.status(), 200);
    assert_eq!(mesh.asked_for(), ["m", "gpt-9", "gpt-9", "m"].map(ModelId::from));
}

/// A stream that broke: whole events, the last an error; no finish reason and no `[DONE]`.
fn assert_broken(answer: &Answer, message: &str) {
    assert_eq!(answer.status(), 200);
    let events = answer.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains(message), "{last}");
    assert!(last.as_object().unwrap().len() == 1);
    for chunk in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(chunk).unwrap();
        assert!(chunk["choices"][0]["finish_reason"].is_null(), "{chunk}");
    }
    assert!(!answer.body.contains("[DONE]"));
    assert!(answer.body.contains("Hel"), "what came before is kept: {}", answer.body);
}

#[tokio::test]
async fn losing_the_node_ends_a_stream_with_an_error_at_once() {
    for presence in [false, true] {
        let mesh = Mesh::new(vec![("alpha", 0, Script::Steps(vec![Step::Started, Step::Text("Hel"), Step::Hang]))]);
        let served = serve(&mesh, config()).await;
        let mut client = served.client().await;
        let mut response = client.send(post(&chat(json!({"stream": true})))).await;
        let mut seen = String::new();
        while !seen.contains("Hel") {
            seen += &crate::client::frame(&mut response).await;
        }
        let since = std::time::Instant::now();
        if presence {
            mesh.node("alpha").presence.cancel()
        } else {
            mesh.node("alpha").cut()
        }
        let rest = Answer::read(response).await;
        assert!(since.elapsed() < Duration::from_secs(1));
        let answer = Answer { head: rest.head, body: seen + &rest.body };
        assert_broken(&answer, "the connection to alpha was lost");
    }
}

#[tokio::test]
async fn losing_the_node_fails_an_unstreamed_answer() {
    for presence in [false, true] {
        for script in [
            Script::Deaf,
            Script::Steps(vec![Step::Hang]),
            Script::Steps(vec![Step::Started, Step::Text("Hel"), Step::Hang]),
        ] {
            let mesh = Mesh::new(vec![("alpha", 0, script)]);
            let served = serve(&mesh, config()).await;
            let mut client = served.client().await;
            let lose = async {
                mesh.node("alpha").begun(1).await;
                if presence { mesh.node("alpha").presence.cancel() } else { mesh.node("alpha").cut() }
            };
            let (answer, ()) = tokio::join!(client.ask(post(&chat(json!({})))), lose);
            assert_eq!(answer.error(), (503, None, owned(Some("peer_lost"))));
        }
    }
}

#[tokio::test]
async fn a_run_that_fails_midway_never_looks_finished() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let begin = || vec![Step::Started, Step::Text("Hel")];
    let cases = [
        (vec![Step::Fault(Fault::unavailable("layers 10-19 on beta were lost"))], "layers 10-19", 503),
        (vec![], "makes no sense", 502),
        (vec![Step::Nonsense, Step::Finished(FinishReason::Stop)], "makes no sense", 502),
        (vec![Step::Started, Step::Finished(FinishReason::Stop)], "makes no sense", 502),
    ];
    for (end, message, status) in cases {
        mesh.node("alpha").set(Script::Steps(begin().into_iter().chain(end).collect()));
        assert_broken(
            &served.chat(&chat(json!({"stream": true, "stream_options": {"include_usage": true}}))).await,
            message,
        );
        let answer = served.chat(&chat(json!({}))).await;
        assert_eq!(answer.error().0, status);
        assert!(answer.body.contains(message));
    }
}

#[tokio::test]
async fn another_replica_is_tried_until_one_accepts() {
    let mesh = Mesh::new(vec![
        ("alpha", 0, Script::Refuse(Fault::new(ErrorClass::Overloaded, "9 wait"))),
        ("beta", 1, whole_answer()),
        ("gamma", 2, whole_answer()),
    ]);
    let served = serve(&mesh, config()).await;
    assert_eq!(served.chat(&chat(json!({}))).await.status(), 200);
    mesh.node("beta").cut();
    assert_eq!(served.chat(&chat(json!({"stream": true}))).await.status(), 200);
    mesh.node("gamma").presence.cancel();
    let answer = served.chat(&chat(json!({}))).await;
    assert_eq!(answer.error(), (429, None, owned(Some("overloaded"))), "the first replica's reason");
    let heard = |name: &str| mesh.node(name).requests.lock().unwrap().len();
    assert_eq!((heard("alpha"), heard("beta"), heard("gamma")), (3, 1, 1));

    mesh.node("alpha").set(Script::Refuse(Fault::invalid("too long")));
    assert_eq!(served.chat(&chat(json!({}))).await.error().0, 400, "what no replica can do is not tried twice");
}

#[tokio::test]
async fn a_silent_node_runs_into_a_deadline() {
    let mut config = config();
    config.limits.first_event = Duration::from_millis(100);
    config.limits.next_event = Duration::from_millis(100);
    config.limits.keep_alive = Duration::from_millis(30);
    let mesh = Mesh::new(vec![("alpha", 0, Script::Deaf)]);
    let served = serve(&mesh, config).await;
    assert_eq!(served.chat(&chat(json!({"stream": true}))).await.error().0, 504);
    mesh.node("alpha").cancelled(1).await;
    mesh.node("alpha").set(Script::Steps(vec![Step::Started, Step::Text("Hel"), Step::Hang]));
    assert_eq!(served.chat(&chat(json!({}))).await.error().0, 504);
    let answer = served.chat(&chat(json!({"stream": true}))).await;
    assert_broken(&answer, "silent for too long");
    assert!(answer.body.contains(": keep-alive\n\n"), "{}", answer.body);
    mesh.node("alpha").cancelled(3).await;
}
