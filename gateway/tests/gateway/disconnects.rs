//! A client that goes away frees what it had, whatever its request was waiting for.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;

use crate::client::{chat, config, frame, post, serve, soon};
use crate::fake::{Mesh, Script, Step};

/// Nothing heard, nothing accepted, and midway.
fn phases() -> [Script; 3] {
    [Script::Deaf, Script::Steps(vec![Step::Hang]), Script::Steps(vec![Step::Started, Step::Text("Hel"), Step::Hang])]
}

#[tokio::test]
async fn closing_the_connection_cancels_the_run() {
    for script in phases() {
        for stream in [false, true] {
            let mesh = Mesh::new(vec![("alpha", 0, script.clone())]);
            let served = serve(&mesh, config()).await;
            let mut client = served.client().await;
            {
                let response = client.send_only(post(&chat(json!({"stream": stream}))));
                tokio::select! {
                    response = response => {
                        let mut response = response;
                        while !frame(&mut response).await.contains("Hel") {}
                        drop(response);
                    }
                    () = mesh.node("alpha").begun_and_silent(&script, stream) => {}
                }
            }
            drop(client);
            mesh.node("alpha").cancelled(1).await;
        }
    }
}

#[tokio::test]
async fn resetting_an_http2_stream_cancels_the_run_and_spares_the_connection() {
    for script in phases() {
        for stream in [false, true] {
            let mesh = Mesh::new(vec![("alpha", 0, script.clone())]);
            let served = serve(&mesh, config()).await;
            let (mut sender, _connection) = served.client2().await;
            soon(sender.ready()).await.unwrap();
            {
                let response = sender.send_request(post(&chat(json!({"stream": stream}))));
                tokio::select! {
                    response = response => {
                        let mut response = response.unwrap();
                        while !frame(&mut response).await.contains("Hel") {}
                    }
                    () = mesh.node("alpha").begun_and_silent(&script, stream) => {}
                }
            }
            mesh.node("alpha").cancelled(1).await;
            mesh.node("alpha").set(crate::fake::whole_answer());
            soon(sender.ready()).await.unwrap();
            let response = soon(sender.send_request(post(&chat(json!({}))))).await.unwrap();
            assert_eq!(response.status(), 200);
        }
    }
}

#[tokio::test]
async fn a_request_holds_its_place_until_its_body_ends() {
    let mut config = config();
    config.limits.requests = 1;
    let mesh = Mesh::new(vec![("alpha", 0, Script::Steps(vec![Step::Started, Step::Text("Hel"), Step::Hang]))]);
    let served = serve(&mesh, config).await;
    let mut first = served.client().await;
    let response = first.send(post(&chat(json!({"stream": true})))).await;
    assert_eq!(response.status(), 200);
    let refused = served.chat(&chat(json!({}))).await;
    assert_eq!((refused.error().0, refused.header("retry-after")), (429, "1"));
    // What needs no place is answered still.
    assert_eq!(served.ask(crate::client::get("/v1/models")).await.status(), 200);
    drop((response, first));
    mesh.node("alpha").cancelled(1).await;
    mesh.node("alpha").set(crate::fake::whole_answer());
    assert_eq!(served.chat(&chat(json!({}))).await.status(), 200);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go_of() {
    let mut config = config();
    config.limits.stalled = Duration::from_secs(1);
    // More than the system keeps for a connection.
    let text: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
    let steps = [Step::Started].into_iter().chain(std::iter::repeat_n(Step::Text(text), 32)).chain([Step::Hang]);
    let mesh = Mesh::new(vec![("alpha", 0, Script::Steps(steps.collect()))]);
    let served = serve(&mesh, config).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = soon(socket.connect(served.addr)).await.unwrap();
    let body = chat(json!({"stream": true})).to_string();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    mesh.node("alpha").cancelled(1).await;
}
