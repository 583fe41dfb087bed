//! Parses bytes into rows, without file access.

use timevisor_estimate::Exchange;
use timevisor_time::{Duration, Instant, Tai};

/// One exchange and, where the trace knows it, the true time at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// What a client knows.
    pub exchange: Exchange,
    /// True time when `ta` and `tf` were read.
    pub truth: Option<[Instant<Tai>; 2]>,
}

/// What is wrong with a trace, where, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// The header lacks a column.
    #[error("line 1: column {column} is missing; the header of {file} is `{expected}`")]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// The kind of file, one of two.
        file: &'static str,
        /// The whole header.
        expected: String,
    },
    /// The header has an unknown column.
    #[error("line 1: column `{column}` is unknown; remove it, or name it as in `{expected}`")]
    UnknownColumn {
        /// The column.
        column: String,
        /// The whole header.
        expected: String,
    },
    /// A line does not have as many fields as the header.
    #[error("line {line}: {found} fields where the header has {expected}; is the file cut off?")]
    Fields {
        /// Counted from 1.
        line: usize,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A field's value is not valid for its column.
    #[error("line {line}, column {column}: `{text}` {problem}")]
    Field {
        /// Counted from 1.
        line: usize,
        /// The column's name.
        column: &'static str,
        /// The text of the field.
        text: String,
        /// What would be right.
        problem: &'static str,
    },
    /// The line is not valid text.
    #[error("line {line} is not UTF-8 text; a compressed file must be gzip")]
    NotText {
        /// Counted from 1.
        line: usize,
    },
    /// No rows.
    #[error("there are no rows after the header")]
    Empty,
    /// The seconds of the truth are not successive.
    #[error("line {line}: second {found} follows second {before}; every whole second needs a line")]
    Gap {
        /// Counted from 1.
        line: usize,
        /// The second of this line.
        found: i64,
        /// The second of the line before.
        before: i64,
    },
    /// Without true times in the exchanges, it is unknown which second is second 0 of the truth.
    #[error(
        "the exchanges carry no true times, so the truth's seconds cannot be placed; add the columns \
         true_time_ns_at_ta,true_time_ns_at_tf, or replay without a truth file"
    )]
    Unplaced,
    /// Exchanges and truth disagree.
    #[error(
        "row {row}: the exchange's own true time is {nanos} ns away from the truth file; is the truth file that of \
         another trace?"
    )]
    Mismatch {
        /// The exchange, counted from 1.
        row: usize,
        /// The difference.
        nanos: i64,
    },
}

const TA: &str = "ta_counter_ns";
const TB: &str = "tb_ns";
const TE: &str = "te_ns";
const TF: &str = "tf_counter_ns";
const TRUE_TA: &str = "true_time_ns_at_ta";
const TRUE_TF: &str = "true_time_ns_at_tf";
const ERROR: &str = "error_ns";
const SECOND: &str = "t_s";
const DIFFERENCE: &str = "counter_minus_true_ns";

/// A file format: its required and optional columns.
struct Format {
    file: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
}

const EXCHANGES: Format = Format {
    file: "an exchange trace",
    required: &[TA, TB, TE, TF],
    optional: &[TRUE_TA, TRUE_TF, ERROR],
};
const TRUTH: Format =
    Format { file: "a truth file", required: &[SECOND, DIFFERENCE], optional: &[] };

impl Format {
    fn header(&self) -> String {
        let optional: String = self.optional.iter().map(|column| format!("[,{column}]")).collect();
        self.required.join(",") + &optional
    }

    /// The position of each column.
    fn columns(&self, header: &str) -> Result<Vec<&'static str>, TraceError> {
        let known = || self.required.iter().chain(self.optional);
        let columns: Vec<&str> = header.split(',').map(str::trim).collect();
        if let Some(missing) = self.required.iter().find(|column| !columns.contains(*column)) {
            let (file, expected) = (self.file, self.header());
            return Err(TraceError::MissingColumn { column: missing, file, expected });
        }
        let place = |column: &&str| {
            known().find(|name| *name == column).copied().ok_or_else(|| TraceError::UnknownColumn {
                column: (*column).to_owned(),
                expected: self.header(),
            })
        };
        columns.iter().map(place).collect()
    }
}

/// One line's fields by column name.
struct Line<'a> {
    number: usize,
    columns: &'a [&'static str],
    fields: Vec<&'a str>,
}

