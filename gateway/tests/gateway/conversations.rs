//! Which of several replicas a conversation goes to.

use serde_json::{Value, json};

use crate::client::{chat, config, serve};
use crate::fake::{Mesh, whole_answer};

const NODES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Requests that each node has had.
fn had(mesh: &Mesh) -> Vec<usize> {
    NODES.iter().map(|name| mesh.node(name).requests.lock().unwrap().len()).collect()
}

fn turns(topic: usize, count: usize) -> Value {
    let text = |turn: usize| format!("topic {topic}, turn {turn}: {}", "word ".repeat(200));
    let message =
        |turn: usize| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": text(turn)});
    json!({"messages": (0..count).map(message).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_conversation_returns_to_its_replica_and_others_go_elsewhere() {
    let mesh = Mesh::new(NODES.iter().map(|name| (*name, 0, whole_answer())).collect());
    let served = serve(&mesh, config()).await;
    for topic in 0..8 {
        let before = had(&mesh);
        for count in [1, 3, 5, 7] {
            assert_eq!(served.chat(&chat(turns(topic, count))).await.status(), 200);
        }
        let used = had(&mesh).iter().zip(&before).filter(|(now, before)| now > before).count();
        assert_eq!(used, 1, "one conversation, one replica");
    }
    assert!(had(&mesh).iter().filter(|count| **count > 0).count() > 1, "{:?}", had(&mesh));
}
