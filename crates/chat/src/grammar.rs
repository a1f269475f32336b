//! What an answer may be, as a grammar: calls in the format of the model, answers of a schema.
//!
//! Made of the request and of the data that also drives the reader of answers, so that what is generated under a grammar
//! is read back as complete calls of offered tools. What the enforcer does with it is in [`mesh_types::constraint`].
//!
//! | `tool_choice` | what is generated |
//! | --- | --- |
//! | `auto` | anything; from a call's marker on, a whole call |
//! | `none` | anything but the markers |
//! | `required`, a function, `allowed_tools` that require | perhaps thinking, then calls and nothing else |
//!
//! A `response_format` makes it JSON, after thinking; where tools may be called as well, either that or calls.
//!
//! Start with [`Demand::enforced`].

mod harmony;
mod lark;
mod nested;
mod python;
mod quoted;
mod tagged;
mod text;

use mesh_types::constraint::{After, Constraint, Start, Thinking};
use mesh_types::{ResponseFormat, Tool, ToolChoice};
use serde_json::json;

use crate::capability::Strategy;
use crate::format::written::{At, Piece, Pieces, Said, Written};
use crate::format::{Body, EMULATED, Format, PROSE, Part, Pattern, Syntax};
use crate::parse::marker;
use crate::schema::{self, Enforceable};
use crate::template::ChatTemplate;
use lark::{Lark, Sequence};

/// Most calls that one answer is let make.
const MAX_CALLS: usize = 32;

/// What a request demands of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// How the model calls tools.
    pub strategy: &'a Strategy,
    /// Its template, which says whether it thinks.
    pub template: &'a ChatTemplate,
    /// The prompt, whose end says whether it thinks already.
    pub prompt: &'a str,
    /// The tools of the request.
    pub tools: &'a [Tool],
    /// Which of them may and must be called.
    pub choice: &'a ToolChoice,
    /// Whether one answer may hold several calls.
    pub parallel: bool,
    /// The shape of its text.
    pub response: &'a ResponseFormat,
}

/// A demand that can be met.
#[derive(Clone, Debug, PartialEq)]
pub struct Enforced {
    /// What to enforce; `None`: the answer is free.
    pub constraint: Option<Constraint>,
    /// Paths in the request of what its schemas ask and is not enforced.
    pub relaxed: Vec<String>,
}

/// A schema that has to hold, and cannot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unenforceable {
    /// That of a strict tool.
    #[error("the strict schema of the function `{name}` asks for what cannot be enforced: {}", named(.path))]
    Arguments {
        /// Its place in the request's list.
        index: usize,
        /// Its name.
        name: String,
        /// The place in its schema; empty: all of it.
        path: String,
    },
    /// That of a strict response format.
    #[error("the strict schema of the response format `{name}` asks for what cannot be enforced: {}", named(.path))]
    Response {
        /// Its name.
        name: String,
        /// The place in the schema; empty: all of it.
        path: String,
    },
}

/// A place in a schema, in words.
fn named(path: &str) -> String {
    if path.is_empty() { "all of it".to_owned() } else { format!("`{path}`") }
}