impl Line<'_> {
    fn text(&self, column: &'static str) -> Option<&str> {
        let at = self.columns.iter().position(|name| *name == column)?;
        self.fields.get(at).copied()
    }

    fn wrong(&self, column: &'static str, problem: &'static str) -> TraceError {
        let text = self.text(column).unwrap_or("").to_owned();
        TraceError::Field { line: self.number, column, text, problem }
    }

    fn optional(&self, column: &'static str) -> Result<Option<i64>, TraceError> {
        let Some(text) = self.text(column) else { return Ok(None) };
        let parsed = text.parse().map(Some);
        parsed.map_err(|_| self.wrong(column, "is not a whole number of at most 64 bits"))
    }

    fn integer(&self, column: &'static str) -> Result<i64, TraceError> {
        self.optional(column)?.ok_or_else(|| self.wrong(column, "is missing"))
    }

    fn counter(&self, column: &'static str) -> Result<u64, TraceError> {
        let text = self.text(column).unwrap_or("");
        text.parse().map_err(|_| self.wrong(column, "is not a counter value from 0 to 2^64 - 1"))
    }

    fn instant(&self, column: &'static str) -> Result<Instant<Tai>, TraceError> {
        Ok(Instant::from_unix_nanos(i128::from(self.integer(column)?)))
    }
}

fn row(line: &Line) -> Result<Row, TraceError> {
    let error = line.optional(ERROR)?.unwrap_or(0);
    if error < 0 {
        return Err(line.wrong(ERROR, "is negative; a reference's error is 0 or more"));
    }
    let exchange = Exchange {
        ta: line.counter(TA)?,
        tb: line.instant(TB)?,
        te: line.instant(TE)?,
        tf: line.counter(TF)?,
        error: Duration::from_nanos(error),
    };
    let both = line.text(TRUE_TA).is_some() && line.text(TRUE_TF).is_some();
    let truth = if both { Some([line.instant(TRUE_TA)?, line.instant(TRUE_TF)?]) } else { None };
    Ok(Row { exchange, truth })
}

/// Calls `each` with every line after the header.
fn lines<T>(
    bytes: &[u8],
    format: &Format,
    mut each: impl FnMut(&Line) -> Result<T, TraceError>,
) -> Result<Vec<T>, TraceError> {
    let text = |line: &[u8], number: usize| match std::str::from_utf8(line) {
        Ok(text) => Ok(text.trim_end_matches('\r').to_owned()),
        Err(_) => Err(TraceError::NotText { line: number }),
    };
    let mut rest = bytes.split(|byte| *byte == b'\n').enumerate();
    let header = rest.next().map(|(_, line)| text(line, 1)).transpose()?.unwrap_or_default();
    let columns = format.columns(&header)?;
    let mut rows = Vec::new();
    for (index, line) in rest {
        let number = index + 1;
        let line = text(line, number)?;
        if line.is_empty() {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != columns.len() {
            let (found, expected) = (fields.len(), columns.len());
            return Err(TraceError::Fields { line: number, found, expected });
        }
        rows.push(each(&Line { number, columns: &columns, fields })?);
    }
    if rows.is_empty() { Err(TraceError::Empty) } else { Ok(rows) }
}

/// The exchanges of `NAME.csv`, in the file's order.
///
/// Columns, in any order: `ta_counter_ns,tb_ns,te_ns,tf_counter_ns`, and if known
/// `true_time_ns_at_ta,true_time_ns_at_tf` and the reference's own `error_ns` (0 if absent).
/// Exchanges that no clock would use are ordinary rows; discarding them is up to the clock.
///
/// # Errors
/// The first line that does not have this format.
pub fn parse_rows(bytes: &[u8]) -> Result<Vec<Row>, TraceError> {
    lines(bytes, &EXCHANGES, row)
}

/// The lines of `NAME.truth.csv`: the first second, and the counter value at it and at every
/// following one.
///
/// # Errors
/// The first line that is not `t_s,counter_minus_true_ns`, or does not belong to the second after
/// the previous line's.
pub fn parse_truth(bytes: &[u8]) -> Result<(i64, Vec<u64>), TraceError> {
    let mut before: Option<(i64, u64)> = None;
    let rows = lines(bytes, &TRUTH, |line| {
        let (second, difference) = (line.integer(SECOND)?, line.integer(DIFFERENCE)?);
        let counter = i128::from(second) * 1_000_000_000 + i128::from(difference);
        let counter = u64::try_from(counter)
            .map_err(|_| line.wrong(DIFFERENCE, "makes the counter negative"))?;
        match before.replace((second, counter)) {
            Some((before, _)) if before + 1 != second => {
                Err(TraceError::Gap { line: line.number, found: second, before })
            }
            Some((_, before)) if before >= counter => {
                Err(line.wrong(DIFFERENCE, "makes the counter stand still or go back"))
            }
            _ => Ok((second, counter)),
        }
    })?;
    let first = rows.first().map_or(0, |(second, _)| *second);
    Ok((first, rows.into_iter().map(|(_, counter)| counter).collect()))
}
