//! Results for machines: one form of `target/results/NAME.json` for benchmarks, experiments, soaks,
//! scenarios and fuzzing.
//!
//! | module | owns |
//! | --- | --- |
//! | this one | [`Results`]: the file's form, and writing it |
//! | [`mod@machine`] | the machine's name |
//! | [`mod@commit`] | the commit's name |
//!
//! ```json
//! {"name": "bench-read", "machine": "AMD EPYC, in a VM, Linux 6.12.0", "commit": "1a2b3c4",
//!  "rows": [{"clock": "timeline", "median_ns": 31.5}]}
//! ```
//!
//! A row is a line of the table that people see. Its fields are in snake_case with their unit.
//! `caption` says how it was measured, where the program has something to say about that.
//!
//! What it does not do: print tables, judge results, draw pictures.
#![forbid(unsafe_code)]

pub mod commit;
pub mod machine;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

pub use commit::commit;
pub use machine::machine;

/// What one program measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// The program's name, which is also the file's.
    pub name: String,
    /// The machine that it ran on ([`machine()`]).
    pub machine: String,
    /// The commit that was measured ([`commit()`]).
    pub commit: String,
    /// How it was measured, one statement a line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caption: Vec<String>,
    /// One object per line of the table.
    pub rows: Vec<Value>,
}

impl Results {
    /// Results of this machine and of the checkout around the current directory.
    #[must_use]
    pub fn new(name: &str, rows: Vec<Value>) -> Self {
        Self::of_checkout(Path::new("."), name, rows)
    }

    /// Results of this machine and of the checkout around `folder`.
    #[must_use]
    pub fn of_checkout(folder: &Path, name: &str, rows: Vec<Value>) -> Self {
        let (machine, commit) = (machine(), commit(folder));
        Self { name: name.to_owned(), machine, commit, caption: Vec::new(), rows }
    }

    /// The same with a caption.
    #[must_use]
    pub fn with_caption(self, caption: Vec<String>) -> Self {
        Self { caption, ..self }
    }

    /// The file's text.
    ///
    /// # Errors
    /// None that a caller can provoke: all values are JSON already.
    pub fn text(&self) -> io::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the file, and creates its folder.
    ///
    /// # Errors
    /// When the file cannot be written; the path is in the text.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        fs::write(path, self.text()?).map_err(failed)
    }
}

/// `target/results/NAME.json` in the checkout `root`.
#[must_use]
pub fn path(root: &Path, name: &str) -> PathBuf {
    root.join("target/results").join(format!("{name}.json"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results() -> Results {
        Results {
            name: "bench-x".to_owned(),
            machine: "a machine".to_owned(),
            commit: "1a2b3c4".to_owned(),
            caption: Vec::new(),
            rows: vec![
                json!({"clock": "fast", "median_ns": 1.25}),
                json!({"clock": "slow", "median_ns": null}),
            ],
        }
    }

    const GOLDEN: &str = r#"{
  "name": "bench-x",
  "machine": "a machine",
  "commit": "1a2b3c4",
  "rows": [
    {
      "clock": "fast",
      "median_ns": 1.25
    },
    {
      "clock": "slow",
      "median_ns": null
    }
  ]
}
"#;

    #[test]
    fn the_file_has_exactly_this_form() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "bench-x");
        assert_eq!(file, folder.path().join("target/results/bench-x.json"));
        results().write(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), GOLDEN);
    }

    #[test]
    fn a_caption_stands_before_the_rows() {
        let text = results().with_caption(vec!["in turns".to_owned()]).text().unwrap();
        let caption =
            "  \"commit\": \"1a2b3c4\",\n  \"caption\": [\n    \"in turns\"\n  ],\n  \"rows\"";
        assert!(text.contains(caption), "{text}");
    }

    #[test]
    fn an_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("target"), "").unwrap();
        let error = results().write(&path(folder.path(), "x")).unwrap_err().to_string();
        assert!(error.contains("target/results/x.json"), "{error}");
    }
}
