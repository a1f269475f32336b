//! Taking a port, and letting go of everything in the end.

use std::sync::Arc;
use std::time::Duration;

use mesh_gateway::{Config, Gateway, GatewayError};
use mesh_types::FinishReason;
use serde_json::json;

use crate::client::{Answer, chat, config, get, post, serve, soon};
use crate::fake::{Mesh, Script, Step, whole_answer};

#[tokio::test]
async fn a_taken_port_is_an_error_or_another_port() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let busy = Config::new(served.addr);
    let error = Gateway::bind(busy.clone(), Arc::clone(&mesh) as _).await.err().unwrap();
    assert!(matches!(error, GatewayError::InUse(addr) if addr == served.addr), "{error}");
    let other = Gateway::bind_or_any_port(busy, Arc::clone(&mesh) as _).await.unwrap();
    assert_ne!(other.local_addr(), served.addr);
    assert_eq!(other.url(), format!("http://{}/v1", other.local_addr()));
    let nowhere = Gateway::bind_or_any_port(Config::new(([192, 0, 2, 1], 0).into()), Arc::clone(&mesh) as _).await;
    assert!(matches!(nowhere.err().unwrap(), GatewayError::KeyRequired(_)));
    let nowhere = Config::new(([192, 0, 2, 1], 0).into()).with_api_key(Some("k".into()));
    assert!(matches!(Gateway::bind(nowhere, mesh).await.err().unwrap(), GatewayError::Bind { .. }));
}

#[tokio::test]
async fn answers_finish_when_the_gateway_stops() {
    let steps = vec![Step::Started, Step::Text("Hel"), Step::Gate, Step::Finished(FinishReason::Stop)];
    let mesh = Mesh::new(vec![("alpha", 0, Script::Steps(steps))]);
    let mut served = serve(&mesh, config()).await;
    let mut idle = served.client().await;
    assert_eq!(idle.ask(get("/v1/models")).await.status(), 200);
    let (mut streaming, mut waiting) = (served.client().await, served.client().await);
    let response = streaming.send(post(&chat(json!({"stream": true})))).await;
    let (whole, ()) = tokio::join!(waiting.ask(post(&chat(json!({})))), async {
        mesh.node("alpha").begun(2).await;
        served.stop.cancel();
        // An idle connection is closed, and new ones are refused.
        soon(idle.connection.join_next()).await;
        while tokio::net::TcpStream::connect(served.addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        mesh.node("alpha").open_gate();
        mesh.node("alpha").open_gate();
    });
    assert_eq!(whole.json()["choices"][0]["message"]["content"], "Hel");
    assert!(Answer::read(response).await.body.ends_with("data: [DONE]\n\n"));
    soon(served.tasks.join_next()).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut_off() {
    let mut config = config();
    config.limits.drain = Duration::from_millis(100);
    let mesh = Mesh::new(vec![("alpha", 0, Script::Steps(vec![Step::Started, Step::Hang]))]);
    let mut served = serve(&mesh, config).await;
    let mut client = served.client().await;
    let _response = client.send(post(&chat(json!({"stream": true})))).await;
    let (mut sender, _connection) = served.client2().await;
    soon(sender.ready()).await.unwrap();
    let _response2 = soon(sender.send_request(post(&chat(json!({"stream": true}))))).await.unwrap();
    served.stop.cancel();
    soon(served.tasks.join_next()).await.unwrap().unwrap();
    mesh.node("alpha").cancelled(2).await;
}