impl Demand<'_> {
    /// The constraint that meets this demand. Blocks for as long as it computes: some milliseconds for many tools.
    ///
    /// # Errors
    /// A strict schema asks for more than can be enforced.
    pub fn enforced(&self) -> Result<Enforced, Unenforceable> {
        let format = self.format();
        let prompt = self.prompt.trim_end();
        let opened = openers(format).find(|opener| prompt.ends_with(opener));
        let mut maker = Maker { lark: Lark::new(), opened, path: String::new(), relaxed: Vec::new() };
        let tools: Vec<(usize, &Tool)> =
            self.tools.iter().enumerate().filter(|(_, tool)| self.choice.allows(&tool.name)).collect();
        let answer = self.answer(&mut maker, format)?;
        if tools.is_empty() {
            let constraint = match answer {
                Some(answer) => Some(self.held_from_the_start(format, maker.lark.finish(&answer))),
                None => self.without_calls(format),
            };
            return Ok(Enforced { constraint, relaxed: maker.relaxed });
        }
        let from_marker = !self.choice.forces() && answer.is_none();
        let calls = self.calls(&mut maker, format, &tools, from_marker)?;
        let constraint = match answer {
            _ if self.choice.forces() => {
                self.held_from_the_start(format, maker.lark.finish(&format!("BLANK? ({calls})")))
            }
            Some(answer) => {
                self.held_from_the_start(format, maker.lark.finish(&format!("{answer} | BLANK? ({calls})")))
            }
            None => self.held_from_a_marker(format, &tools, maker.lark.finish(&calls)),
        };
        Ok(Enforced { constraint: Some(constraint), relaxed: maker.relaxed })
    }

    fn format(&self) -> &'static Format {
        match self.strategy {
            Strategy::Native(format) => format,
            Strategy::Emulated(_) if self.tools.is_empty() => &PROSE,
            Strategy::Emulated(_) => &EMULATED,
        }
    }

    /// The rule of an answer that has a shape.
    fn answer(&self, maker: &mut Maker, format: &Format) -> Result<Option<String>, Unenforceable> {
        let json = match self.response {
            ResponseFormat::Text => return Ok(None),
            ResponseFormat::JsonObject => maker.lark.json(&json!({"type": "object"})),
            ResponseFormat::JsonSchema(response) => {
                let Enforceable { schema, relaxed } = schema::answer(&response.schema);
                if let (true, Some(path)) = (response.strict, relaxed.first()) {
                    return Err(Unenforceable::Response { name: response.name.clone(), path: path.clone() });
                }
                maker.path = "response_format.json_schema.schema".to_owned();
                relaxed.iter().for_each(|path| maker.relax(path));
                maker.lark.json(&schema)
            }
        };
        Ok(Some(match format.syntax {
            Syntax::Harmony => harmony::answer(&json),
            Syntax::Marked(_) => said(format.said(), &json),
        }))
    }

    /// The rule of the calls.
    fn calls(
        &self,
        maker: &mut Maker,
        format: &Format,
        tools: &[(usize, &Tool)],
        from_marker: bool,
    ) -> Result<String, Unenforceable> {
        let mut named = Vec::with_capacity(tools.len());
        for (index, tool) in tools {
            named.push((tool.name.clone(), maker.arguments(format, *index, tool)?));
        }
        if format.syntax == Syntax::Harmony {
            return Ok(harmony::call(maker, &named, from_marker));
        }
        let is_one = !self.parallel || matches!(self.choice, ToolChoice::Named(_));
        let mut options = Vec::new();
        let elsewhere = if from_marker { At::Start } else { At::Marker };
        for written in format.written().iter().filter(|written| written.at != elsewhere) {
            options.push(maker.all(written, &named, is_one));
            // Models leave out what stands around a list of calls, and readers do not mind.
            let opener = written.call.first();
            if from_marker && !written.before.is_empty() && openers(format).any(|marker| begins(opener, marker)) {
                options.push(maker.call(written.call, &named));
            }
        }
        Ok(lark::either(&options))
    }

    fn held_from_the_start(&self, format: &Format, grammar: String) -> Constraint {
        Constraint { thinking: self.thinking(format), ..Constraint::immediately(grammar) }
    }

    fn held_from_a_marker(&self, format: &Format, tools: &[(usize, &Tool)], grammar: String) -> Constraint {
        let (markers, forbid) = markers(format, tools);
        let is_one = !self.parallel || format.syntax == Syntax::Harmony;
        Constraint {
            begun: begun(self.prompt, markers.iter().chain(&forbid)),
            start: Start::AtMarker(markers),
            after: if is_one { After::End } else { After::Repeat },
            forbid,
            ..self.held_from_the_start(format, grammar)
        }
    }

    /// Tools that are shown and must not be called.
    fn without_calls(&self, format: &Format) -> Option<Constraint> {
        let tools: Vec<(usize, &Tool)> = self.tools.iter().enumerate().collect();
        if tools.is_empty() || *self.choice != ToolChoice::None {
            return None;
        }
        let (mut texts, others) = markers(format, &tools);
        texts.extend(others);
        texts.truncate(Constraint::MAX_TEXTS);
        (!texts.is_empty()).then(|| Constraint {
            thinking: self.thinking(format),
            begun: begun(self.prompt, &texts),
            ..Constraint::forbidding(texts)
        })
    }

    fn thinking(&self, format: &Format) -> Option<Thinking> {
        let end = self.prompt.trim_end();
        let opened = format.thinking_marks().into_iter().find(|(open, _)| end.ends_with(open));
        let (open, close) = opened.or_else(|| format.thinking_with(self.template))?;
        Some(Thinking { open: open.to_owned(), close: close.to_owned(), is_open: opened.is_some() })
    }
}

