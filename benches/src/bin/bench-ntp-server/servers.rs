//! timevisord and chronyd, each serving this machine's clock at a port of its own on the loopback,
//! with NTS by a certificate that is made here.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::ntp::{LeapIndicator, Mode, NtpTimestamp, Packet};
use timevisor_protocols::nts::shared::{Sealer, Secret};
use timevisor_protocols::nts::{CertificateTime, Established, Exchange, TrustAnchors};
use zeroize::Zeroizing;

/// A cluster that timevisord is the root of.
pub(crate) const OPEN: &str = "open";
/// One with a key.
pub(crate) const SEALED: &str = "sealed";

/// A running server; it is killed when dropped.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    /// Where it gives keys.
    keys: SocketAddr,
    trust: TrustAnchors,
}

/// What the cluster with a key has in common: here, nothing is kept from anybody.
fn secret() -> Secret {
    Secret::new(Zeroizing::new(std::array::from_fn(|at| u8::try_from(at).unwrap_or(0))))
}

fn secret_file(folder: &Path) -> PathBuf {
    folder.join("sealed.key")
}

/// What its members seal their questions with.
pub(crate) fn sealer() -> Result<Sealer> {
    let keys = secret().cookie_keys(Name::new(SEALED).context("a short name")?);
    Ok(Sealer::new(keys, &Zeroizing::new([[1; 32], [2; 32]])))
}

/// The files of a certificate for the loopback.
struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    trust: TrustAnchors,
}

impl Identity {
    fn new(folder: &Path, name: &str) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec![Ipv4Addr::LOCALHOST.to_string()])?;
        let path = |end: &str| folder.join(format!("{name}.{end}"));
        let (certificate, key) = (path("crt"), path("key"));
        fs::write(&certificate, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        let trust = TrustAnchors::from_pem(made.cert.pem().as_bytes())?;
        Ok(Self { certificate, key, trust })
    }
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
        let (address, keys) = (free_address()?, free_tcp_address()?);
        let identity = Identity::new(folder, "timevisord")?;
        let config = format!(
            "run_directory = \"{}\"\n\
             [clock]\ntai_offset = 37\n\
             [guests]\ndiscover = false\n\
             [[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n\
             [server]\nlisten = [\"{address}\"]\nrate_interval = \"0s\"\n\
             nts_certificate = \"{}\"\nnts_key = \"{}\"\nnts_ke_listen = [\"{keys}\"]\n\
             [[cluster]]\nname = \"{OPEN}\"\nchildren = 2000\nchildren_per_address = 2000\n\
             [[cluster]]\nname = \"{SEALED}\"\nchildren = 2000\nchildren_per_address = 2000\nkey = {:?}\n",
            folder.join("run").display(),
            identity.certificate.display(),
            identity.key.display(),
            secret_file(folder)
        );
        let secret = secret();
        let mut file = File::options();
        let file = file.write(true).create_new(true).mode(0o600).open(secret_file(folder));
        file?.write_all(secret.text().as_bytes())?;
        let path = folder.join("timevisord.toml");
        fs::write(&path, config)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(path);
        Self::start(command, &folder.join("timevisord.log"), address, keys, identity.trust)
    }

    /// chronyd as a stratum 1 server of the machine's own clock, without rate limit (its default).
    pub(crate) fn chronyd(folder: &Path) -> Result<Self> {
        let (address, keys) = (free_address()?, free_tcp_address()?);
        let identity = Identity::new(folder, "chronyd")?;
        // A copy, because a distribution's AppArmor profile for /usr/sbin/chronyd forbids our
        // directory.
        let program = folder.join("chronyd");
        fs::copy("/usr/sbin/chronyd", &program).context("install the package chrony")?;
        let config = format!(
            "local stratum 1\nallow\nport {}\nbindaddress 127.0.0.1\ncmdport 0\nbindcmdaddress /\npidfile {}\n\
             ntsport {}\nntsservercert {}\nntsserverkey {}\nntsprocesses 0\n",
            address.port(),
            folder.join("chronyd.pid").display(),
            keys.port(),
            identity.certificate.display(),
            identity.key.display()
        );
        let path = folder.join("chrony.conf");
        fs::write(&path, config)?;
        let mut command = Command::new(program);
        command.args(["-x", "-d", "-u", "root", "-f"]).arg(path);
        Self::start(command, &folder.join("chronyd.log"), address, keys, identity.trust)
    }

    fn start(
        mut command: Command,
        log: &Path,
        address: SocketAddr,
        keys: SocketAddr,
        trust: TrustAnchors,
    ) -> Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Self { child, address, keys, trust };
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

    /// Keys and cookies, as any client gets them.
    pub(crate) fn establish(&self) -> Result<Established> {
        let time = CertificateTime::of_machine(realtime());
        let name = self.keys.ip().to_string();
        let mut exchange = Exchange::start(&name, &self.trust, time)?;
        let mut stream = TcpStream::connect(self.keys)
            .with_context(|| format!("no keys at {}: does this chronyd have NTS?", self.keys))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut buffer = [0; 4096];
        loop {
            stream.write_all(&exchange.output())?;
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                return Err(exchange.on_end().into());
            }
            if let Some(established) = exchange.on_bytes(&buffer[..len])? {
                let _ = stream.write_all(&exchange.output());
                return Ok(established);
            }
        }
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

/// The same for TCP.
fn free_tcp_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
