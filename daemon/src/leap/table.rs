//! The table that is in force, and whether a file may replace it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use timevisor_time::LeapTable;

/// What tells two versions of a file apart: a package manager renames a new file into place, an
/// editor writes into the old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

/// Identifies the file at `path`; `None` if it cannot be looked at.
pub fn identity(path: &Path) -> Option<FileId> {
    let found = fs::metadata(path).ok()?;
    Some(FileId {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
    })
}

/// Reads the table at `path`. The file is identified first, so that a change while it is read is
/// noticed at the next look.
pub fn read(path: &Path) -> (Option<FileId>, Result<LeapTable, String>) {
    let seen = identity(path);
    let text = fs::read_to_string(path).map_err(|e| {
        format!("cannot read {}: {e}; install tzdata or set clock.tai_offset", path.display())
    });
    let parse =
        |text: String| LeapTable::parse(&text).map_err(|e| format!("{}: {e}", path.display()));
    (seen, text.and_then(parse))
}

/// What a look at the file brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// Nothing that was not said before.
    Same,
    /// Another table is in force.
    Replaced {
        /// Its end, POSIX seconds.
        expires: i64,
    },
    /// The file is no better than the loaded table, which stays.
    Refused {
        /// What is wrong with the file.
        why: String,
        /// The end of the loaded table, POSIX seconds.
        expires: i64,
    },
    /// There is still no table, for another reason than before.
    StillBad {
        /// The reason.
        why: String,
    },
}

/// The table in force, or why there is none.
#[derive(Debug)]
pub struct Table {
    loaded: Result<LeapTable, String>,
    /// What was wrong with the file when it was last refused.
    refused: Option<String>,
}

impl Table {
    /// The first table, good or bad.
    pub fn first(read: Result<LeapTable, String>) -> Self {
        Self { loaded: read, refused: None }
    }

    /// The table in force.
    pub fn loaded(&self) -> Result<&LeapTable, &str> {
        self.loaded.as_ref().map_err(String::as_str)
    }

    /// Takes what was read from the file, if it is an improvement.
    pub fn take(&mut self, read: Result<LeapTable, String>) -> News {
        let new = match (&self.loaded, read) {
            (Err(_), Ok(new)) => Ok(new),
            (Err(known), Err(why)) => {
                let same = *known == why;
                self.loaded = Err(why.clone());
                return if same { News::Same } else { News::StillBad { why } };
            }
            (Ok(old), Ok(new)) => new.may_replace(old).map(|()| new).map_err(|e| e.to_string()),
            (Ok(_), Err(why)) => Err(why),
        };
        match (&self.loaded, new) {
            (Ok(old), Ok(new)) if *old == new => {
                self.refused = None;
                News::Same
            }
            (_, Ok(new)) => {
                let expires = new.expires();
                *self = Self::first(Ok(new));
                News::Replaced { expires }
            }
            (loaded, Err(why)) => {
                let expires = loaded.as_ref().map_or(0, LeapTable::expires);
                let told = self.refused.replace(why.clone());
                if told.as_ref() == Some(&why) {
                    News::Same
                } else {
                    News::Refused { why, expires }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "#@ 4000000000\n3644697600 36\n3692217600 37\n";
    const LONGER: &str = "#@ 4000000100\n3644697600 36\n3692217600 37\n";
    const OLDER: &str = "#@ 3999999900\n3644697600 36\n3692217600 37\n";

    fn table(text: &str) -> Result<LeapTable, String> {
        LeapTable::parse(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_good_table_is_only_replaced_by_a_better_one_and_each_refusal_is_told_once() {
        let mut loaded = Table::first(table(GOOD));
        assert_eq!(loaded.take(table(GOOD)), News::Same);
        for bad in [OLDER, "", "#@ 4000000100\n3644697600 36\n", "#@ what\n"] {
            let news = loaded.take(table(bad));
            assert!(
                matches!(news, News::Refused { expires: 1_791_011_200, .. }),
                "{bad}: {news:?}"
            );
            assert_eq!(loaded.take(table(bad)), News::Same, "{bad} again");
            assert_eq!(loaded.loaded(), Ok(&table(GOOD).unwrap()));
        }
        assert!(matches!(loaded.take(table(LONGER)), News::Replaced { expires: 1_791_011_300 }));
        assert_eq!(loaded.loaded(), Ok(&table(LONGER).unwrap()));
        // The same file is refused again after it was good in between: that is new.
        assert!(matches!(loaded.take(table(GOOD)), News::Refused { .. }));
        assert_eq!(loaded.take(table(LONGER)), News::Same);
        assert!(matches!(loaded.take(table(GOOD)), News::Refused { .. }));
    }

    #[test]
    fn any_good_table_is_better_than_none() {
        let mut none = Table::first(Err("cannot read".to_owned()));
        assert_eq!(none.take(Err("cannot read".to_owned())), News::Same);
        assert!(matches!(none.take(table("")), News::StillBad { .. }));
        assert!(none.loaded().is_err());
        assert!(matches!(none.take(table(OLDER)), News::Replaced { .. }));
    }

    #[test]
    fn a_renamed_file_and_a_rewritten_one_are_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("leap"), dir.path().join("leap.new"));
        fs::write(&path, GOOD).unwrap();
        let (seen, read) = read(&path);
        assert!(read.is_ok() && seen.is_some() && seen == identity(&path));
        fs::write(&new, LONGER).unwrap();
        fs::rename(&new, &path).unwrap();
        assert_ne!(seen, identity(&path));
        let seen = identity(&path);
        fs::write(&path, "longer than before, of the same inode, and no table at all".repeat(3))
            .unwrap();
        assert_ne!(seen, identity(&path));
        fs::remove_file(&path).unwrap();
        assert_eq!(identity(&path), None);
    }
}
