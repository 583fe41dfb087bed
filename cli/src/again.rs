//! A command that shows something again and again: on a terminal in place, elsewhere one after the
//! other.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::exit::{CLOSED_PIPE, Found};
use crate::spans::span;

#[derive(Args)]
#[group(skip)]
pub struct Again {
    /// Show it again and again, every second or every SPAN, until interrupted; with --json one object
    /// a line
    #[arg(long, value_name = "SPAN", value_parser = span, num_args = 0..=1, default_missing_value = "1s", require_equals = true)]
    watch: Option<Duration>,
}

impl Again {
    /// Prints what `look` returns, once or as long as the command runs. A daemon that is away is said,
    /// and awaited.
    pub fn show(
        &self,
        json: bool,
        mut look: impl FnMut() -> Result<(String, Found)>,
    ) -> Result<Found> {
        let Some(every) = self.watch else {
            let (text, found) = look()?;
            print!("{text}");
            return Ok(found);
        };
        ensure!(!every.is_zero(), "--watch=0s leaves no time between two looks; 1s is the default");
        let is_screen = std::io::stdout().is_terminal() && !json;
        loop {
            let text = match look() {
                Ok((text, _)) => text,
                Err(error) if json => {
                    format!("{}\n", serde_json::json!({"error": format!("{error:#}")}))
                }
                Err(error) => format!("{error:#}\n"),
            };
            let mut out = std::io::stdout().lock();
            if is_screen {
                // Home, and nothing below it.
                out.write_all(b"\x1b[H\x1b[2J")?;
            }
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    std::process::exit(CLOSED_PIPE)
                }
                written => written?,
            }
            drop(out);
            std::thread::sleep(every);
        }
    }
}
