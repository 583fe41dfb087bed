//! Runs host programs: returns output or a useful error, and ensures that children cannot outlive
//! the lab.
//!
//! No shell is involved unless the caller names one.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context as _, anyhow, bail};

/// Runs `command` to its end and returns its standard output.
///
/// # Errors
/// When it cannot start or fails; the message contains the command line and the end of standard
/// error.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().with_context(|| {
        format!("cannot run `{program}`; install the package that provides it and run again")
    })?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        bail!("`{}` failed ({}): {}", describe(command), out.status, tail(&text, 12));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Shorthand for [`output`] with a program and its arguments.
///
/// # Errors
/// As [`output`].
pub fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> anyhow::Result<String> {
    output(Command::new(program).args(args))
}

/// The command line as one would type it, for logs and errors.
pub fn describe(command: &Command) -> String {
    let quote = |s: &OsStr| {
        let s = s.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,/:+@%".contains(c);
        if !s.is_empty() && s.chars().all(plain) {
            s.into_owned()
        } else {
            format!("'{}'", s.replace('\'', r"'\''"))
        }
    };
    let mut words = vec![quote(command.get_program())];
    words.extend(command.get_args().map(quote));
    words.join(" ")
}

/// The last `lines` lines of `text`, for error messages.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A command whose process the kernel kills when the thread that started it ends, for whatever
/// reason.
///
/// `setpriv` sets the parent-death signal and executes the program, so the child's PID is the
/// program's. The child gets its own process group: Ctrl-C reaches only the lab, which then stops
/// its children in order.
pub fn tethered(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).process_group(0);
    command
}

/// A running child that is killed and reaped on drop.
#[derive(Debug)]
pub struct Tethered {
    child: Child,
    what: String,
    log: PathBuf,
}

impl Tethered {
    /// Starts `command` (from [`tethered`]). The file `log` receives the command line and then the
    /// output.
    ///
    /// # Errors
    /// When the log cannot be created or the command cannot start.
    pub fn spawn(command: &mut Command, what: &str, log: &Path) -> anyhow::Result<Self> {
        std::fs::write(log, format!("$ {}\n", describe(command)))
            .with_context(|| format!("cannot write {}", log.display()))?;
        let append = || {
            std::fs::File::options()
                .append(true)
                .open(log)
                .with_context(|| format!("cannot write {}", log.display()))
        };
        let child = command
            .stdin(std::process::Stdio::null())
            .stdout(append()?)
            .stderr(append()?)
            .spawn()
            .with_context(|| format!("cannot start {what} (is setpriv of util-linux there?)"))?;
        Ok(Self { child, what: what.to_owned(), log: log.to_owned() })
    }

    /// The process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended.
    ///
    /// # Errors
    /// When its state cannot be read.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Returns an error with the end of the log if the process has ended early.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                // Skips the first line, which is the command line.
                let log = self.log_text();
                let said = log.split_once('\n').map_or("", |(_, said)| said);
                Err(anyhow!("{} ended ({status}): {}", self.what, tail(said, 8)))
            }
        }
    }

    /// Everything the process has printed so far.
    pub fn log_text(&self) -> String {
        std::fs::read(&self.log)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    /// Kills the process now.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Tethered {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_command_and_its_words() {
        let error = run("sh", &["-c", "echo it is broken >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("sh -c 'echo it is broken"), "{error}");
        assert!(error.contains("exit status: 3") && error.ends_with("it is broken"), "{error}");
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let child = Tethered::spawn(tethered("sleep").arg("1000"), "sleep", &log).unwrap();
        let stat = format!("/proc/{}", child.pid());
        assert!(Path::new(&stat).exists());
        drop(child);
        assert!(!Path::new(&stat).exists());
    }
}
