//! An agent's prompt: instructions, tools as JSON, and turns in which files, tables and listings come back from tools.

/// What the agent is told, as such instructions read.
const INSTRUCTIONS: &str = "You are a coding agent that works in a repository on the user's machine. Read before you \
    write, keep changes small, run the tests, and say what you did.\n\n# Rules\n\n- Use `read_file` for files; never \
    guess what is in them.\n- Paths are relative to the repository's root.\n- If a command fails, show its last lines.\n\n";

/// Files that the agent reads: code, documentation with tables, data.
const FILES: [(&str, &str); 4] = [
    ("crates/tokenizer/src/byte_level.rs", include_str!("../../src/byte_level.rs")),
    ("docs/architecture.md", include_str!("../../../../docs/architecture.md")),
    ("docs/parameters.md", include_str!("../../../../docs/parameters.md")),
    ("Cargo.toml", include_str!("../../../../Cargo.toml")),
];

/// Text of an agent's prompt, of `bytes` bytes or a few less.
pub(crate) fn prompt(bytes: usize) -> String {
    let mut text = String::from(INSTRUCTIONS);
    text.push_str("# Tools\n\n");
    for tool in 0..24 {
        text.push_str(&tool_schema(tool));
    }
    let mut turn = 0;
    while text.len() < bytes {
        let (path, file) = FILES[turn % FILES.len()];
        text.push_str(&format!("\nI will look at `{path}` (step {turn}).\n\n```\n{file}\n```\n\n"));
        text.push_str(&listing(turn));
        turn += 1;
    }
    let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
    text
}

fn tool_schema(tool: usize) -> String {
    const VERBS: [&str; 6] = ["read", "write", "search", "list", "run", "describe"];
    const NOUNS: [&str; 4] = ["file", "issue", "branch", "container"];
    let (verb, noun) = (VERBS[tool % VERBS.len()], NOUNS[tool % NOUNS.len()]);
    format!(
        "{{\"type\": \"function\", \"function\": {{\"name\": \"{verb}_{noun}_{tool}\", \"description\": \"{verb} a {noun} \
         by its id; fails where there is none.\", \"parameters\": {{\"type\": \"object\", \"properties\": {{\"id\": \
         {{\"type\": \"string\", \"description\": \"The {noun}'s id\"}}, \"limit\": {{\"type\": \"integer\", \"minimum\": \
         {tool}, \"maximum\": 4096}}}}, \"required\": [\"id\"]}}}}}}\n"
    )
}

fn listing(turn: usize) -> String {
    let mut text = String::from("| id | name | size | changed |\n| --- | --- | ---: | --- |\n");
    for row in 0..30 {
        let (id, size) = (turn * 7919 + row * 104_729, (row * 48_271 + turn) % 99_991);
        text.push_str(&format!(
            "| {id:08x} | module_{row}.rs | {size} | 2026-11-{:02}T{:02}:15:00Z |\n",
            row + 1,
            row % 24
        ));
    }
    text
}
