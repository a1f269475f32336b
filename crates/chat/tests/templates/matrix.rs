//! Every template with every conversation: the prompt is the one that Jinja2 renders, or both refuse.
//!
//! `expected.txt` holds digests of Jinja2's prompts, so that this needs no Python. `just templates` renders them anew,
//! compares text with text, shows what differs, and writes the digests.

use std::fmt::Write as _;
use std::path::PathBuf;

use mesh_chat::ChatTemplate;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::archive;
use crate::conversations::cases;

/// What stands for a refusal.
const REFUSED: &str = "refused";

#[test]
fn prompts_are_those_of_jinja2() {
    let expected = include_str!("expected.txt");
    let mut lines = expected.lines().filter(|line| !line.starts_with('#'));
    let cases = cases();
    let mut wrong = Vec::new();
    for (name, source) in archive::templates() {
        let digests: Vec<&str> = lines.next().expect("a line for each template").split_whitespace().collect();
        assert_eq!((digests[0], digests.len()), (name.as_str(), cases.len() + 1), "`just templates` writes them anew");
        let template = ChatTemplate::parse(&source, "<s>", "</s>").expect("a template");
        for (case, expected) in cases.iter().zip(&digests[1..]) {
            let prompt = case.render(&template);
            if digest(prompt.as_deref().ok()) != *expected {
                wrong.push(format!("{name}, {}: {prompt:?}", case.name));
            }
        }
    }
    assert!(lines.next().is_none(), "`just templates` writes them anew");
    assert!(wrong.is_empty(), "{} differ; `just templates` shows how\n{}", wrong.len(), wrong.join("\n"));
}

/// Compares with the prompts in `MESH_TEMPLATE_PROMPTS`, as `scripts/render-templates` prints them, and writes their
/// digests into `MESH_TEMPLATE_DIGESTS`. Does nothing without them.
#[test]
fn prompts_are_compared_with_jinja2_at_work() {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let (Some(prompts), Some(digests)) = (path("MESH_TEMPLATE_PROMPTS"), path("MESH_TEMPLATE_DIGESTS")) else { return };
    let prompts = std::fs::read_to_string(prompts).expect("the prompts");
    let cases = cases();
    let (mut wrong, mut refused, mut count) = (0, 0, 0);
    let mut golden = "# Digests of Jinja2's prompts: `just templates` writes them.\n".to_owned();
    for ((name, source), line) in archive::templates().into_iter().zip(prompts.lines()) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["template"], *name);
        let template = ChatTemplate::parse(&source, "<s>", "</s>").expect("a template");
        let expected = line["prompts"].as_array().expect("prompts");
        assert_eq!(expected.len(), cases.len());
        golden += &name;
        for (case, expected) in cases.iter().zip(expected) {
            let (ours, expected) = (case.render(&template), expected.as_str());
            count += 1;
            refused += usize::from(expected.is_none());
            write!(golden, " {}", digest(expected)).expect("a string");
            if ours.as_deref().ok() != expected {
                wrong += 1;
                println!("{name}, {}:{}", case.name, difference(&ours, expected));
            }
        }
        golden.push('\n');
    }
    println!("{count} prompts, {refused} of them refused by Jinja2, {wrong} different");
    assert_eq!(wrong, 0);
    std::fs::write(digests, golden).expect("a file");
}

fn digest(prompt: Option<&str>) -> String {
    let Some(prompt) = prompt else { return REFUSED.to_owned() };
    Sha256::digest(prompt)[..4].iter().fold(String::new(), |digest, byte| format!("{digest}{byte:02x}"))
}

/// Where two prompts part.
fn difference(ours: &Result<String, mesh_chat::ChatError>, expected: Option<&str>) -> String {
    let (Ok(ours), Some(expected)) = (ours, expected) else {
        return match ours {
            Ok(ours) => format!(" Jinja2 refuses, we say {:?}", tail(ours, ours.len().saturating_sub(200))),
            Err(error) => format!(" we refuse: {error}"),
        };
    };
    let at = ours.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let at = at.saturating_sub(60);
    format!("\n  ours:   {:?}\n  Jinja2: {:?}", tail(ours, at), tail(expected, at))
}

fn tail(text: &str, mut at: usize) -> String {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    text[at..].chars().take(200).collect()
}
