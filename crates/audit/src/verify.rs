//! Whether files are an unbroken chain.

use crate::event::Event;
use crate::line::{Head, Line, hash};
use crate::stamp::Interval;

/// The first place where the chain is broken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct Broken {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

/// A place that the log itself names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// The file.
    pub file: String,
    /// The line that names it, from 1.
    pub line: usize,
    /// What it says.
    pub what: String,
}

/// An unbroken chain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// How many lines.
    pub lines: u64,
    /// The number of the first line, and the hash of the line before it; 1 and zeros where the log begins.
    pub first: Option<(u64, String)>,
    /// The last line.
    pub head: Head,
    /// Torn lines and lost records.
    pub named: Vec<Named>,
}

/// Verifies files in their order. [`Verifier::file`] takes one after the other.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    verified: Verified,
    expected: Option<Head>,
    met: bool,
}

impl Verifier {
    /// A verifier that also looks for this line, which somebody noted earlier.
    #[must_use]
    pub fn expecting(expected: Option<Head>) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Verifies the next file, and passes each of its lines on.
    ///
    /// # Errors
    /// The first line that is not what it was when it was written.
    pub fn file(
        &mut self,
        name: &str,
        bytes: &[u8],
        mut each: impl FnMut(Line),
    ) -> Result<(), Broken> {
        let broken = |line: usize, what: String| Broken { file: name.to_owned(), line, what };
        // Where the bytes begin that are no line, and which line that is.
        let mut torn: Option<(usize, usize, String)> = None;
        let (mut start, mut number) = (0, 0);
        while start < bytes.len() {
            number += 1;
            let end = bytes[start..].iter().position(|byte| *byte == b'\n').map(|at| start + at);
            let text = &bytes[start..end.unwrap_or(bytes.len())];
            // One that lacks nothing but its line feed is whole.
            let parsed = Line::parse(text).map_err(|error| match end {
                Some(_) => error.to_string(),
                None => format!("it is torn: {error}"),
            });
            match parsed {
                Err(what) => {
                    torn.get_or_insert((start, number, what));
                }
                Ok(line) => {
                    // What is not a line and is not named comes before what is wrong with this one.
                    let region = torn.take();
                    let names = match &line.event {
                        Event::Torn { bytes, sha256 } => Some((*bytes, sha256.as_str())),
                        _ => None,
                    };
                    match (&region, names) {
                        (Some((from, _, _)), Some((length, sum)))
                            if length == (start - from) as u64
                                && hash(&bytes[*from..start]) == sum => {}
                        (Some((_, at, what)), _) => return Err(broken(*at, what.clone())),
                        (None, Some(_)) => {
                            let what = "it names torn bytes before it, which are missing";
                            return Err(broken(number, what.to_owned()));
                        }
                        (None, None) => {}
                    }
                    self.follows(&line).map_err(|what| broken(number, what))?;
                    self.take(name, number, &line, hash(text));
                    each(line);
                }
            }
            start = end.map_or(bytes.len(), |end| end + 1);
        }
        match torn {
            // The next start of the daemon names it; until then nobody vouches for what it was.
            Some((_, at, what)) => Err(broken(at, what)),
            None => Ok(()),
        }
    }

    fn follows(&self, line: &Line) -> Result<(), String> {
        if self.verified.lines == 0 {
            return Ok(());
        }
        let Head { seq, hash } = &self.verified.head;
        if line.seq != seq + 1 {
            return Err(format!("its number is {} and follows {seq}: lines are missing", line.seq));
        }
        if line.prev != *hash {
            return Err(format!(
                "its prev is not the hash of line {seq}: that line was changed or replaced"
            ));
        }
        Ok(())
    }

    fn take(&mut self, file: &str, number: usize, line: &Line, hash: String) {
        let verified = &mut self.verified;
        if verified.first.is_none() {
            verified.first = Some((line.seq, line.prev.clone()));
        }
        verified.lines += 1;
        verified.head = Head { seq: line.seq, hash };
        self.met |= self.expected.as_ref() == Some(&verified.head);
        let what = match &line.event {
            Event::Torn { bytes, .. } => format!("{bytes} torn bytes before this line"),
            Event::Gap { lost, since, until, reason } => {
                let [from, to] = [since, until].map(|Interval([at, _])| crate::stamp::date(*at));
                format!("{lost} records from {from} to {to} are lost: {reason}")
            }
            _ => return,
        };
        verified.named.push(Named { file: file.to_owned(), line: number, what });
    }

    /// What is known when all files were verified.
    ///
    /// # Errors
    /// The line that was expected is not there.
    pub fn end(self) -> Result<Verified, String> {
        match self.expected {
            Some(Head { seq, .. }) if !self.met => Err(format!(
                "line {seq} with the expected hash is not in these files: they are not, or no longer, the log it was noted of"
            )),
            _ => Ok(self.verified),
        }
    }
}
