//! NTS against chronyd and ntpd-rs: key establishment, authenticated packets, cookies, new keys.
//! Also the helpers that the tests of NTS faults share.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::authority::{Authority, ServerFiles};
use crate::chronyd::Chronyd;
use crate::command;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::netns::Namespace;
use crate::ntpd_rs::NtpdRs;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference, reference_row};

/// The lab's servers are certified until this year.
pub(crate) const FOREVER: i32 = 2119;

/// A test's certificate authority, and chronyds that it has certified.
pub(crate) struct Bench<'c> {
    pub(crate) ctx: &'c Context,
    authority: Authority,
}

impl<'c> Bench<'c> {
    pub(crate) fn new(ctx: &'c Context) -> anyhow::Result<Self> {
        let version = command::run("chronyd", &["-v"])?;
        ensure!(version.contains("+NTS"), "this chronyd has no NTS: {version}");
        let bench = Self { ctx, authority: Authority::new()? };
        bench.authority.write(&bench.ca_file())?;
        Ok(bench)
    }

    /// The file with the authority.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.ctx.path("authority.pem")
    }

    /// Configuration lines of a chronyd whose certificate is valid until the end of `last_year`.
    pub(crate) fn lines(
        &self,
        at: &Namespace,
        last_year: i32,
        name: &str,
    ) -> anyhow::Result<String> {
        let address = at.address().into();
        let files = self.authority.certify(address, last_year, self.ctx.log_dir(), name)?;
        let dump = self.ctx.path(&format!("{name}-dump"));
        fs::create_dir_all(&dump)?;
        Ok(format!(
            "local stratum 1\nntsservercert {}\nntsserverkey {}\nntsdumpdir {}\nntsprocesses 0\n",
            files.certificate.display(),
            files.key.display(),
            dump.display()
        ))
    }

    /// A certificate for a server at `address`, and its key.
    pub(crate) fn certify(&self, address: IpAddr, name: &str) -> anyhow::Result<ServerFiles> {
        self.authority.certify(address, FOREVER, self.ctx.log_dir(), name)
    }

    fn ntpd_rs(&self, at: Namespace, files: &ServerFiles, name: &str) -> anyhow::Result<NtpdRs> {
        let log = self.ctx.path(&format!("{name}.ntpd-rs.log"));
        NtpdRs::start(&self.ctx.ntpd_rs()?, at, files, &log)
    }

    /// An ntpd-rs in its namespace, with a certificate for its address.
    pub(crate) fn ntpd_rs_in(&self, at: Namespace, name: &str) -> anyhow::Result<NtpdRs> {
        let files = self.certify(at.address().into(), name)?;
        self.ntpd_rs(at, &files, name)
    }

    pub(crate) fn chronyd(
        &self,
        at: Namespace,
        port: u16,
        name: &str,
        lines: &str,
    ) -> anyhow::Result<Chronyd> {
        Chronyd::start_in(at, port, name, self.ctx.log_dir(), lines)
    }

    /// A reference that is polled ten times a second and trusts this bench's authority.
    pub(crate) fn reference(&self, address: &str) -> String {
        nts_reference(address, &self.ca_file())
    }
}

pub(crate) fn nts_reference(address: &str, ca_file: &std::path::Path) -> String {
    reference(address) + &format!("nts = true\nca_file = \"{}\"\n", ca_file.display())
}

pub(crate) fn accepted(host: &Host, name: &str) -> anyhow::Result<u64> {
    reference_row(host, name)?["accepted"].as_u64().context("no count")
}

pub(crate) fn refused(host: &Host, name: &str, reason: &str) -> anyhow::Result<u64> {
    Ok(reference_row(host, name)?["rejected"][reason].as_u64().unwrap_or(0))
}

/// How many times keys have been established.
pub(crate) fn keyed(host: &Host) -> usize {
    host.log_text().matches("NTS keys and 8 cookies").count()
}

pub(crate) fn synchronized(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let at = Namespace::create()?;
    let lines = bench.lines(&at, FOREVER, "server")?;
    let name = at.address().to_string();
    let server = bench.chronyd(at, 123, "server", &lines)?;
    let mut host = Host::new(ctx)?;
    host.start(&bench.reference(&name))?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    host.wait_until("many more exchanges than cookies", |h| {
        honest_reading(&page)?;
        Ok(accepted(h, &name)? > 40)
    })?;
    let row = reference_row(&host, &name)?;
    ensure!(row["kind"] == "nts" && row["status"] == "selected", "{row}");
    mentions(&row["detail"].to_string(), &["answers are authentic"])?;
    ensure!(keyed(&host) == 1, "keys were established {} times", keyed(&host));
    let exchanges = accepted(&host, &name)?;

    // The same keys after a restart: chronyd keeps them in its dump directory, so cookies stay
    // valid.
    let at = terminated(server)?;
    let server = bench.chronyd(at, 123, "server-again", &lines)?;
    answered_again(&host, &name)?;
    ensure!(keyed(&host) == 1, "keys were established anew without need");

    // New keys: the server cannot decrypt our cookies and says so, and we request new ones.
    let at = terminated(server)?;
    fs::remove_dir_all(ctx.path("server-dump"))?;
    fs::create_dir_all(ctx.path("server-dump"))?;
    let _server = bench.chronyd(at, 123, "server-anew", &lines)?;
    host.wait_until("keys are established anew", |h| Ok(keyed(h) == 2))?;
    answered_again(&host, &name)?;
    let naks = refused(&host, &name, "nts_nak")?;
    ensure!(naks > 0, "the server did not say NTSN: {}", reference_row(&host, &name)?);
    honest_reading(&page)?;
    Ok(format!(
        "{exchanges} authentic exchanges with 8 cookies at first; {naks} NAK after new server keys"
    ))
}

pub(crate) fn ntpd_rs(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let at = Namespace::create()?;
    let files = bench.certify(at.address().into(), "server")?;
    let name = at.address().to_string();
    let server = bench.ntpd_rs(at, &files, "first")?;
    let mut host = Host::new(ctx)?;
    host.start(&bench.reference(&name))?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    answered_again(&host, &name)?;
    honest_reading(&page)?;
    ensure!(keyed(&host) == 1, "keys were established {} times", keyed(&host));
    let _server = bench.ntpd_rs(server.stop(), &files, "second")?;
    host.wait_until("keys are established anew", |h| Ok(keyed(h) == 2))?;
    answered_again(&host, &name)?;
    honest_reading(&page)?;
    let (exchanges, naks) = (accepted(&host, &name)?, refused(&host, &name, "nts_nak")?);
    ensure!(naks > 0, "the server did not say NTSN: {}", reference_row(&host, &name)?);
    Ok(format!("{exchanges} authentic exchanges; {naks} NAK after its restart"))
}

/// SIGTERM, after which chronyd saves its keys.
fn terminated(server: Chronyd) -> anyhow::Result<Namespace> {
    let pid = server.pid().to_string();
    command::run("kill", &["-TERM", &pid])?;
    let ended =
        || Ok((!std::path::Path::new("/proc").join(&pid).join("exe").exists()).then_some(()));
    interrupt::poll_until(std::time::Duration::from_secs(10), ended)?
        .context("chronyd does not end on SIGTERM")?;
    Ok(server.stop())
}

pub(crate) fn answered_again(host: &Host, name: &str) -> anyhow::Result<()> {
    let before = accepted(host, name)?;
    host.wait_until("the server answers again", |h| Ok(accepted(h, name)? > before + 20))
}
