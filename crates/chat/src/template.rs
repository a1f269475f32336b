//! Chat templates, rendered as Hugging Face's `apply_chat_template` renders them with Jinja2.
//!
//! A template comes out of a file from anywhere: it gets a budget of work and memory per rendering, sees nothing but
//! the conversation, and its complaints are errors with a sentence. Python's side of Jinja2 (`tojson`, methods of
//! strings and dicts, `strftime_now`) is in `python`.

mod python;
mod source;
mod stack;

use std::io;

use jiff::Zoned;
use mesh_types::{Message, ToolCall};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};

use crate::error::ChatError;
use python::dict::dict;
use python::number;

/// The template used for models that bring none (ChatML).
const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>' + '\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Longest template source, in bytes; the longest ones in use have some 20 kB.
pub const MAX_SOURCE: usize = 128 << 10;

/// Fuel of a rendering: about one per instruction and per 64 bytes made, so that it bounds time and memory.
const FUEL: u64 = 1_000_000;
/// Fuel on top for each message.
const FUEL_PER_MESSAGE: u64 = 2_000;
/// Some templates copy the whole prompt for each message: bytes of that per fuel on top.
const BYTES_PER_FUEL: u64 = 16;
/// Fuel of the largest conversation: about half a second.
const MAX_FUEL: u64 = 4_000_000;
/// Longest prompt of an empty conversation, in bytes; one byte of conversation may make `OUTPUT_PER_BYTE` more.
const OUTPUT: usize = 1 << 20;
const OUTPUT_PER_BYTE: usize = 8;

const NAME: &str = "chat_template";

/// Where a template comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The model, or who configured it, brought it.
    Given,
    /// The model brought none: ChatML is used, which it may never have seen.
    BuiltIn,
}

/// How a template gets the arguments of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arguments {
    /// As an object that it can walk. Text that is no JSON stays text.
    #[default]
    Object,
    /// As the text that the API has.
    Text,
}

/// A model's chat template, ready to render.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// It is of the time before `tools`.
    wants_functions: bool,
    origin: TemplateOrigin,
    bos_token: String,
    eos_token: String,
}

/// All that a template may see.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// The conversation. Roles are passed as they are; a null content is Jinja's `none`.
    pub messages: &'a [Message],
    /// Whether the prompt ends with the beginning of an assistant turn.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a sequence; may be empty.
    pub bos_token: &'a str,
    /// Text of the token that ends a sequence; may be empty.
    pub eos_token: &'a str,
    /// The tools' definitions, as the client sent them; where there are none, the template sees none.
    pub tools: Vec<serde_json::Value>,
    /// How the arguments of calls are passed.
    pub arguments: Arguments,
    /// More variables, as in `chat_template_kwargs`; they win over the ones above.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` shows; `None`: the time when the template asks.
    pub now: Option<Zoned>,
}

impl ChatTemplate {
    /// Reads a template. `bos` and `eos` are the texts of the model's tokens that begin and end a sequence.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn parse(source: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        Self::new(source, bos, eos, TemplateOrigin::Given)
    }

    /// The template of a model: its own, or ChatML where it has none.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn of_model(source: Option<&str>, bos: &str, eos: &str) -> Result<Self, ChatError> {
        match source {
            Some(source) => Self::parse(source, bos, eos),
            None => Self::new(CHATML, bos, eos, TemplateOrigin::BuiltIn),
        }
    }

    fn new(source: &str, bos: &str, eos: &str, origin: TemplateOrigin) -> Result<Self, ChatError> {
        if source.len() > MAX_SOURCE {
            return Err(ChatError::Syntax(format!("it has {} bytes, and {MAX_SOURCE} are the most", source.len())));
        }
        let mut environment = Environment::new();
        environment.set_debug(false);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build();
        environment.set_syntax(syntax.map_err(syntax_error)?);
        python::install(&mut environment);
        let source = source::as_python_reads_it(source);
        let wants_functions = stack::of_size(stack::PARSING, || {
            environment.add_template_owned(NAME, source).map_err(syntax_error)?;
            let wanted = environment.get_template(NAME).map_err(syntax_error)?.undeclared_variables(false);
            Ok(wanted.contains("functions") && !wanted.contains("tools"))
        })?;
        Ok(Self { environment, wants_functions, origin, bos_token: bos.to_owned(), eos_token: eos.to_owned() })
    }

    /// Where it comes from.
    pub fn origin(&self) -> TemplateOrigin {
        self.origin
    }

    /// Whether `text` stands in its source.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.environment.get_template(NAME).is_ok_and(|template| template.source().contains(text))
    }

    /// What [`Self::render`] gives a template: `messages` and the model's tokens, and nothing more.
    pub fn input<'a>(&'a self, messages: &'a [Message], add_generation_prompt: bool) -> RenderInput<'a> {
        RenderInput {
            messages,
            add_generation_prompt,
            bos_token: &self.bos_token,
            eos_token: &self.eos_token,
            tools: Vec::new(),
            arguments: Arguments::default(),
            extra: serde_json::Map::new(),
            now: None,
        }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`ChatError::Refused`] with the template's own words, [`ChatError::Render`], [`ChatError::TooCostly`].
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        self.render_input(&self.input(messages, add_generation_prompt))
    }

    /// The same with all that a template may see.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_input(&self, input: &RenderInput<'_>) -> Result<String, ChatError> {
        let tools: usize = input.tools.iter().map(|tool| tool.to_string().len()).sum();
        let size = tools + input.messages.iter().map(size).sum::<usize>();
        let fuel = fuel(input.messages.len() as u64, size as u64);
        stack::of_size(stack::for_fuel(fuel), || self.render_within(input, fuel, size))
    }

    fn render_within(&self, input: &RenderInput<'_>, fuel: u64, size: usize) -> Result<String, ChatError> {
        // A copy (of pointers), because budget and time belong to one rendering.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        python::set_clock(&mut environment, input.now.clone());
        let mut output =
            Bounded { bytes: Vec::new(), left: OUTPUT.saturating_add(size.saturating_mul(OUTPUT_PER_BYTE)) };
        let template = environment.get_template(NAME).map_err(render_error)?;
        let mut variables = context(input);
        if self.wants_functions {
            older_names(&environment, input, &mut variables).map_err(render_error)?;
        }
        variables.extend(input.extra.iter().map(|(name, value)| (name.as_str(), number::value(value))));
        let variables = Value::from_pairs(variables);
        template.render_captured_to(variables, &mut output).map_err(render_error)?;
        String::from_utf8(output.bytes).map_err(|_| ChatError::Render("its output is no text".to_owned()))
    }
}

