//! What `template parse` prints.

use mesh_chat::{Capability, ChatTemplate, Detokenizer, Ending, Turn, TurnEvent, TurnOptions, TurnParser};
use mesh_types::{FinishReason, Message};
use serde_json::{Value, json};

use super::request::Request;
use super::{TemplateError, print, read_file, read_stdin, render};
use crate::cli::ParseArgs;

/// Parses an output and prints the message, or the events.
pub(super) fn run(args: &ParseArgs, template: &ChatTemplate, capability: &Capability) -> Result<(), TemplateError> {
    let given = args.request.as_deref().map(read_file).transpose()?;
    let mut request = Request::parse(given.as_deref().unwrap_or("{}").as_bytes())?;
    let pieces = pieces(args.pieces.as_deref())?;
    if request.messages.is_empty() {
        let content = Some("Hello".to_owned());
        request.messages.push(Message { role: "user".to_owned(), content, ..Message::default() });
    }
    // Only its end matters: it may have opened the model's thinking.
    let prompt = render(template, capability, &request).unwrap_or_default();
    let mut parser = TurnParser::new(&TurnOptions {
        strategy: capability.strategy.clone(),
        tools: &request.tools,
        choice: &request.choice,
        any_tool: given.is_none(),
        parallel: request.parallel,
        prompt: &prompt,
        seed: "template",
    });
    let reason = if args.finish == "length" { FinishReason::Length } else { FinishReason::Stop };
    let (events, reason) = events(&mut parser, &pieces, reason);
    let text = if args.stream { stream(&events, reason) } else { message(events, reason) };
    print(text.as_bytes())
}

/// The output as it arrives.
fn pieces(given: Option<&str>) -> Result<Vec<Vec<u8>>, TemplateError> {
    let json = match given {
        None => return Ok(vec![read_stdin()?]),
        Some("-") => read_stdin()?,
        Some(text) if text.trim_start().starts_with('[') => text.as_bytes().to_vec(),
        Some(path) => read_file(path.as_ref())?.into_bytes(),
    };
    let wrong = || TemplateError::Input("`--pieces` must be a JSON array of hex strings".to_owned());
    let pieces: Vec<String> = serde_json::from_slice(&json).map_err(|_| wrong())?;
    pieces.iter().map(|piece| bytes(piece).ok_or_else(wrong)).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The events of each piece, and how the answer ended.
fn events(parser: &mut TurnParser, pieces: &[Vec<u8>], reason: FinishReason) -> (Vec<Vec<TurnEvent>>, FinishReason) {
    let mut detokenizer = Detokenizer::new();
    let mut events = Vec::with_capacity(pieces.len() + 2);
    for piece in pieces {
        events.push(parser.push(&detokenizer.push(piece)));
        if parser.is_complete() {
            break;
        }
    }
    if !parser.is_complete() {
        events.push(parser.push(&detokenizer.flush()));
    }
    // What ends the generation itself does not run out of length.
    let reason = if parser.is_complete() { FinishReason::Stop } else { reason };
    events.push(parser.finish(reason));
    (events, reason)
}

fn finish_reason(events: &[Vec<TurnEvent>], reason: FinishReason) -> &'static str {
    let mut ending = Ending::default();
    ending.take(events.iter().flatten());
    match ending.reason(reason) {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Stop => "stop",
    }
}

fn message(events: Vec<Vec<TurnEvent>>, reason: FinishReason) -> String {
    let finish_reason = finish_reason(&events, reason);
    let mut turn = Turn::default();
    turn.extend(events.into_iter().flatten());
    let is_silent = turn.content.is_empty() && (!turn.calls.is_empty() || !turn.reasoning.is_empty());
    let mut message = json!({"role": "assistant", "content": (!is_silent).then_some(&turn.content)});
    if !turn.reasoning.is_empty() {
        message["reasoning_content"] = json!(turn.reasoning);
    }
    if !turn.calls.is_empty() {
        let call = |call: &mesh_types::ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        message["tool_calls"] = turn.calls.iter().map(call).collect();
    }
    format!("{}\n", json!({"message": message, "finish_reason": finish_reason}))
}

fn stream(events: &[Vec<TurnEvent>], reason: FinishReason) -> String {
    let mut out = line(json!({"role": "assistant", "content": ""}), None);
    for event in events.iter().flatten() {
        out += &line(delta(event), None);
    }
    out += &line(json!({}), Some(finish_reason(events, reason)));
    out + "data: [DONE]\n\n"
}

