//! The certificate and its key: read at the start, and again when the files change.
//!
//! A certificate that is renewed (Let's Encrypt: every two months) needs no restart. The two files
//! may be written one after the other: they are read when both have been unchanged for a second. If
//! they cannot be used then, the old certificate stays in use and the log says why.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_protocols::nts::server::Identity;

/// What changes when a file is replaced or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

type Versions = [Option<Version>; 2];

pub(super) struct Certificate {
    paths: [PathBuf; 2],
    identity: Identity,
    /// The files that were read, whether they could be used or not.
    read: Versions,
    /// A change that was seen at the last look.
    changing: Option<Versions>,
    problem: Option<String>,
}

impl Certificate {
    /// Reads the files.
    pub(super) fn read(certificate: &Path, key: &Path) -> Result<Self> {
        let paths = [certificate.to_owned(), key.to_owned()];
        let read = versions(&paths);
        let identity = load(&paths)?;
        Ok(Self { paths, identity, read, changing: None, problem: None })
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Why the files on disk are not in use.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Looks whether the files have changed; call it about once a second. Returns true if they were
    /// read.
    pub(super) fn look(&mut self) -> bool {
        let found = versions(&self.paths);
        if found == self.read {
            self.changing = None;
            return false;
        }
        if self.changing.replace(found) != Some(found) {
            return false;
        }
        self.changing = None;
        self.read = found;
        match load(&self.paths) {
            Ok(identity) => {
                tracing::info!("NTS serves the new certificate in {}", self.paths[0].display());
                self.identity = identity;
                self.problem = None;
            }
            Err(error) => {
                let problem = format!("the old NTS certificate stays in use: {error:#}");
                tracing::warn!("{problem}");
                self.problem = Some(problem);
            }
        }
        true
    }
}

fn load(paths: &[PathBuf; 2]) -> Result<Identity> {
    let read = |key: &str, path: &Path| {
        fs::read(path).with_context(|| {
            format!(
                "cannot read server.{key} {}; correct the path or its permissions",
                path.display()
            )
        })
    };
    let [certificate, key] = paths;
    let chain = read("nts_certificate", certificate)?;
    let secret = zeroize::Zeroizing::new(read("nts_key", key)?);
    Identity::from_pem(&chain, &secret).with_context(|| {
        format!(
            "server.nts_certificate {} and server.nts_key {}",
            certificate.display(),
            key.display()
        )
    })
}

/// An absent file has no version.
fn versions(paths: &[PathBuf; 2]) -> Versions {
    paths.each_ref().map(|path| {
        let data = fs::metadata(path).ok()?;
        let modified = (data.mtime(), data.mtime_nsec());
        Some(Version { inode: data.ino(), len: data.len(), modified })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A certificate for 127.0.0.1 that is its own authority, and its key.
    pub(in crate::server) fn certificate() -> (String, String) {
        certificate_of(&["127.0.0.1"])
    }

    /// A certificate for these names that is its own authority, and its key.
    pub(in crate::server) fn certificate_of(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    struct Files(tempfile::TempDir);

    impl Files {
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            // Renamed, as certbot does: another inode, whatever the clock's resolution.
            fs::write(self.path("new"), text).unwrap();
            fs::rename(self.path("new"), self.path(name)).unwrap();
        }

        fn read(&self) -> Result<Certificate> {
            Certificate::read(&self.path("crt"), &self.path("key"))
        }
    }

    fn files() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        let (certificate, key) = certificate();
        files.write("crt", &certificate);
        files.write("key", &key);
        files
    }

    #[test]
    fn a_renewed_pair_is_read_when_it_is_complete() {
        let files = files();
        let mut certificate = files.read().unwrap();
        assert!(!certificate.look() && !certificate.look());
        let (renewed, key) = self::certificate();
        files.write("crt", &renewed);
        assert!(!certificate.look(), "seen to change");
        files.write("key", &key);
        assert!(!certificate.look(), "changes still");
        assert!(certificate.look());
        assert_eq!(certificate.problem(), None);
        assert!(!certificate.look());
    }

    #[test]
    fn the_old_one_stays_until_the_new_one_can_be_used() {
        let files = files();
        let mut certificate = files.read().unwrap();
        let (other, _) = self::certificate();
        files.write("crt", &other);
        assert!(!certificate.look() && certificate.look());
        let problem = certificate.problem().unwrap();
        assert!(problem.contains("does not belong to the certificate"), "{problem}");
        assert!(!certificate.look() && !certificate.look(), "said once");
        fs::remove_file(files.path("crt")).unwrap();
        assert!(!certificate.look() && certificate.look());
        assert!(certificate.problem().unwrap().contains("correct the path"));
        let (renewed, key) = self::certificate();
        files.write("key", &key);
        files.write("crt", &renewed);
        assert!(!certificate.look() && certificate.look());
        assert_eq!(certificate.problem(), None);
    }

    #[test]
    fn at_the_start_both_are_needed() {
        let files = files();
        fs::remove_file(files.path("key")).unwrap();
        let error = format!("{:#}", files.read().err().unwrap());
        assert!(error.contains("server.nts_key") && error.contains("correct the path"), "{error}");
        files.write("key", "nothing");
        let error = format!("{:#}", files.read().err().unwrap());
        assert!(error.contains("privkey.pem"), "{error}");
    }
}