/// The fuel for a conversation of `messages` with `size` bytes.
fn fuel(messages: u64, size: u64) -> u64 {
    let copies = messages.saturating_mul(size) / BYTES_PER_FUEL;
    FUEL.saturating_add(messages.saturating_mul(FUEL_PER_MESSAGE)).saturating_add(copies).min(MAX_FUEL)
}

/// The variables as Hugging Face passes them: `tools` and `documents` are there, and none.
fn context<'a>(input: &'a RenderInput<'_>) -> Vec<(&'a str, Value)> {
    vec![
        ("messages", input.messages.iter().map(|said| message(said, input.arguments)).collect()),
        (
            "tools",
            if input.tools.is_empty() { Value::from(()) } else { input.tools.iter().map(number::value).collect() },
        ),
        ("documents", Value::from(())),
        ("add_generation_prompt", Value::from(input.add_generation_prompt)),
        ("bos_token", Value::from(input.bos_token)),
        ("eos_token", Value::from(input.eos_token)),
    ]
}

/// What templates of the time before `tools` want: the tools' JSON text as `functions`, and the date.
fn older_names(
    environment: &Environment<'_>,
    input: &RenderInput<'_>,
    variables: &mut Vec<(&str, Value)>,
) -> Result<(), minijinja::Error> {
    let functions = match input.tools.is_empty() {
        true => Value::from(""),
        false => {
            let tools = Value::from_pairs([("tools", input.tools.iter().map(number::value).collect::<Value>())]);
            environment.compile_expression("tools|tojson(indent=4)")?.eval(tools)?
        }
    };
    let now = environment.compile_expression("strftime_now('%Y-%m-%d %H:%M:%S %Z')")?.eval(())?;
    variables.extend([("functions", functions), ("datetime", now)]);
    Ok(())
}

fn message(message: &Message, arguments: Arguments) -> Value {
    // A null beside calls means no text; templates print it.
    let no_content = || if message.tool_calls.is_empty() { Value::from(()) } else { Value::from("") };
    let mut fields = vec![
        ("role", Value::from(message.role.as_str())),
        ("content", message.content.as_deref().map_or_else(no_content, Value::from)),
    ];
    fields.extend(message.name.as_deref().map(|name| ("name", Value::from(name))));
    fields.extend(message.reasoning_content.as_deref().map(|text| ("reasoning_content", Value::from(text))));
    if !message.tool_calls.is_empty() {
        fields.push(("tool_calls", message.tool_calls.iter().map(|made| call(made, arguments)).collect()));
    }
    fields.extend(message.tool_call_id.as_deref().map(|id| ("tool_call_id", Value::from(id))));
    dict(fields)
}

fn call(call: &ToolCall, arguments: Arguments) -> Value {
    let text = || Value::from(call.arguments.as_str());
    let arguments = match arguments {
        Arguments::Object => number::object(&call.arguments).unwrap_or_else(text),
        Arguments::Text => text(),
    };
    let function = dict([("name", Value::from(call.name.as_str())), ("arguments", arguments)]);
    dict([("id", Value::from(call.id.as_str())), ("type", Value::from("function")), ("function", function)])
}

fn size(message: &Message) -> usize {
    let texts = [&message.content, &message.name, &message.reasoning_content, &message.tool_call_id];
    let calls = message.tool_calls.iter().map(|call| call.id.len() + call.name.len() + call.arguments.len());
    message.role.len() + texts.into_iter().flatten().map(String::len).sum::<usize>() + calls.sum::<usize>()
}

/// Collects a prompt up to its limit.
struct Bounded {
    bytes: Vec<u8>,
    left: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn syntax_error(error: minijinja::Error) -> ChatError {
    ChatError::Syntax(sentence(&error))
}

fn render_error(error: minijinja::Error) -> ChatError {
    if matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure) {
        return ChatError::TooCostly;
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(python::Refusal(message)) = cause.downcast_ref() {
            return ChatError::Refused(message.clone());
        }
        source = cause.source();
    }
    ChatError::Render(sentence(&error))
}

/// `unknown filter: filter foo is unknown (line 3 of the template)`.
fn sentence(error: &minijinja::Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    if let Some(line) = error.line() {
        text = format!("{text} (line {line} of the template)");
    }
    text
}

#[cfg(test)]
mod tests;