/// Where the calls of `format` begin, and texts that its reader takes for a call and no grammar begins with.
fn markers(format: &Format, tools: &[(usize, &Tool)]) -> (Vec<String>, Vec<String>) {
    let Syntax::Marked(marked) = &format.syntax else { return (vec![harmony::RECIPIENT.to_owned()], Vec::new()) };
    let named: Vec<&str> = openers(format).filter(|marker| opens_text_too(format, marker)).collect();
    let begins_here = |marker: &str| {
        format.written().iter().filter(|written| written.at != At::Start).any(|written| {
            let first = if written.before.is_empty() { written.call.first() } else { written.before.first() };
            begins(first, marker) || begins(written.call.first(), marker)
        })
    };
    let plain = openers(format).filter(|marker| !named.contains(marker));
    let (mut markers, forbid): (Vec<&str>, Vec<&str>) = plain.partition(|marker| begins_here(marker));
    // A marker that ends in another one is that one.
    let all = markers.clone();
    markers.retain(|marker| !all.iter().any(|other| other != marker && marker.ends_with(other)));
    let forbid = forbid.into_iter().filter(|text| !all.iter().any(|marker| marker.contains(text)));
    let forbid: Vec<String> = forbid.map(str::to_owned).collect();
    let mut markers: Vec<String> = markers.into_iter().map(str::to_owned).collect();
    if marked.bare {
        // Nothing opens a call but its name, which few other texts contain.
        let heads = tools
            .iter()
            .flat_map(|(_, tool)| ["{\"name\": \"", "{\"name\":\""].map(|head| format!("{head}{}\"", tool.name)));
        markers.extend(heads.take(Constraint::MAX_TEXTS - markers.len()));
    }
    if !named.is_empty() {
        let calls = format.written().iter().filter(|written| written.at != At::Start).map(|written| written.call);
        let heads = calls.flat_map(|call| tools.iter().map(|(_, tool)| head(call, &tool.name)));
        markers.extend(heads.take(Constraint::MAX_TEXTS - markers.len()));
    }
    (markers, forbid)
}

/// Whether `marker` opens what is said as well as calls, so that only a tool's name behind it tells them apart.
fn opens_text_too(format: &Format, marker: &str) -> bool {
    let first = |pattern: &Pattern| pattern.first().copied();
    format.silent.iter().filter_map(first).any(|part| matches!(part, Part::Text(text) if text.starts_with(marker)))
}

/// What stands before the arguments of a call of the tool `name`, without blanks.
fn head(call: Pieces, name: &str) -> String {
    let before = call.iter().take_while(|piece| **piece != Piece::Arguments);
    before
        .map(|piece| {
            if let Piece::Text(text) = piece {
                text
            } else if *piece == Piece::Name {
                name
            } else {
                ""
            }
        })
        .collect()
}

/// The longest beginning of one of `texts`, but not all of it, with which `prompt` ends.
fn begun<'a>(prompt: &str, texts: impl IntoIterator<Item = &'a String>) -> String {
    let held = texts.into_iter().map(|text| marker::held(prompt, [text.as_str()])).max().unwrap_or(0);
    prompt[prompt.len() - held..].to_owned()
}

/// The rule of an answer whose text is of the rule `json`.
fn said(around: Said, json: &str) -> String {
    let before: Vec<String> = around.before.iter().map(|text| lark::literal(text)).collect();
    let before = if before.is_empty() { String::new() } else { format!("({})?", before.join(" | ")) };
    let after = if around.after.is_empty() { String::new() } else { format!("({})?", lark::literal(around.after)) };
    format!("{before} BLANK? {json} {after}").trim().to_owned()
}

