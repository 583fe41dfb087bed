//! A trace's two files from disk.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::parse::{Row, TraceError, parse_rows, parse_truth};
use super::truth::Truth;

/// Both files of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The file's name without `.csv` and `.gz`.
    pub name: String,
    /// The exchanges, in order.
    pub rows: Vec<Row>,
    /// The truth, if there is a file with it.
    pub truth: Option<Truth>,
}

/// Why a trace could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file starts like gzip but is not valid gzip.
    #[error("{} is not whole gzip; copy it again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The trace is implausibly long: a counter value is wrong, or the counter is not in
    /// nanoseconds.
    #[error(
        "{} spans {days} days of its counter, more than {LONGEST_DAYS}; check the first and the last row's counter columns",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length in days.
        days: u64,
    },
    /// The file's content is wrong.
    #[error("{}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TraceError,
    },
}

/// The first bytes of a gzip member, RFC 1952 section 2.3.1.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Limits a trace's length, because a replay reads the clock at every second of it.
const LONGEST_DAYS: u64 = 400;
/// Maximum size of a compressed file's content in bytes: 400 days of exchanges every second.
const LARGEST: u64 = 4 << 30;

/// The content, if it is compressed; otherwise the bytes themselves. The name does not matter.
fn decompressed(bytes: &[u8]) -> io::Result<Cow<'_, [u8]>> {
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes.into());
    }
    let mut inside = Vec::new();
    MultiGzDecoder::new(bytes).take(LARGEST).read_to_end(&mut inside)?;
    if inside.len() as u64 == LARGEST {
        return Err(io::Error::other("more than 4 GiB inside"));
    }
    Ok(inside.into())
}

/// `a_lan_s1.csv.gz` without its extensions.
fn stem(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".gz").unwrap_or(name);
    Some(name.strip_suffix(".csv").unwrap_or(name))
}

/// The conventional path of a trace's truth: `NAME.truth.csv.gz` or `NAME.truth.csv` next to it,
/// whichever exists; the trace's own extension is tried first.
#[must_use]
pub fn truth_path(exchanges: &Path) -> Option<PathBuf> {
    let stem = stem(exchanges)?;
    let mut endings = [".truth.csv", ".truth.csv.gz"];
    if exchanges.extension().is_some_and(|ending| ending == "gz") {
        endings.reverse();
    }
    let paths = endings.map(|ending| exchanges.with_file_name(format!("{stem}{ending}")));
    paths.into_iter().find(|path| path.is_file())
}

/// Reads a file, plain or gzip, and parses its content.
fn read<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, TraceError>,
) -> Result<T, LoadError> {
    let path = path.to_owned();
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(LoadError::Read { path, source }),
    };
    let inside = match decompressed(&bytes) {
        Ok(inside) => inside,
        Err(source) => return Err(LoadError::Gzip { path, source }),
    };
    parse(&inside).map_err(|source| LoadError::Content { path, source })
}

impl Trace {
    /// Reads `exchanges`, and `truth` if there is one.
    ///
    /// # Errors
    /// When a file cannot be read or is not a trace; the error names the file and what to do.
    pub fn load(exchanges: &Path, truth: Option<&Path>) -> Result<Self, LoadError> {
        let rows = read(exchanges, parse_rows)?;
        let counters = rows.iter().map(|row| row.exchange.tf);
        let span = counters.clone().max().unwrap_or(0) - counters.min().unwrap_or(0);
        let days = span / (86_400 * 1_000_000_000);
        if days > LONGEST_DAYS {
            return Err(LoadError::TooLong { path: exchanges.to_owned(), days });
        }
        let place = |bytes: &[u8]| {
            let (first, counters) = parse_truth(bytes)?;
            Truth::new(first, counters, &rows)
        };
        let truth = truth.map(|path| read(path, place)).transpose()?;
        let name = stem(exchanges).unwrap_or("trace").to_owned();
        Ok(Self { name, rows, truth })
    }
}
