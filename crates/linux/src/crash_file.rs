//! A file in the run directory that survives a crash of this program.
//!
//! A program writes it before it changes anything, so that the next instance can undo the change
//! after a crash. A reboot invalidates the file.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state_file::{self, MOST_BYTES, Readers};

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CrashFileError {
    /// The file cannot be read or written.
    #[error("{}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file's content is not in our format.
    #[error("{} is not understood (another version wrote it, or it is damaged); what it names stays as it is: start the timevisord that wrote it once, which undoes that; for reservations run `timevisor reserve release --all` of that version", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// A file with one value of `T` in JSON; an absent file is `T::default()`.
#[derive(Debug)]
pub struct CrashFile<T> {
    path: PathBuf,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned + Default> CrashFile<T> {
    /// `name` in the run directory.
    #[must_use]
    pub fn new(directory: &Path, name: &str) -> Self {
        Self { path: directory.join(name), of: PhantomData }
    }

    /// Whether there is a file, whatever it says.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The value that an earlier instance wrote; the default if there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or is not understood.
    pub fn read(&self) -> Result<T, CrashFileError> {
        match state_file::read(&self.path, MOST_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| CrashFileError::Format { path: self.path.clone(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            Err(source) => Err(CrashFileError::Io { path: self.path.clone(), source }),
        }
    }

    /// Replaces the file atomically: after a crash it holds the old value or the new one.
    ///
    /// # Errors
    /// When it cannot be written. The caller must then not make its change.
    pub fn write(&self, value: &T) -> Result<(), CrashFileError> {
        let bytes = serde_json::to_vec_pretty(value)
            .map_err(|source| CrashFileError::Format { path: self.path.clone(), source })?;
        state_file::write_durably(&self.path, &bytes, Readers::Owner)
            .map_err(|source| CrashFileError::Io { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let file: CrashFile<Vec<u32>> = CrashFile::new(folder.path(), "numbers.json");
        assert!(file.read().unwrap().is_empty());
        file.write(&vec![1, 2]).unwrap();
        assert_eq!(file.read().unwrap(), [1, 2]);
        fs::write(folder.path().join("numbers.json"), "{").unwrap();
        assert!(file.read().unwrap_err().to_string().contains("not understood"));
        let nowhere: CrashFile<Vec<u32>> =
            CrashFile::new(&folder.path().join("no"), "numbers.json");
        assert!(matches!(nowhere.write(&vec![1]), Err(CrashFileError::Io { .. })));
    }
}