fn delta(event: &TurnEvent) -> Value {
    match event {
        TurnEvent::Reasoning(text) => json!({"reasoning_content": text}),
        TurnEvent::Content(text) => json!({"content": text}),
        TurnEvent::Call { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        }
        TurnEvent::Arguments { index, fragment } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})
        }
    }
}

fn line(delta: Value, finish_reason: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish_reason});
    let chunk = json!({
        "id": "chatcmpl-template", "object": "chat.completion.chunk", "created": 0, "model": "template",
        "choices": [choice],
    });
    format!("data: {chunk}\n\n")
}

#[cfg(test)]
mod tests {
    use mesh_chat::Format;
    use mesh_types::ToolChoice;

    use super::*;

    fn run(pieces: &[&[u8]], reason: FinishReason, parallel: bool) -> (Vec<Vec<TurnEvent>>, FinishReason) {
        let format = Format::named("hermes").expect("a format");
        let mut parser = TurnParser::new(&TurnOptions {
            strategy: mesh_chat::Strategy::Native(format),
            tools: &[],
            choice: &ToolChoice::Auto,
            any_tool: true,
            parallel,
            prompt: "",
            seed: "test",
        });
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        events(&mut parser, &pieces, reason)
    }

    fn parsed(pieces: &[&[u8]], reason: FinishReason) -> Value {
        let (events, reason) = run(pieces, reason, true);
        serde_json::from_str(&message(events, reason)).expect("JSON")
    }

    const CALL: &[u8] = b"<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";

    #[test]
    fn a_message_has_the_shape_of_the_api() {
        let text = parsed(&[b"Ok \xf0\x9f", b"\x98\x80"], FinishReason::Stop);
        assert_eq!(text, json!({"message": {"role": "assistant", "content": "Ok \u{1f600}"}, "finish_reason": "stop"}));
        let call = parsed(&[CALL], FinishReason::Stop);
        assert_eq!(call["finish_reason"], "tool_calls");
        assert_eq!(call["message"]["content"], Value::Null);
        assert_eq!(call["message"]["tool_calls"][0]["function"], json!({"name": "now", "arguments": "{}"}));
        assert_eq!(call["message"]["tool_calls"][0]["type"], "function");
        assert_eq!(parsed(&[b"<think>Hm"], FinishReason::Length)["message"]["reasoning_content"], "Hm");
        assert_eq!(parsed(&[b"Cut o"], FinishReason::Length)["finish_reason"], "length");
        assert_eq!(parsed(&[CALL], FinishReason::Length)["finish_reason"], "tool_calls");
        assert_eq!(parsed(&[&CALL[..CALL.len() / 2]], FinishReason::Length)["finish_reason"], "length");
        assert_eq!(parsed(&[], FinishReason::Stop)["message"]["content"], "");
    }

    #[test]
    fn what_ends_the_generation_has_not_run_out_of_length() {
        let (events, reason) = run(&[CALL, b" and more", b"and more"], FinishReason::Length, false);
        assert_eq!(reason, FinishReason::Stop);
        assert!(!events.iter().flatten().any(|event| matches!(event, TurnEvent::Content(_))));
    }

    #[test]
    fn a_stream_names_a_call_once() {
        let (head, tail) = CALL.split_at(45);
        let (events, reason) = run(&[b"Hm. ", head, tail], FinishReason::Stop, true);
        let text = stream(&events, reason);
        assert!(text.ends_with("data: [DONE]\n\n"));
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: {").map(|rest| format!("{{{rest}")));
        let chunks: Vec<Value> = lines.map(|line| serde_json::from_str(&line).expect("JSON")).collect();
        let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
        assert_eq!(deltas[0]["role"], "assistant");
        assert_eq!(deltas[1]["content"], "Hm.");
        let calls: Vec<&Value> = deltas.iter().filter_map(|delta| delta["tool_calls"].get(0)).collect();
        assert_eq!(calls.iter().filter(|call| call.get("id").is_some()).count(), 1);
        let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(arguments, "{}");
        assert_eq!(chunks.last().expect("chunks")["choices"][0]["finish_reason"], "tool_calls");
    }

    #[test]
    fn pieces_are_hex() {
        assert_eq!(bytes("4f6B"), Some(b"Ok".to_vec()));
        assert_eq!(bytes("4f6"), None);
        assert_eq!(bytes("zz"), None);
        assert_eq!(pieces(Some("[\"4f\", \"\"]")).expect("pieces"), [b"O".to_vec(), Vec::new()]);
        assert!(pieces(Some("[1]")).is_err());
    }
}
