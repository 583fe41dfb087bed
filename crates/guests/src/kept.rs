//! What must outlive this program, in a file of the run directory: written before anything is changed, so that whoever comes after a crash
//! can bring the old state back. What it says is void after a boot.

use std::fs;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// Not readable or writable.
    #[error("{}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not what we write.
    #[error("{} is not understood; what it names stays as it is: start the version of timevisord that wrote it once, which undoes that; for reservations also `timevisor reserve release --all` of that version", .path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// The file.
#[derive(Debug)]
pub struct Kept<T> {
    path: PathBuf,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned + Default> Kept<T> {
    /// `name` in the run directory.
    #[must_use]
    pub fn new(directory: &Path, name: &str) -> Self {
        Self { path: directory.join(name), of: PhantomData }
    }

    /// What an earlier program kept; nothing where there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or is not understood.
    pub fn read(&self) -> Result<T, KeptError> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| KeptError::Format { path: self.path.clone(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            Err(source) => Err(KeptError::Io { path: self.path.clone(), source }),
        }
    }

    /// Replaces it; the old one or the new one is there whatever happens.
    ///
    /// # Errors
    /// When it cannot be written: then nothing may be changed.
    pub fn write(&self, value: &T) -> Result<(), KeptError> {
        let fresh = self.path.with_extension("json.new");
        let bytes = serde_json::to_vec_pretty(value)
            .map_err(|source| KeptError::Format { path: self.path.clone(), source })?;
        let written = || {
            let mut options = fs::OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)
        };
        written().map_err(|source| KeptError::Io { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let kept: Kept<Vec<u32>> = Kept::new(folder.path(), "numbers.json");
        assert!(kept.read().unwrap().is_empty());
        kept.write(&vec![1, 2]).unwrap();
        assert_eq!(kept.read().unwrap(), [1, 2]);
        fs::write(folder.path().join("numbers.json"), "{").unwrap();
        assert!(kept.read().unwrap_err().to_string().contains("not understood"));
        let nowhere: Kept<Vec<u32>> = Kept::new(&folder.path().join("no"), "numbers.json");
        assert!(matches!(nowhere.write(&vec![1]), Err(KeptError::Io { .. })));
    }
}
