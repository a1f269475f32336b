//! Harmony: a call is a message to a function, and an answer one in the final channel.

use super::Maker;
use super::lark::literal;

/// What begins a call's recipient.
pub(super) const RECIPIENT: &str = "to=functions.";

/// One call of one of `tools`, given as name and rule of the arguments. `from_marker`: from the recipient on.
pub(super) fn call(maker: &mut Maker, tools: &[(String, String)], from_marker: bool) -> String {
    let json = maker.lark.rule(&typed());
    let channel = literal("<|channel|>commentary");
    let mut options = Vec::new();
    for (name, arguments) in tools {
        let recipient = |before: &str| literal(&format!("{before}{RECIPIENT}{name}"));
        match from_marker {
            true => options.push(format!("{} ({channel})? {json} {arguments}", recipient(""))),
            false => {
                options.push(format!("{} {json} {arguments}", recipient("<|channel|>commentary ")));
                options.push(format!("{} {channel} {json} {arguments}", recipient(" ")));
            }
        }
    }
    let call = format!("({})", options.join(" | "));
    if from_marker { call } else { format!("{} {call}", start()) }
}

/// An answer whose text is of the rule `json`.
pub(super) fn answer(json: &str) -> String {
    format!("{} {} {} {json}", start(), literal("<|channel|>final"), typed())
}

/// The end of a header, which may say that the message is JSON.
fn typed() -> String {
    let (json, constrain) = (literal("json"), literal("<|constrain|>"));
    format!("(BLANK {json} | BLANK? {constrain} {json}?)? {}", literal("<|message|>"))
}

/// The beginning of a message, where it does not stand in the prompt.
fn start() -> String {
    format!("{}?", literal("<|start|>assistant"))
}
