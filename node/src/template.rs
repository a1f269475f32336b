//! `template show|render|parse`: chat templates for people, without a node.
//!
//! What the commands do is `mesh-chat`'s; here are their files, their standard input and what they print.

mod parse;
mod request;
mod show;

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use kernels_ffi::Vocab;
use mesh_chat::{Capability, ChatError, ChatTemplate, Conversation, Format};
use mesh_gguf::{ModelInfo, Source};

use crate::cli::{TemplateArgs, TemplateCommand};
use request::Request;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The command line asks for something that is not there.
    #[error("{0}")]
    Usage(String),
    /// A file, the standard input or the standard output cannot be used.
    #[error("cannot use {what}: {reason}")]
    File {
        /// Its name.
        what: String,
        /// One sentence.
        reason: String,
    },
    /// The request, or the pieces of an output, are not what they have to be.
    #[error("{0}")]
    Input(String),
    /// The template.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

impl TemplateError {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}

/// Runs the command. Blocks on standard input.
///
/// # Errors
/// [`TemplateError`], in one sentence.
pub fn run(command: &TemplateCommand) -> Result<(), TemplateError> {
    match command {
        TemplateCommand::Show { template, json } => {
            let (chat, capability) = open(template)?;
            print(show::text(&chat, &capability, *json).as_bytes())
        }
        TemplateCommand::Render { template } => {
            let (chat, capability) = open(template)?;
            let request = Request::parse(&read_stdin()?)?;
            print(render(&chat, &capability, &request)?.as_bytes())
        }
        TemplateCommand::Parse(args) => {
            let (chat, capability) = open(&args.template)?;
            parse::run(args, &chat, &capability)
        }
    }
}

/// The template, and its capability as the command line wants it.
fn open(args: &TemplateArgs) -> Result<(ChatTemplate, Capability), TemplateError> {
    let format = args.format.as_deref().map(format).transpose()?;
    let template = match (&args.template, &args.model) {
        (Some(path), _) => ChatTemplate::parse(&read_file(path)?, "", "")?,
        (None, Some(model)) => of_model(model)?,
        (None, None) if format.is_some() || args.strategy == "emulated" => ChatTemplate::of_model(None, "", "")?,
        (None, None) => {
            let wanted = "name a template: --template FILE or --model REF (to read an answer, --format NAME is enough)";
            return Err(TemplateError::Usage(wanted.to_owned()));
        }
    };
    let found = Capability::probe(&template);
    let capability = match (args.strategy.as_str(), format) {
        ("emulated", Some(_)) => {
            return Err(TemplateError::Usage(
                "--format belongs to native calls, not to --strategy emulated".to_owned(),
            ));
        }
        ("emulated", None) => found.emulated(),
        ("native", format) | (_, format @ Some(_)) => found.native(format),
        _ => found,
    };
    Ok((template, capability))
}

fn format(name: &str) -> Result<&'static Format, TemplateError> {
    Format::named(name).ok_or_else(|| {
        let names: Vec<&str> = Format::all().map(|format| format.name).collect();
        TemplateError::Usage(format!("there is no format `{name}`; there are {}", names.join(", ")))
    })
}

fn of_model(model: &str) -> Result<ChatTemplate, TemplateError> {
    let path = PathBuf::from(model);
    let bad = |reason: String| TemplateError::File { what: model.to_owned(), reason };
    let source = Source::open(&path).map_err(|error| bad(error.to_string()))?;
    let info = ModelInfo::of(source.header()).map_err(|error| bad(error.to_string()))?;
    let vocab = Vocab::load(&path).map_err(|error| bad(error.to_string()))?;
    let text = |token: Option<i32>| token.and_then(|token| vocab.text(token)).unwrap_or_default();
    Ok(ChatTemplate::of_model(info.chat_template.as_deref(), &text(vocab.bos()), &text(vocab.eos()))?)
}

/// The prompt of a request.
fn render(template: &ChatTemplate, capability: &Capability, request: &Request) -> Result<String, TemplateError> {
    let conversation = Conversation {
        messages: &request.messages,
        tools: &request.tools,
        choice: &request.choice,
        parallel: request.parallel,
    };
    let prepared = conversation.prepare(capability)?;
    let mut input = prepared.input(template, request.add_generation_prompt);
    input.bos_token = request.bos_token.as_deref().unwrap_or(input.bos_token);
    input.eos_token = request.eos_token.as_deref().unwrap_or(input.eos_token);
    input.extra.clone_from(&request.variables);
    Ok(template.render_input(&input)?)
}

fn read_file(path: &Path) -> Result<String, TemplateError> {
    std::fs::read_to_string(path)
        .map_err(|error| TemplateError::File { what: path.display().to_string(), reason: error.to_string() })
}

fn read_stdin() -> Result<Vec<u8>, TemplateError> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| TemplateError::File { what: "standard input".to_owned(), reason: error.to_string() })?;
    Ok(bytes)
}

fn print(bytes: &[u8]) -> Result<(), TemplateError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| TemplateError::File { what: "standard output".to_owned(), reason: error.to_string() })
}
