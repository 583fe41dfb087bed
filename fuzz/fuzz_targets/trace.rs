//! Recorded traces: rows and truth come back from their own text, a compressed file means the same
//! as a plain one, and hostile rows do not break a replay.
#![no_main]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::read::GzEncoder;
use libfuzzer_sys::fuzz_target;
use timevisor_simulation::trace::{
    LoadError, Method, ReplayOptions, Row, Score, Trace, Truth, parse_rows, parse_truth, replay,
};
use timevisor_time::Duration;

/// Replays are bounded in rows and in counter seconds: without a truth there is one reading per
/// second.
const MOST_ROWS: usize = 64;
const MOST_SECONDS: u64 = 10_000;

fuzz_target!(|data: &[u8]| {
    let [how, content @ ..] = data else { return };
    match how % 8 {
        0..=2 => check_rows(content),
        3 => {
            if let Ok(rows) = parse_rows(content) {
                run(rows, None);
            }
        }
        4 => check_truth(content),
        5 => check_file(content),
        _ => {
            let (exchanges, truth) = content.split_at(content.len() / 2);
            let rows = parse_rows(exchanges);
            if let (Ok(rows), Ok((first, counters))) = (rows, parse_truth(truth)) {
                check_placed(rows, first, counters);
            }
        }
    }
});

fn check_rows(bytes: &[u8]) {
    let rows = match parse_rows(bytes) {
        Ok(rows) => rows,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!rows.is_empty());
    assert_eq!(parse_rows(as_text(&rows).as_bytes()).as_ref(), Ok(&rows));
}

fn as_text(rows: &[Row]) -> String {
    let placed = rows.iter().all(|row| row.truth.is_some());
    let mut text = "ta_counter_ns,tb_ns,te_ns,tf_counter_ns,error_ns".to_owned();
    text += if placed { ",true_time_ns_at_ta,true_time_ns_at_tf\n" } else { "\n" };
    for Row { exchange: e, truth } in rows {
        let (tb, te) = (unix_nanos(e.tb), unix_nanos(e.te));
        let error = e.error.ceil_nanos();
        write!(text, "{},{tb},{te},{},{error}", e.ta, e.tf).expect("it is a string");
        if let Some([at_ta, at_tf]) = truth {
            write!(text, ",{},{}", unix_nanos(*at_ta), unix_nanos(*at_tf)).expect("it is a string");
        }
        text.push('\n');
    }
    text
}

/// What `from_unix_nanos` was given: it rounds down to 2^-64 s, so the next nanosecond above is it.
fn unix_nanos<S>(instant: timevisor_time::Instant<S>) -> i128 {
    let bits = instant.to_bits();
    (bits >> 64) * 1_000_000_000
        + ((i128::from(bits as u64) * 1_000_000_000 + i128::from(u64::MAX)) >> 64)
}

fn check_truth(bytes: &[u8]) {
    let (first, counters) = match parse_truth(bytes) {
        Ok(truth) => truth,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(counters.is_sorted_by(|a, b| a < b));
    let mut text = "t_s,counter_minus_true_ns\n".to_owned();
    for (second, counter) in (first..).zip(&counters) {
        let difference = i128::from(*counter) - i128::from(second) * 1_000_000_000;
        writeln!(text, "{second},{difference}").expect("it is a string");
    }
    assert_eq!(parse_truth(text.as_bytes()), Ok((first, counters)));
}

/// Arbitrary bytes as a file, which may be gzip; then the same bytes, compressed.
fn check_file(bytes: &[u8]) {
    let mut file = Unnamed::new();
    let _any = Trace::load(&file.holding(bytes), None);
    let plain = parse_rows(bytes);
    let mut compressed = Vec::new();
    GzEncoder::new(bytes, Compression::fast()).read_to_end(&mut compressed).expect("to memory");
    let loaded = Trace::load(&file.holding(&compressed), None);
    match loaded {
        // As a file it may be refused for its length, which rows alone are not.
        Err(LoadError::TooLong { days, .. }) => assert!(days > 400 && plain.is_ok()),
        loaded => assert_eq!(loaded.ok().map(|trace| trace.rows), plain.ok()),
    }
    // A member that lacks its end is refused, however much of it there is.
    compressed.truncate(compressed.len() - 1);
    assert!(Trace::load(&file.holding(&compressed), None).is_err());
}

fn check_placed(rows: Vec<Row>, first: i64, counters: Vec<u64>) {
    let Ok(truth) = Truth::new(first, counters, &rows) else { return };
    assert!(truth.seconds().is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1 && a.2 < b.2));
    run(rows, Some(truth));
}

/// With the first row choosing the method, so that all have their turn.
fn run(rows: Vec<Row>, truth: Option<Truth>) {
    let counters = || rows.iter().map(|row| row.exchange.tf);
    let seconds = (counters().max().unwrap_or(0) - counters().min().unwrap_or(0)) / 1_000_000_000;
    if rows.len() > MOST_ROWS || seconds > MOST_SECONDS {
        return;
    }
    let choice = rows[0].exchange.ta as usize % Method::ALL.len();
    let (method, skip) = (Method::ALL[choice], Duration::ZERO);
    let options = ReplayOptions { method, skip, ..ReplayOptions::default() };
    let total = rows.len() as u64;
    let trace = Trace { name: "fuzz".to_owned(), rows, truth };
    let played = replay(&trace, &options);
    assert_eq!(played.used + played.discarded.values().sum::<u64>(), total);
    if let Some(score) = Score::of(&played.readings) {
        assert!((0.0..=1.0).contains(&score.coverage));
    }
}

/// A file that is gone as soon as it is there, reached through /proc.
struct Unnamed(File);

impl Unnamed {
    fn new() -> Self {
        // In memory where there is such a folder: on a disk the target waits more than it computes.
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = folder.join(format!("timevisor-fuzz-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        std::fs::remove_file(path).expect("it was just made");
        Self(file.expect("the temporary folder can be written"))
    }

    fn holding(&mut self, bytes: &[u8]) -> PathBuf {
        self.0.rewind().and_then(|()| self.0.set_len(0)).expect("a plain file");
        self.0.write_all(bytes).expect("there is room");
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}
