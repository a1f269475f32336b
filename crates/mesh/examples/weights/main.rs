//! For `just bench weights`: a node that holds a model file, or one that fetches a slice of it and says how long it took.

mod transfer;

#[tokio::main]
async fn main() -> transfer::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    transfer::run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
}
