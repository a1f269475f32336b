//! What is known of where output goes: whether it is a terminal, how large, and whether it may be coloured.

use std::env;
use std::io::{self, IsTerminal as _};

use anstyle::{AnsiColor, Style};

/// Puts the cursor at the top of the screen.
const TOP: &str = "\x1b[H";
/// Empties the rest of a line.
const END_OF_LINE: &str = "\x1b[K";
/// Empties the rest of the screen.
const END: &str = "\x1b[J";

/// Where output goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Screen {
    /// Columns and rows of a terminal.
    size: Option<(usize, usize)>,
    terminal: bool,
    colours: bool,
}

/// What a text means, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// On its way, or worth a look.
    Unsure,
    /// Not as it should be.
    Bad,
    /// What matters less.
    Faint,
    /// A heading.
    Head,
}

impl Screen {
    /// Standard output. Coloured on a terminal that can do it, unless `NO_COLOR` is set.
    pub fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let size = terminal.then(terminal_size::terminal_size).flatten();
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let colours = terminal && !is_set("NO_COLOR") && env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self { size: size.map(|(width, height)| (width.0.into(), height.0.into())), terminal, colours }
    }

    /// A screen of so many columns without colours: for tests.
    pub fn of_width(columns: usize) -> Self {
        Self { size: Some((columns, usize::MAX)), terminal: false, colours: false }
    }

    /// Whether a person looks at it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Columns; `None`: no limit.
    pub fn width(&self) -> Option<usize> {
        self.size.map(|(width, _)| width)
    }

    /// `text` in the colour of its meaning.
    pub fn paint(&self, text: &str, tone: Tone) -> String {
        let style = match tone {
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Unsure => AnsiColor::Yellow.on_default(),
            Tone::Bad => AnsiColor::Red.on_default(),
            Tone::Faint => Style::new().dimmed(),
            Tone::Head => Style::new().bold(),
            Tone::Plain => Style::new(),
        };
        match (self.colours, tone) {
            (false, _) | (_, Tone::Plain) => text.to_owned(),
            _ => format!("{style}{text}{style:#}"),
        }
    }

    /// `text` in place of all that stands on a terminal's screen. Lines that do not fit are counted.
    pub fn replaced(&self, text: &str) -> String {
        if !self.terminal {
            return text.to_owned();
        }
        let lines: Vec<&str> = text.lines().collect();
        let room = self.size.map_or(usize::MAX, |(_, rows)| rows.saturating_sub(1));
        let fit = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
        let mut out = TOP.to_owned();
        for line in &lines[..fit] {
            out += &format!("{line}{END_OF_LINE}\n");
        }
        if fit < lines.len() {
            out += &format!("({} more lines){END_OF_LINE}\n", lines.len() - fit);
        }
        out + END
    }
}