fn openers(format: &Format) -> impl Iterator<Item = &'static str> + use<> {
    let marked = match &format.syntax {
        Syntax::Marked(marked) => Some((marked.open, marked.open_head)),
        Syntax::Harmony => None,
    };
    marked.into_iter().flat_map(|(open, head)| open.iter().chain(head)).copied()
}

fn begins(piece: Option<&Piece>, marker: &str) -> bool {
    matches!(piece, Some(Piece::Text(text)) if text.starts_with(marker))
}

/// Makes one grammar.
#[derive(Debug)]
pub(crate) struct Maker {
    lark: Lark,
    /// What of a call the prompt has opened.
    opened: Option<&'static str>,
    /// The place of the schema at hand in the request.
    path: String,
    relaxed: Vec<String>,
}

impl Maker {
    /// Reports a place in the schema at hand.
    fn relax(&mut self, path: &str) {
        let path = if path.is_empty() { self.path.clone() } else { format!("{}.{path}", self.path) };
        if !self.relaxed.contains(&path) {
            self.relaxed.push(path);
        }
    }

    /// The rule of a tool's arguments.
    fn arguments(&mut self, format: &Format, index: usize, tool: &Tool) -> Result<String, Unenforceable> {
        self.path = format!("tools[{index}].function.parameters");
        let before = self.relaxed.len();
        let arguments = schema::arguments(tool.parameters.as_ref());
        arguments.relaxed.iter().for_each(|path| self.relax(path));
        let body = match &format.syntax {
            Syntax::Harmony => None,
            Syntax::Marked(marked) => Some(&marked.body),
        };
        let rule = match body {
            Some(Body::Tagged(tagged)) if !tagged.nested.is_empty() => {
                nested::arguments(self, tagged, tool, &arguments)
            }
            Some(Body::Tagged(tagged)) => tagged::arguments(self, tagged, tool, &arguments),
            Some(Body::Quoted { quote, .. }) => quoted::arguments(self, quote, &arguments.schema),
            Some(Body::Python) => python::arguments(self, &arguments.schema),
            _ => self.lark.json(&arguments.schema),
        };
        match self.relaxed.get(before) {
            Some(path) if tool.is_strict() => {
                let path = path[self.path.len()..].trim_start_matches('.').to_owned();
                Err(Unenforceable::Arguments { index, name: tool.name.clone(), path })
            }
            _ => Ok(rule),
        }
    }

    /// All calls, with what stands around them.
    fn all(&mut self, written: &Written, tools: &[(String, String)], is_one: bool) -> String {
        let call = self.call(written.call, tools);
        let mut sequence = Sequence::default();
        self.pieces(&mut sequence, written.before, "", "");
        sequence.rule(&call);
        if let (false, Some(between)) = (is_one, written.between) {
            let mut more = Sequence::default();
            self.pieces(&mut more, between, "", "");
            more.rule(&call);
            sequence.rule(format!("({}){{0,{}}}", more.finish(), MAX_CALLS - 1));
        }
        self.pieces(&mut sequence, written.after, "", "");
        sequence.finish()
    }

    /// A rule for a call of one of `tools`, given as name and rule of the arguments.
    fn call(&mut self, call: Pieces, tools: &[(String, String)]) -> String {
        let calls: Vec<String> = tools
            .iter()
            .map(|(name, arguments)| {
                let mut sequence = Sequence::default();
                self.pieces(&mut sequence, call, name, arguments);
                sequence.finish()
            })
            .collect();
        self.lark.rule(&calls.join(" | "))
    }

    fn pieces(&self, sequence: &mut Sequence, pieces: Pieces, name: &str, arguments: &str) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => sequence.text(text),
                Piece::Maybe(text) => sequence.rule(format!("({})?", lark::literal(text))),
                Piece::Opened(text) if self.opened == Some(*text) => {}
                Piece::Opened(text) => sequence.text(text),
                Piece::Blank => sequence.blank(),
                Piece::Name => sequence.text(name),
                Piece::Arguments if arguments.is_empty() => {}
                Piece::Arguments => sequence.rule(arguments),
                Piece::Id => sequence.rule("/[a-zA-Z0-9]{9}/"),
                Piece::Number => sequence.rule("/[0-9]{1,3}/"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
