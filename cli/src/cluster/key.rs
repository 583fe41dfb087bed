//! `timevisor cluster key`: makes the secret that a cluster's hosts have in common. And reads it, for
//! commands that ask them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use timevisor_linux::state_file;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::shared::{MOST_BYTES, Sealer, Secret, session};
use zeroize::Zeroizing;

#[derive(Args)]
pub struct Options {
    /// The file to make, with mode 0600; copy it to every host of the cluster
    file: PathBuf,
}

pub fn make(options: &Options) -> Result<()> {
    let mut bytes = Zeroizing::new([0; 32]);
    let filled = getrandom::fill(&mut bytes[..]);
    filled.map_err(|error| anyhow!("the kernel returns no random numbers: {error}"))?;
    let file = &options.file;
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.with_context(|| {
        format!("cannot make {}; a file that is there is left as it is", file.display())
    })?;
    let text = Secret::new(bytes).text();
    let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
    written.with_context(|| format!("cannot write {}", file.display()))?;
    println!(
        "{0}: copy it to every host of the cluster, and set key = {0:?} in [[cluster]]",
        file.display()
    );
    Ok(())
}

/// What seals questions about the timeline of this name, with the secret in this file.
pub fn sealer(file: Option<&Path>, name: Name) -> Result<Option<Sealer>> {
    let Some(file) = file else { return Ok(None) };
    let read = || -> Result<Secret> {
        let bytes = state_file::read_secret(file, MOST_BYTES).map(Zeroizing::new)?;
        Ok(Secret::parse(&bytes)?)
    };
    let secret = read().with_context(|| format!("cannot use the key {}", file.display()))?;
    let session = session(|bytes| getrandom::fill(bytes).is_ok());
    let session = session.context("the kernel returns no random numbers")?;
    Ok(Some(Sealer::new(secret.cookie_keys(name), &session)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_by_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lab.key");
        make(&Options { file: file.clone() }).unwrap();
        let text = std::fs::read(&file).unwrap();
        assert!(sealer(Some(&file), Name::HOST).unwrap().is_some());
        let again = format!("{:#}", make(&Options { file: file.clone() }).unwrap_err());
        assert!(again.contains("left as it is"), "{again}");
        assert_eq!(std::fs::read(&file).unwrap(), text);
        std::fs::write(&file, "nothing").unwrap();
        let why = format!("{:#}", sealer(Some(&file), Name::HOST).unwrap_err());
        assert!(why.contains("timevisor cluster key"), "{why}");
        assert!(sealer(None, Name::HOST).unwrap().is_none());
    }
}
