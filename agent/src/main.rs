//! timevisor-guest: lets many applications in a guest share the guest's one channel to its host's
//! timevisord. Optional: a single application can use the channel itself, and reading the clock
//! needs neither.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the event loop: one thread, one poll(2) |
//! | `apps.rs` | the socket that applications connect to |
//! | `host.rs` | the virtio-serial port, or vsock |
//! | `hold/` | `--hold`: a workload stands still while the guest does not know the time |
//! | `wait_sync.rs` | `wait-sync`, which needs none of the above |
//! | `span.rs` | time spans as users write them |
//! | `clockbound.rs` | `--clockbound`: the page's clock for clients of AWS ClockBound |
//! | `set_clock/` | `--set-clock` and `set-clock`: the guest's CLOCK_REALTIME, from the page |
//!
//! All rules of the channel are in timevisor-protocols' relay; those of the clock are in
//! timevisor-estimate's `steering` and in `set_clock/law.rs`.
#![forbid(unsafe_code)]

mod apps;
mod clockbound;
mod hold;
mod host;
#[cfg(test)]
mod packaging_tests;
mod set_clock;
mod span;
mod wait_sync;

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory as _, Parser};
use timevisor_linux::clock::{monotonic, realtime};
use timevisor_linux::notify::Notifier;
use timevisor_linux::poll::{PollFd, Woken, wait};
use timevisor_linux::signals::Signals;
use timevisor_protocols::channel::{
    ClientConfig, HOST_SOCKET, PORT_NAME, Relay, RelayAction, RelayConfig,
};
use timevisor_time::Duration;
use tracing_subscriber::EnvFilter;

use apps::Apps;
use clockbound::ClockBound;
use hold::Holder;
use host::{Host, Way};
use set_clock::Keeper;

