//! What a request demands of its answer, as a constraint on the run: chosen here, where tools, template and vocabulary
//! are known, and enforced by the stage that samples.

use mesh_chat::{Demand, Enforced, Unenforceable, gbnf};
use mesh_types::constraint::Start;
use mesh_types::{ChatRequest, Constraint, Fault, ResponseFormat};

use super::model::ServedModel;

/// What is enforced of `request`, whose prompt ends as `prompt` does. Blocks for as long as it computes: some
/// milliseconds for many tools.
///
/// # Errors
/// A schema that has to be enforced and cannot be, or demands that are too large.
pub(super) fn of(request: &ChatRequest, model: &ServedModel, prompt: &str) -> Result<Enforced, Fault> {
    if let Some(grammar) = &request.grammar {
        return written(grammar, model);
    }
    if request.raw.is_some() {
        return Ok(Enforced { constraint: None, relaxed: Vec::new() });
    }
    let demand = Demand {
        strategy: &model.capability.strategy,
        template: &model.template,
        prompt,
        tools: &request.tools,
        choice: &request.tool_choice,
        parallel: request.parallel_tool_calls,
        response: &request.response_format,
    };
    let mut enforced = demand.enforced().map_err(|unenforceable| refusal(&unenforceable))?;
    if let Some(constraint) = &mut enforced.constraint {
        constraint.control_text = model.control_text();
        let param = if request.response_format == ResponseFormat::Text { "tools" } else { "response_format" };
        let refused = |error| {
            // The compiler's own words are for the log.
            tracing::warn!(%error, "a grammar that cannot be enforced");
            Fault::invalid("what the answer has to be is too large or too intricate to be enforced").with_param(param)
        };
        mesh_engine::constraint::check(constraint).map_err(refused)?;
    }
    Ok(enforced)
}

/// What the client wrote as a grammar.
fn written(grammar: &str, model: &ServedModel) -> Result<Enforced, Fault> {
    let refused = |message: String| Fault::invalid(message).with_param("grammar");
    let lark = gbnf::to_lark(grammar).map_err(|error| refused(format!("`grammar` cannot be read: {error}.")))?;
    let constraint = Constraint { control_text: model.control_text(), ..Constraint::immediately(lark) };
    mesh_engine::constraint::check(&constraint).map_err(|error| {
        // The compiler's own words are for the log.
        tracing::warn!(%error, "a client's grammar that cannot be enforced");
        refused("`grammar` is too large or too intricate to be enforced.".to_owned())
    })?;
    Ok(Enforced { constraint: Some(constraint), relaxed: Vec::new() })
}

/// Whether a run under `constraint` ends by a token that says so, whatever the request says of such tokens.
pub(super) fn ends(constraint: Option<&Constraint>) -> bool {
    constraint.is_some_and(|constraint| constraint.grammar.is_some() && constraint.start == Start::Immediately)
}

fn refusal(unenforceable: &Unenforceable) -> Fault {
    let fault = Fault::invalid(unenforceable.to_string());
    match unenforceable {
        Unenforceable::Arguments { index, .. } => {
            fault.with_param(format!("tools[{index}].function.parameters")).with_code("invalid_function_parameters")
        }
        Unenforceable::Response { .. } => fault.with_param("response_format"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_field() {
        let path = "properties.a.not".to_owned();
        let arguments = refusal(&Unenforceable::Arguments { index: 3, name: "f".into(), path: path.clone() });
        assert_eq!(arguments.param.as_deref(), Some("tools[3].function.parameters"));
        assert_eq!(arguments.code.as_deref(), Some("invalid_function_parameters"));
        assert!(arguments.message.contains("`properties.a.not`"));
        let response = refusal(&Unenforceable::Response { name: "n".into(), path });
        assert_eq!(response.param.as_deref(), Some("response_format"));
    }

    #[test]
    fn only_a_grammar_from_the_start_has_an_end_of_its_own() {
        assert!(!ends(None));
        assert!(ends(Some(&Constraint::immediately("start: \"a\""))));
        assert!(!ends(Some(&Constraint::forbidding(vec!["a".into()]))));
    }
}
