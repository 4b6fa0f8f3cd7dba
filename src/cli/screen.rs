//! What a person sees while a thread works: the text as it comes, tool lines, a spinner while there is nothing else.
//!
//! Text goes to standard output only where that is a terminal; scripts get the committed answer in one piece. The
//! rest goes to standard error. Where both are the same terminal they take turns: the spinner is cleared before
//! anything is written, and a line of text is ended before a line of another kind.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use dormouse::slice::DisplayEvent;
use indicatif::{ProgressBar, ProgressStyle};

/// Characters of arguments and results in a tool line.
const SHOWN_CHARS: usize = 160;
/// Between two columns.
const GAP: &str = "  ";
/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(100);

/// How something stands out, where colours are wanted.
#[derive(Clone, Copy)]
pub enum Tone {
    /// Of less weight.
    Dim,
    /// Needs attention.
    Warning,
    /// A heading.
    Bold,
}

/// `text` in a tone, if `colours` are wanted.
pub fn toned(text: &str, tone: Tone, colours: Colours) -> String {
    let code = match (colours, tone) {
        (Colours::No, _) => return text.to_owned(),
        (Colours::Yes, Tone::Dim) => 2,
        (Colours::Yes, Tone::Warning) => 33,
        (Colours::Yes, Tone::Bold) => 1,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// Rows under a bold head, each column as wide as it needs.
pub fn columns<const N: usize>(head: &[&str; N], rows: &[[String; N]], colours: Colours) -> String {
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([head[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    let mut text = toned(&line(&head.map(str::to_owned)), Tone::Bold, colours) + "\n";
    for row in rows {
        text.push_str(&line(row));
        text.push('\n');
    }
    text
}

/// Whether colours are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// A terminal, and nobody objects.
    Yes,
    /// A file, a pipe, or `NO_COLOR`.
    No,
}

impl Colours {
    /// For a stream.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let objected = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if stream.is_terminal() && !objected { Self::Yes } else { Self::No }
    }
}

/// The two streams of this process.
pub struct Screen {
    out_is_terminal: bool,
    err_is_terminal: bool,
    colours: Colours,
    spinner: Option<ProgressBar>,
    /// What of the current response was not shown, where standard output is no terminal.
    held: String,
    cursor: Cursor,
}

/// What is on the current line of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    /// Nothing.
    LineStart,
    /// Streamed text, on standard output.
    InText,
    /// The prompt, on standard error.
    AtPrompt,
}

impl Screen {
    /// The screen of this process.
    pub fn new() -> Self {
        Self {
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            colours: Colours::of(&io::stderr()),
            spinner: None,
            held: String::new(),
            cursor: Cursor::LineStart,
        }
    }

    /// Shows an event. Notices are the caller's: only it knows whether they are the end.
    pub fn show(&mut self, event: &DisplayEvent) -> io::Result<()> {
        match event {
            DisplayEvent::Asking { model } => {
                self.held.clear();
                self.spin(format!("{model} is thinking"));
                Ok(())
            }
            DisplayEvent::Text(text) => self.text(text),
            // Consent is shown from the store, also to who attaches later.
            DisplayEvent::Reasoning(_) | DisplayEvent::Notice(_) | DisplayEvent::Consent { .. } => Ok(()),
            DisplayEvent::Choice { text } => self.warn(text),
            DisplayEvent::Discarded { why } => {
                self.held.clear();
                self.line(&format!("✗ that answer broke off and does not count: {why}"), Tone::Warning)
            }
            DisplayEvent::Call { name, arguments } => {
                if !self.held.is_empty() {
                    let said = std::mem::take(&mut self.held);
                    self.line(&said, Tone::Dim)?;
                }
                self.line(&format!("→ {name} {}", short(arguments)), Tone::Dim)
            }
            DisplayEvent::Result { name, text } => self.line(&format!("← {name} {}", short(text)), Tone::Dim),
            DisplayEvent::Done => self.settle(),
            DisplayEvent::Sleeping { calls: 1 } => {
                self.spin("waiting for a tool".to_owned());
                Ok(())
            }
            DisplayEvent::Sleeping { calls } => {
                self.spin(format!("waiting for {calls} tools"));
                Ok(())
            }
            DisplayEvent::Retrying { why } => self.line(&format!("… trying again: {why}"), Tone::Warning),
        }
    }

    /// A line of its own on standard error.
    pub fn line(&mut self, text: &str, tone: Tone) -> io::Result<()> {
        self.settle()?;
        writeln!(io::stderr(), "{}", toned(&harmless(text), tone, self.colours))
    }

    /// Something that needs attention.
    pub fn warn(&mut self, text: &str) -> io::Result<()> {
        self.line(&format!("! {text}"), Tone::Warning)
    }

    /// Where the person has to go before a tool can.
    pub fn consent(&mut self, url: &str) -> io::Result<()> {
        self.warn(&format!("please consent here, then the tool goes on by itself: {url}"))
    }

    /// A whole answer on standard output, unless it was streamed there.
    pub fn answer(&mut self, text: &str) -> io::Result<()> {
        self.settle()?;
        if !self.out_is_terminal {
            let mut out = io::stdout();
            writeln!(out, "{text}")?;
            out.flush()?;
        }
        Ok(())
    }

    /// Asks the person for input.
    pub fn prompt(&mut self) -> io::Result<()> {
        self.settle()?;
        let mut err = io::stderr();
        write!(err, "{} ", toned(">", Tone::Bold, self.colours))?;
        err.flush()?;
        self.cursor = Cursor::AtPrompt;
        Ok(())
    }

    /// The person has ended the line of the prompt.
    pub fn prompted(&mut self) {
        self.cursor = Cursor::LineStart;
    }

    /// The spinner is gone and the cursor at the start of a line.
    pub fn settle(&mut self) -> io::Result<()> {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
        self.end_line()
    }

    fn end_line(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.cursor, Cursor::LineStart) {
            Cursor::LineStart => Ok(()),
            Cursor::InText => writeln!(io::stdout()),
            Cursor::AtPrompt => writeln!(io::stderr()),
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if !self.out_is_terminal {
            self.held.push_str(text);
            let count = self.held.chars().count();
            self.spin(format!("answering, {count} characters"));
            return Ok(());
        }
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
        if self.cursor == Cursor::AtPrompt {
            self.end_line()?;
        }
        let mut out = io::stdout();
        out.write_all(harmless(text).as_bytes())?;
        out.flush()?;
        if !text.is_empty() {
            self.cursor = if text.ends_with('\n') { Cursor::LineStart } else { Cursor::InText };
        }
        Ok(())
    }

    fn spin(&mut self, message: String) {
        if !self.err_is_terminal {
            return;
        }
        // What is on the line stays readable; a terminal that is gone has no lines.
        let _ = self.end_line();
        let spinner = self.spinner.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let spinner = ProgressBar::new_spinner().with_style(style);
            spinner.enable_steady_tick(TICK);
            spinner
        });
        spinner.set_message(message);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no tidy line.
        let _ = self.settle();
    }
}

/// Text without control characters, for a terminal: what a model or a tool says must not move the cursor, retitle
/// the window or write into the clipboard.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(is_harmful) {
        true => Cow::Owned(text.replace(is_harmful, "\u{FFFD}")),
        false => Cow::Borrowed(text),
    }
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = line.chars().take(SHOWN_CHARS).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_says_cannot_command_the_terminal() {
        assert_eq!(
            harmless("a\u{1b}]52;c;eA==\u{7}b\u{9b}2Jc\r"),
            "a\u{FFFD}]52;c;eA==\u{FFFD}b\u{FFFD}2Jc\u{FFFD}"
        );
        assert!(matches!(harmless("zwei\n\tZeilen – é 😀"), Cow::Borrowed(_)));
    }
}