/// The longest wait: no event reports that the host has connected to a port.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time for the host to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Lets applications in this guest share its channel to the host's timevisord, and keeps its
/// CLOCK_REALTIME if asked to.
#[derive(Parser)]
#[command(name = "timevisor-guest", version = timevisor_manual::version!())]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where applications connect
    #[arg(long, value_name = "PATH", default_value = HOST_SOCKET)]
    socket: PathBuf,
    /// The channel: `auto` takes the virtio-serial port if there is one, else vsock; or a port's
    /// path, or `vsock`
    #[arg(long, value_name = "CHANNEL", default_value = "auto")]
    channel: String,
    #[command(flatten)]
    clock: set_clock::Options,
    #[command(flatten)]
    hold: hold::Options,
    #[command(flatten)]
    clockbound: clockbound::Options,
    /// More words in the log (RUST_LOG has the last one)
    #[arg(short, long)]
    verbose: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Wait until the time is known well enough: before services that need it, and after a restore
    WaitSync(wait_sync::WaitSync),
    /// Set CLOCK_REALTIME from the page, once
    SetClock(set_clock::SetClock),
    /// Write the manual pages and completions that packages contain
    #[command(hide = true)]
    WriteManual {
        /// A folder
        folder: PathBuf,
    },
    /// The agent starts this itself
    #[command(name = hold::guard::COMMAND, hide = true)]
    HoldGuard,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = match (&arguments.command, arguments.verbose) {
        (_, true) => "debug",
        (None, false) => "info",
        // Such a command prints one line as its result.
        (Some(_), false) => "warn",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let said = match &arguments.command {
        Some(Command::HoldGuard) => {
            return hold::guard::run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
        Some(Command::WriteManual { folder }) => {
            timevisor_manual::write(Arguments::command(), 8, folder)
                .map(|()| format!("written: {}", folder.display()))
                .map_err(Into::into)
        }
        Some(Command::WaitSync(wait)) => wait.run(),
        Some(Command::SetClock(set)) => set.run(),
        None => return serve(&arguments),
    };
    match said {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("timevisor-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments) -> ExitCode {
    match Agent::start(arguments).and_then(Agent::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Agent {
    relay: Relay,
    apps: Apps,
    host: Host,
    clock: Option<Keeper>,
    holder: Option<Holder>,
    clockbound: Option<ClockBound>,
    /// When the channel or the applications need service without an event.
    serve_at: Duration,
    signals: Signals,
}

impl Agent {
    fn start(arguments: &Arguments) -> Result<Self> {
        let way = match arguments.channel.as_str() {
            "auto" => Way::Automatic(PORT_NAME),
            "vsock" => Way::Vsock,
            path => Way::Port(path.into()),
        };
        let signals = Signals::install().context("cannot install signal handlers")?;
        let apps = Apps::listen(&arguments.socket)?;
        // After the socket has been opened, because only one agent can open it.
        set_clock::clean_up();
        let clock = Keeper::start(&arguments.clock, monotonic())?;
        let holder = Holder::start(&arguments.hold, monotonic())?;
        let clockbound = ClockBound::start(&arguments.clockbound, monotonic())?;
        // Numbers that grow with time, so that neither a host nor an application mistakes us for an
        // earlier agent.
        let number = realtime().floor_nanos().unsigned_abs();
        let client = ClientConfig {
            client: format!("timevisor-guest/{}", env!("CARGO_PKG_VERSION")),
            first_id: number,
            timeout: TIMEOUT,
        };
        let first = NonZeroU64::MIN.saturating_add(number);
        let relay = Relay::new(RelayConfig::new(client, first));
        Notifier::from_environment()
            .and_then(|notifier| notifier.ready())
            .context("cannot tell systemd")?;
        if apps.is_listening() {
            tracing::info!("serving applications at {}", arguments.socket.display());
        }
        let serve_at = monotonic();
        Ok(Self { relay, apps, host: Host::new(way), clock, holder, clockbound, serve_at, signals })
    }

    fn run(mut self) -> Result<()> {
        loop {
            let woken = self.wait()?;
            while let Some(signal) = self.signals.take() {
                if signal == timevisor_linux::signals::Signal::Terminate {
                    return Ok(());
                }
            }
            let now = monotonic();
            // First of all, because programs may read the clock at any time: what must not run
            // with a wrong clock stops, the clock is set, and it goes on.
            if let Some(holder) = &mut self.holder {
                holder.on_timer(now);
            }
            if let Some(clock) = &mut self.clock {
                clock.on_timer(now);
            }
            if let Some(holder) = &mut self.holder {
                holder.clock_was_kept(monotonic());
            }
            if let Some(clockbound) = &mut self.clockbound {
                let drift_ppb = self.clock.as_ref().and_then(Keeper::drift_ppb);
                clockbound.on_timer(monotonic(), drift_ppb);
            }
            // The clock is checked ten times as often as the rest; a wake-up for the clock alone
            // ends here.
            if woken != Woken::Timeout || now >= self.serve_at {
                self.serve(now);
            }
        }
    }

    fn serve(&mut self, now: Duration) {
        let mut actions = Vec::new();
        // The host first: applications may be waiting for its messages.
        actions.extend(self.host.serve(&mut self.relay, now));
        self.apps.accept(&mut self.relay);
        actions.extend(self.apps.serve(&mut self.relay, now));
        actions.extend(self.relay.on_timer(monotonic()));
        self.heed(actions);
        self.host.flush(&mut self.relay);
        let gone = self.apps.flush(&mut self.relay);
        for app in gone {
            let actions = self.relay.app_closed(monotonic(), app);
            self.heed(actions);
        }
        let look = now + LOOK_INTERVAL;
        self.serve_at = self.relay.poll_at().map_or(look, |at| at.min(look));
    }

    fn wait(&mut self) -> Result<Woken> {
        let clock = self.clock.as_ref().map(Keeper::poll_at);
        let holder = self.holder.as_ref().map(Holder::poll_at);
        let clockbound = self.clockbound.as_ref().map(ClockBound::poll_at);
        let next =
            clock.into_iter().chain(holder).chain(clockbound).fold(self.serve_at, Duration::min);
        let due = next - monotonic();
        let nanos = u64::try_from(due.ceil_nanos()).unwrap_or(0);
        let mut fds = vec![PollFd::readable(self.signals.as_fd())];
        fds.extend(self.host.fd(&self.relay));
        fds.extend(self.apps.fds(&self.relay));
        wait(&mut fds, Some(std::time::Duration::from_nanos(nanos))).context("poll failed")
    }

    fn heed(&mut self, actions: Vec<RelayAction>) {
        for action in actions {
            match action {
                RelayAction::CloseApp { app, over } => {
                    tracing::info!("application {app}: {over}");
                    self.apps.close(app);
                }
                RelayAction::HostBegan(welcome) => {
                    tracing::info!("the host serves this guest as {}", welcome.tenant);
                }
                RelayAction::HostLost { reason } => tracing::warn!("the host is gone: {reason}"),
                RelayAction::HostRefused(problem) => tracing::warn!("the host refuses: {problem}"),
                RelayAction::HostUnanswered => tracing::debug!("the host does not answer"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_fit_together() {
        Arguments::command().debug_assert();
        let held = |words: &[&str]| Arguments::try_parse_from(words).is_ok();
        assert!(held(&["timevisor-guest", "--hold", "db", "--hold", "/x", "--hold-notice", "1m"]));
        assert!(held(&["timevisor-guest", "--hold", "db", "--set-clock", "step"]));
        assert!(!held(&["timevisor-guest", "--hold-within", "1ms"]), "nothing is held");
        assert!(held(&["timevisor-guest", "--clockbound", "--set-clock", "step"]));
        assert!(held(&["timevisor-guest", "--clockbound=/run/x"]));
    }
}
