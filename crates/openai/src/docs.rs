//! The pages about requests and errors, made from the tables that decide: `docs/parameters.md` and `docs/errors.md`. A
//! test holds them current.

use std::fmt::Write as _;

use crate::error::CODES;
use crate::fields::{Field, Handling, TABLES};

const PARAMETERS: &str = "# Parameters

What `/v1` does with each field of each request. This page is made from the tables in `crates/openai/src/fields`, which
decide it (`just docs` writes it).

- **honoured**: it means what its reference says.
- **no effect**: accepted, and named in the response's header `x-mesh-ignored`, because nothing here depends on it.
- **refused**: it would change the answer, and is not served. A value that asks for nothing is accepted.

Null is the same as absent everywhere. A field that is not listed has no effect, and is named in `x-mesh-ignored`. A
value of a wrong type or out of range is refused with its path in `param`.

## The same text again

A `seed` fixes the draws: the same seed draws the same tokens from the same logits, on one machine and over several. The
logits of llama.cpp's kernels are the same again as long as they add up in the same order, which depends on what is computed
together with a token, on where in the KV cache a conversation stands, and on what else is there. So a request with a `seed`,
where nothing else runs, is computed as on a node that was just started: no part of its prompt is taken over from earlier
requests, and no drafts ride along. It then gives its text again, whatever was asked in between. `cache_prompt: true` takes
the cached part over instead (a conversation whose turns all have a seed may want that), and gives the repetition up.

`just bench seeds` measures it. SmolLM2-135M (Q4_1) on a processor, 8 prompts with a seed each, at temperature 1, asked three
times with other conversations in between:

| | the same text all three times |
| --- | --- |
| one thread | 8 of 8 |
| two threads | 8 of 8 |
| two threads, `--flash-attn off` | 8 of 8 |
| two stages of one thread each | 8 of 8 |
| one thread, beside seven other requests | 0 of 8 |

Under load a seed does not repeat its text: llama.cpp's kernels are not batch-invariant there. Nor does it on other hardware,
with another number of threads, or for the choices behind the first of several, which share its prompt. At
temperature 0, only what is nearly a tie can turn.
";

/// `docs/parameters.md`.
pub fn parameters() -> String {
    let mut page = PARAMETERS.to_owned();
    for table in TABLES {
        let place = if table.place.is_empty() { String::new() } else { format!(": `{}`", table.place) };
        // Writing into a string cannot fail.
        let _ = write!(page, "\n## `{}`{place}\n\n| field | | |\n| --- | --- | --- |\n", table.request);
        for field in table.all() {
            let _ = writeln!(page, "| `{}` | {} |", field.name, handling(field));
        }
    }
    page
}

fn handling(field: &Field) -> String {
    let (what, how) = match field.handling {
        Handling::Read(kind) => ("honoured", kind.describe()),
        Handling::Harmless => ("no effect", String::new()),
        Handling::Refused(neutral) => ("refused", format!("unless {}", neutral.describe())),
        Handling::Legacy { successor } => ("refused", format!("unless null or empty: use {successor}")),
    };
    let notes: Vec<_> = [how.as_str(), field.note].into_iter().filter(|note| !note.is_empty()).collect();
    format!("{what} | {}", notes.join("; "))
}

const ERRORS: &str = "# Errors

Every error is an object: `{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`, for `/v1/messages` in
Anthropic's shape, `{\"type\": \"error\", \"error\": {\"type\", \"message\"}, \"request_id\"}`. `message` is
one sentence for people, `code` is stable. 429 and 503 carry `Retry-After`. An error after the first byte of a stream is
its last event. What is no HTTP, or has a head of more than 64 KiB or 100 headers, gets a 400 or 431 without a body. This
page is made from the table in `crates/openai/src/error.rs` (`just docs` writes it).

| status | code | when |
| --- | --- | --- |
| 400 | null | The request is malformed; `param` names the field at fault. |
";

/// `docs/errors.md`.
pub fn errors() -> String {
    let mut page = ERRORS.to_owned();
    for code in CODES {
        let statuses: Vec<_> = code.statuses.iter().map(u16::to_string).collect();
        // Writing into a string cannot fail.
        let _ = writeln!(page, "| {} | `{}` | {} |", statuses.join(", "), code.code, code.when);
    }
    page
}
