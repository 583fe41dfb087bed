//! timevisord and chronyd, each serving this machine's clock at a port of its own on the loopback.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use timevisor_protocols::ntp::{LeapIndicator, Mode, NtpTimestamp, Packet};

/// A running server; it is killed when dropped.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// timevisord, built beside this program, with its run directory `run` below `folder`. The
    /// bounds are as good as the operator's word, which costs the server nothing: it reads them
    /// from the page in any case.
    pub(crate) fn timevisord(folder: &Path) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("timevisord");
        if !program.exists() {
            bail!("{} is missing: cargo build --release -p timevisord", program.display());
        }
        let address = free_address()?;
        let config = format!(
            "run_directory = \"{}\"\n\
             [guests]\ndiscover = false\n\
             [[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n\
             [server]\nlisten = [\"{address}\"]\nrate_interval = \"0s\"\n",
            folder.join("run").display()
        );
        let path = folder.join("timevisord.toml");
        fs::write(&path, config)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(path);
        Self::start(command, &folder.join("timevisord.log"), address)
    }

    /// chronyd as a stratum 1 server of the machine's own clock, without rate limit (its default).
    pub(crate) fn chronyd(folder: &Path) -> Result<Self> {
        let address = free_address()?;
        // A copy, because a distribution's AppArmor profile for /usr/sbin/chronyd forbids our
        // directory.
        let program = folder.join("chronyd");
        fs::copy("/usr/sbin/chronyd", &program).context("install the package chrony")?;
        let config = format!(
            "local stratum 1\nallow\nport {}\nbindaddress 127.0.0.1\ncmdport 0\nbindcmdaddress /\npidfile {}\n",
            address.port(),
            folder.join("chronyd.pid").display()
        );
        let path = folder.join("chrony.conf");
        fs::write(&path, config)?;
        let mut command = Command::new(program);
        command.args(["-x", "-d", "-u", "root", "-f"]).arg(path);
        Self::start(command, &folder.join("chronyd.log"), address)
    }

    fn start(mut command: Command, log: &Path, address: SocketAddr) -> Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Self { child, address };
        server.wait().with_context(|| fs::read_to_string(log).unwrap_or_default())?;
        Ok(server)
    }

    /// Until it answers with a clock that is synchronized.
    fn wait(&mut self) -> Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        socket.connect(self.address)?;
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended: {status}");
            }
            let mut buffer = [0; 128];
            let request = Packet::request(NtpTimestamp::from_bits(1), 0).to_bytes();
            if socket.send(&request).is_ok()
                && let Ok(len) = socket.recv(&mut buffer)
                && let Ok((answer, _)) = Packet::parse(&buffer[..len])
                && answer.mode == Mode::Server
                && answer.leap != LeapIndicator::Unsynchronized
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the server at {} gave no time within 20 s", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
