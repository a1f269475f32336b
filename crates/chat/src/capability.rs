//! Whether a template can call tools: tried out, once, when a model is loaded.
//!
//! A template is native if it passes a round trip: the schema of a tool shows in the prompt, a call and its result show
//! in it, and one of the formats reads the rendered call back to the same name and arguments. Neither the model's name
//! nor what the template contains as text decides. All others are emulated ([`crate::emulation`]).

mod probe;

use std::fmt;

use crate::error::ChatError;
use crate::format::{CallMarks, EMULATED, Format, PROSE};
use crate::template::{Arguments, ChatTemplate};

/// How a model is made to call tools.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// As it was trained to, in this format.
    Native(&'static Format),
    /// By a convention that it is told, because of this.
    Emulated(Reason),
}

/// Why tools are emulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The template does not show the model what it could call.
    #[error("its template does not show tools to the model")]
    NoTools,
    /// The template does not render calls.
    #[error("its template does not render calls of tools")]
    NoCalls,
    /// The template does not render results.
    #[error("its template does not render results of tools")]
    NoResults,
    /// Calls are rendered in none of the known formats.
    #[error("its template writes calls in no known format")]
    UnknownFormat,
    /// The template fails over tools.
    #[error("with tools, {0}")]
    Fails(ChatError),
    /// Somebody wants it.
    #[error("emulation was asked for")]
    Forced,
}

/// What a template can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Capability {
    /// How its model calls tools.
    pub strategy: Strategy,
    /// What it can do with turns.
    pub turns: Turns,
}

/// What a template can do with the turns of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// It shows a system message to the model.
    pub system: bool,
    /// It shows a system message that comes later than first.
    pub late_system: bool,
    /// It bears two user turns in a row, and two assistant turns.
    pub repeated: bool,
    /// It renders several calls in one turn.
    pub parallel_calls: bool,
    /// How it wants to have the arguments of calls.
    pub arguments: Arguments,
}

impl Capability {
    /// Tries `template` out.
    pub fn probe(template: &ChatTemplate) -> Self {
        probe::capability(template)
    }

    /// The same template with its strategy forced to emulation.
    pub fn emulated(self) -> Self {
        Self { strategy: Strategy::Emulated(Reason::Forced), ..self }
    }

    /// The same template with its strategy forced to native: in `format`, else in the one that was found. Where that is
    /// none either, tools are rendered natively and no call is read.
    pub fn native(self, format: Option<&'static Format>) -> Self {
        let strategy = match (format, self.strategy) {
            (Some(format), _) => Strategy::Native(format),
            (None, found @ Strategy::Native(_)) => found,
            (None, Strategy::Emulated(_)) => Strategy::Native(&PROSE),
        };
        Self { strategy, ..self }
    }
}

impl Strategy {
    /// The texts that make the structure of an answer. Where they are special tokens of a vocabulary, their text has to
    /// reach the reader all the same.
    pub fn markers(&self) -> Vec<&'static str> {
        self.calling().markers()
    }

    /// What marks a call.
    pub fn call_marks(&self) -> CallMarks {
        self.calling().call_marks()
    }

    /// The marks around what a model with this template thinks. `None`: it does not think.
    pub fn thinking_marks(&self, template: &ChatTemplate) -> Option<(&'static str, &'static str)> {
        self.calling().thinking_with(template)
    }

    fn calling(&self) -> &'static Format {
        match self {
            Self::Native(format) => format,
            Self::Emulated(_) => &EMULATED,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(format) => write!(f, "native ({})", format.name),
            Self::Emulated(reason) => write!(f, "emulated: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str = "{% if tools %}{% for t in tools %}{{ t|tojson }}\n{% endfor %}{% endif %}";
    const CALLS: &str = "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \
        \"arguments\": {{ c.function.arguments|tojson }}}\n</tool_call>\n{% endfor %}";

    fn of(source: &str) -> Capability {
        Capability::probe(&ChatTemplate::parse(source, "<s>", "</s>").expect("a template"))
    }

    fn turns(inner: &str) -> String {
        format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{inner}</{{{{ m.role }}}}>{{% endfor %}}"
        )
    }

    #[test]
    fn a_template_that_shows_tools_calls_and_results_is_native() {
        let capability = of(&format!("{TOOLS}{}", turns(CALLS)));
        assert_eq!(capability.strategy, Strategy::Native(Format::named("hermes").expect("a format")));
        let turns = capability.turns;
        assert!(turns.system && turns.late_system && turns.repeated && turns.parallel_calls);
        assert_eq!(turns.arguments, Arguments::Object);
        assert_eq!(capability.strategy.to_string(), "native (hermes)");
    }

    #[test]
    fn anything_less_is_emulated() {
        let reason = |source: &str| match of(source).strategy {
            Strategy::Emulated(reason) => reason,
            native => panic!("{native}"),
        };
        assert_eq!(reason(&turns(CALLS)), Reason::NoTools);
        assert_eq!(reason(&format!("{TOOLS}{}", turns(""))), Reason::NoCalls);
        let no_results =
            format!("{TOOLS}{{% for m in messages if m.role != 'tool' %}}{{{{ m.content }}}}{CALLS}{{% endfor %}}");
        assert_eq!(reason(&no_results), Reason::NoResults);
        let unknown = turns("{% for c in m.tool_calls or [] %}CALL {{ c.function|tojson }}{% endfor %}");
        assert_eq!(reason(&format!("{TOOLS}{unknown}")), Reason::UnknownFormat);
        let refusing = format!("{{% if tools %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}{}", turns(""));
        assert_eq!(reason(&refusing), Reason::Fails(ChatError::Refused("no tools".to_owned())));
        assert!(matches!(
            ChatTemplate::of_model(None, "", "").map(|t| Capability::probe(&t).strategy),
            Ok(Strategy::Emulated(Reason::NoTools))
        ));
    }

    #[test]
    fn arguments_go_in_as_the_template_can_use_them() {
        let printed = CALLS.replace("c.function.arguments|tojson", "c.function.arguments");
        let capability = of(&format!("{TOOLS}{}", turns(&printed)));
        assert_eq!(capability.turns.arguments, Arguments::Text);
        assert!(matches!(capability.strategy, Strategy::Native(_)), "{}", capability.strategy);
        let joined = CALLS.replace("{{ c.function.arguments|tojson }}", "{{ '' + c.function.arguments }}");
        assert_eq!(of(&format!("{TOOLS}{}", turns(&joined))).turns.arguments, Arguments::Text);
    }

    #[test]
    fn what_a_template_bears_is_found_out() {
        let alternating = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
            {{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
        let turns = of(alternating).turns;
        assert!(!turns.system && !turns.late_system && !turns.repeated);
        let single = format!(
            "{TOOLS}{}",
            self::turns(&format!(
                "{{% if (m.tool_calls or [])|length > 1 %}}{{{{ raise_exception('one') }}}}{{% endif %}}{CALLS}"
            ))
        );
        let capability = of(&single);
        assert!(matches!(capability.strategy, Strategy::Native(_)) && !capability.turns.parallel_calls);
    }
}
