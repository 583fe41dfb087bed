//! The thread with the files: carries out what crates/audit decides, and says once what goes wrong.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};
use timevisor_audit::{Action, Found, Journal, file_name, file_number};
use timevisor_linux::clock::monotonic;

use super::{Message, open_directory};
use crate::announce::Announcer;
use crate::config::AuditConfig;

/// A full disk is tried again after this time.
const RETRY: Duration = Duration::from_secs(5);
/// Of a file that goes on, this much is read: many of the longest lines.
const END: u64 = 1 << 20;

pub(super) struct Writer {
    directory: PathBuf,
    lock: Option<File>,
    journal: Journal,
    /// What is in the files is known.
    is_known: bool,
    told: Announcer,
    has_trouble: bool,
}

impl Writer {
    pub(super) fn new(config: &AuditConfig, lock: Option<File>) -> Self {
        Self {
            directory: config.directory.clone(),
            lock,
            journal: Journal::new(config.settings()),
            is_known: false,
            told: Announcer::default(),
            has_trouble: false,
        }
    }

    /// Writes until the daemon ends.
    pub(super) fn run(mut self, records: &Receiver<Message>) {
        loop {
            let first = if self.has_trouble {
                match records.recv_timeout(RETRY) {
                    Ok(message) => Some(message),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            } else {
                let Ok(message) = records.recv() else { return };
                Some(message)
            };
            let mut ended = None;
            for message in first.into_iter().chain(records.try_iter()) {
                match message {
                    Message::Record(stamp, event) => self.journal.push(stamp, event),
                    Message::End(sender) => ended = Some(sender),
                }
            }
            self.write();
            if let Some(sender) = ended {
                self.say_head("ends");
                drop(sender);
                return;
            }
        }
    }

    fn write(&mut self) {
        let outcome = self.try_write();
        let problem = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let had_trouble = std::mem::replace(&mut self.has_trouble, problem.is_some());
        // Without the number of records that wait, which changes all the time.
        if !self.told.changed(monotonic(), problem.as_deref().unwrap_or_default()) {
            return;
        }
        let (waiting, lost) = self.journal.backlog();
        match problem {
            Some(problem) => tracing::error!(
                "audit log: {problem}; the clock is served, {waiting} record(s) wait for the disk and {lost} are lost, which \
                 the log will name; make room or correct audit.directory"
            ),
            None if had_trouble => tracing::info!("audit log: it is written again"),
            None => {}
        }
    }

    fn try_write(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(open_directory(&self.directory)?);
        }
        if !self.is_known {
            self.find()?;
        }
        while let Some(action) = self.journal.next_action() {
            let is_removal = matches!(action, Action::Remove { .. });
            let is_new = matches!(action, Action::Create { .. });
            let outcome = self.carry_out(&action);
            self.journal.done(outcome.as_ref().copied().map_err(|error| format!("{error:#}")));
            match outcome {
                Err(error) if is_removal => tracing::warn!("audit log: {error:#}"),
                Err(error) => {
                    self.is_known = false;
                    return Err(error);
                }
                Ok(()) if is_new => self.say_head("begins another file"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// The log of this daemon is another place that knows the hash of a line.
    fn say_head(&self, what: &str) {
        let (head, directory) = (self.journal.head(), self.directory.display());
        tracing::info!("audit log in {directory} {what}: line {}:{}", head.seq, head.hash);
    }

    /// Looks at what is there.
    fn find(&mut self) -> Result<()> {
        let mut found = Vec::new();
        let list = fs::read_dir(&self.directory);
        for entry in list.with_context(|| format!("cannot list {}", self.directory.display()))? {
            let entry = entry?;
            let Some(number) = entry.file_name().to_str().and_then(file_number) else { continue };
            let metadata = entry.metadata()?;
            let modified_ns = metadata.mtime().saturating_mul(1_000_000_000);
            found.push(Found { number, modified_ns, length: metadata.len() });
        }
        let directory = self.directory.clone();
        self.journal.find(found, |file| end_of(&directory.join(file_name(file.number))))?;
        self.is_known = true;
        // After a failure that was said, it is what this daemon could not write.
        let torn = self.journal.torn_bytes();
        if torn > 0 && !self.has_trouble {
            tracing::warn!(
                "audit log: its last {torn} bytes are a torn line, and count for nothing; the next line names them"
            );
        }
        Ok(())
    }

    fn carry_out(&self, action: &Action) -> Result<()> {
        let path = |file: &u64| self.directory.join(file_name(*file));
        let (path, outcome) = match action {
            Action::Append { file, bytes } => {
                (path(file), append(OpenOptions::new().append(true), &path(file), bytes))
            }
            Action::Create { file, bytes } => {
                let mut options = OpenOptions::new();
                options.append(true).create_new(true).mode(0o640);
                let written = append(&mut options, &path(file), bytes);
                let synced = || File::open(&self.directory)?.sync_all();
                (path(file), written.and_then(|()| synced()))
            }
            Action::Remove { file } => (path(file), fs::remove_file(path(file))),
        };
        outcome.with_context(|| format!("cannot write {}", path.display()))
    }
}

fn append(options: &mut OpenOptions, path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

fn end_of(path: &std::path::Path) -> Result<Vec<u8>> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
        let mut bytes = Vec::new();
        file.take(END).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_audit::verify::Verifier;
    use timevisor_audit::{Event, Stamp};

    fn write(directory: &std::path::Path, counts: std::ops::Range<u64>) -> Writer {
        let config = AuditConfig {
            directory: directory.to_owned(),
            rotate: 64 << 10,
            ..AuditConfig::default()
        };
        let mut writer = Writer::new(&config, None);
        for count in counts {
            writer.journal.push(Stamp::unvouched(5), Event::Contradiction { count });
        }
        writer.write();
        writer
    }

    fn verified(directory: &std::path::Path) -> (u64, usize) {
        let mut verifier = Verifier::default();
        let mut files = 0;
        for number in 1.. {
            let Ok(bytes) = fs::read(directory.join(file_name(number))) else { break };
            verifier.file(&file_name(number), &bytes, |_| {}).unwrap();
            files += 1;
        }
        (verifier.end().unwrap().lines, files)
    }

    #[test]
    fn a_log_goes_on_over_restarts_and_files_and_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("deep/audit");
        let writer = write(&directory, 0..400);
        assert!(!writer.has_trouble);
        let (lines, files) = verified(&directory);
        assert!(files > 1 && lines == 400 + files as u64, "{lines} lines, {files} files");
        // The lock is held until the first one ends.
        assert!(write(&directory, 0..1).has_trouble);
        assert_eq!(verified(&directory).0, lines);
        drop(writer);
        assert!(!write(&directory, 0..10).has_trouble);
        assert!(verified(&directory).0 >= lines + 10);
    }
}
