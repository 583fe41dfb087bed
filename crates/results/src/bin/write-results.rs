//! Writes a results file from rows on standard input, one JSON object a line: for scripts
//! (fuzz/run.sh).
#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use timevisor_results::Results;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, file] = &arguments[..] else {
        eprintln!("usage: write-results NAME FILE.json <ROWS");
        return ExitCode::from(2);
    };
    match write(name, Path::new(file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("write-results: {error}");
            ExitCode::from(2)
        }
    }
}

fn write(name: &str, file: &Path) -> io::Result<()> {
    let lines = io::stdin().lines().collect::<io::Result<Vec<String>>>()?;
    let rows = lines.iter().filter(|line| !line.trim().is_empty());
    let rows =
        rows.map(|line| Ok(serde_json::from_str(line)?)).collect::<io::Result<Vec<Value>>>()?;
    Results::new(name, rows).write(file)
}
