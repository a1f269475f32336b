//! Tables for terminals: columns as wide as their widest cell, two spaces apart, no frames. Where that is too wide,
//! columns that can be done without are left out, and sentences are broken over several lines.

use unicode_width::UnicodeWidthStr as _;

use super::screen::{Screen, Tone};

/// Spaces between two columns.
const GAP: usize = 2;
/// A column of sentences is made no narrower than this.
const NARROWEST: usize = 24;

/// A table in the making.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    fit: Fit,
    right: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Whole,
    Wrap,
    /// Left out where there is no room, those with higher numbers first.
    Optional(u8),
}

/// A cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Column {
    /// One that is always shown in full.
    pub fn new(head: &'static str) -> Self {
        Self { head, fit: Fit::Whole, right: false }
    }

    /// One of numbers: to the right.
    pub fn number(head: &'static str) -> Self {
        Self { right: true, ..Self::new(head) }
    }

    /// One of sentences or lists, which may go over several lines.
    pub fn sentence(head: &'static str) -> Self {
        Self { fit: Fit::Wrap, ..Self::new(head) }
    }

    /// It may be left out where there is no room; of several, the one with the highest `rank` goes first.
    #[must_use]
    pub fn optional(self, rank: u8) -> Self {
        Self { fit: Fit::Optional(rank), ..self }
    }
}

impl Cell {
    /// A text with a meaning.
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

impl Table {
    /// An empty table.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row: a cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into());
    }

    /// Its lines, the heads first unless all are empty, without trailing spaces.
    pub fn render(&self, screen: &Screen) -> String {
        let layout = self.layout(screen.width().unwrap_or(usize::MAX));
        let head: Vec<Cell> = self.columns.iter().map(|column| Cell::new(column.head, Tone::Head)).collect();
        let heads = self.columns.iter().any(|column| !column.head.is_empty()).then_some(&head);
        let mut out = String::new();
        for row in heads.into_iter().chain(&self.rows) {
            out += &self.lines(row, &layout, screen);
        }
        let hidden: Vec<_> =
            (0..self.columns.len()).filter(|at| layout[*at].is_none()).map(|at| self.columns[at].head).collect();
        if !hidden.is_empty() {
            let note = format!("(no room for {}; --json has all)", hidden.join(", "));
            for line in wrap(&note, screen.width().unwrap_or(usize::MAX)) {
                out += &format!("{}\n", screen.paint(&line, Tone::Faint));
            }
        }
        out
    }

    /// The width of each column; `None`: it is left out.
    fn layout(&self, room: usize) -> Vec<Option<usize>> {
        let widest = |at: usize| self.rows.iter().map(|row| row[at].text.width()).max().unwrap_or(0);
        let natural: Vec<usize> =
            self.columns.iter().enumerate().map(|(at, column)| column.head.width().max(widest(at))).collect();
        let least = |at: usize| match self.columns[at].fit {
            Fit::Wrap => natural[at].min(NARROWEST),
            _ => natural[at],
        };
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let total = |shown: &[usize], width: &dyn Fn(usize) -> usize| {
            shown.iter().map(|at| width(*at)).sum::<usize>() + GAP * shown.len().saturating_sub(1)
        };
        while total(&shown, &least) > room {
            let rank = |at: &usize| match self.columns[*at].fit {
                Fit::Optional(rank) => Some((rank, *at)),
                _ => None,
            };
            let Some((_, last)) = shown.iter().filter_map(rank).max() else { break };
            shown.retain(|at| *at != last);
        }
        // What is left of the room goes to the sentences, from the left.
        let mut spare = room.saturating_sub(total(&shown, &least));
        let mut layout = vec![None; self.columns.len()];
        for at in shown {
            let more = spare.min(natural[at] - least(at));
            spare -= more;
            layout[at] = Some(least(at) + more);
        }
        layout
    }

    fn lines(&self, row: &[Cell], layout: &[Option<usize>], screen: &Screen) -> String {
        let shown: Vec<(usize, usize)> =
            layout.iter().enumerate().filter_map(|(at, width)| Some((at, (*width)?))).collect();
        let wrapped: Vec<Vec<String>> = shown.iter().map(|(at, width)| wrap(&row[*at].text, *width)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        let mut out = String::new();
        for line in 0..height {
            // Spaces are written before the text that needs them, so that no line ends in some.
            let (mut owed, mut text) = (0, String::new());
            for ((at, width), cell) in shown.iter().zip(&wrapped) {
                let part = cell.get(line).map_or("", String::as_str);
                let pad = width.saturating_sub(part.width());
                let (before, after) = if self.columns[*at].right { (pad, 0) } else { (0, pad) };
                if !part.is_empty() {
                    text += &" ".repeat(owed + before);
                    text += &screen.paint(part, row[*at].tone);
                    owed = 0;
                }
                owed += GAP + if part.is_empty() { *width } else { after };
            }
            out += &text;
            out.push('\n');
        }
        out
    }
}

/// `text` in lines of at most `width` columns, broken at spaces where there are some.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word.to_owned();
        while let Some(line) = lines.last_mut() {
            let used = line.width() + usize::from(!line.is_empty());
            if used + word.width() <= width || width == 0 {
                if !line.is_empty() {
                    line.push(' ');
                }
                *line += &word;
                break;
            }
            if line.is_empty() {
                // A word wider than the column, as a path: broken where the column ends.
                let fits = word
                    .char_indices()
                    .map(|(at, c)| at + c.len_utf8())
                    .take_while(|end| word[..*end].width() <= width);
                let cut = fits.last().or_else(|| word.chars().next().map(char::len_utf8)).unwrap_or(word.len());
                let rest = word.split_off(cut);
                *line += &word;
                if rest.is_empty() {
                    break;
                }
                word = rest;
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = [
            Column::new("NAME"),
            Column::number("N").optional(1),
            Column::new("ID").optional(2),
            Column::sentence("WHY"),
        ];
        let mut table = Table::new(columns);
        table.row(["alpha".into(), "1".into(), "abcdef".into(), "it has room for all of the layers".into()]);
        table.row(["b".into(), "22".into(), "".into(), "".into()]);
        table
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(
            table().render(&Screen::default()),
            "NAME    N  ID      WHY\n\
             alpha   1  abcdef  it has room for all of the layers\n\
             b      22\n"
        );
    }

    #[test]
    fn a_narrow_screen_gets_broken_sentences_then_fewer_columns() {
        assert_eq!(
            table().render(&Screen::of_width(46)),
            "NAME    N  ID      WHY\n\
             alpha   1  abcdef  it has room for all of the\n\
             \u{20}                  layers\n\
             b      22\n"
        );
        let narrow = table().render(&Screen::of_width(38));
        assert!(
            narrow.starts_with("NAME    N  WHY\n") && narrow.contains("(no room for ID; --json has all)"),
            "{narrow}"
        );
        for width in [31, 38, 46, 60] {
            let text = table().render(&Screen::of_width(width));
            assert!(text.lines().all(|line| line.width() <= width && !line.ends_with(' ')), "{width}:\n{text}");
        }
    }

    #[test]
    fn wide_letters_count_twice_and_long_words_are_cut() {
        let mut table = Table::new([Column::new("NAME"), Column::new("X")]);
        table.row(["日本".into(), "1".into()]);
        table.row(["abcd".into(), "2".into()]);
        assert_eq!(table.render(&Screen::default()), "NAME  X\n日本  1\nabcd  2\n");
        assert_eq!(wrap("/a/long/path and", 6), ["/a/lon", "g/path", "and"]);
        assert_eq!(wrap("日本語", 5), ["日本", "語"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
