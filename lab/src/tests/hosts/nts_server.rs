//! timevisord's own NTP server with NTS: a chronyd, an ntpd-rs and a timevisord authenticate its
//! time, its certificate is replaced while it runs, and cookies outlive a restart.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_protocols::ntp::LeapIndicator;

use crate::authority::ServerFiles;
use crate::chronyd::Chronyd;
use crate::host::{Host, mentions};
use crate::interrupt::{self, Late};
use crate::netns::Namespace;
use crate::ntpd_rs::NtpdRsClient;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference_row};
use crate::tests::hosts::ntp_server::ask;
use crate::tests::hosts::nts::{Bench, accepted, answered_again, keyed, nts_reference};

const PATIENCE: Duration = Duration::from_secs(60);
/// The port of the ntpd-rs, beside the chronyd in one namespace.
const NTPD_RS_PORT: u16 = 1123;

pub(crate) fn served(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let network = Namespace::create()?;
    let ip = IpAddr::from(network.host());
    let files = bench.certify(ip, "server")?;
    let mut server = Host::new(ctx)?;
    server.start(&format!(
        "[[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n\
         [server]\nlisten = [\"{ip}:123\"]\nrate_interval = \"0s\"\n\
         nts_certificate = \"{}\"\nnts_key = \"{}\"\n",
        files.certificate.display(),
        files.key.display()
    ))?;
    server.wait_synchronized(10_000)?;

    let name = ip.to_string();
    let mut ours = Host::further(ctx, "timevisord")?;
    ours.start(&bench.reference(&name))?;
    ours.wait_synchronized(20_000)?;
    let page = HostPage::open(ours.directory())?;
    ours.wait_until("many more exchanges than cookies", |h| {
        honest_reading(&page)?;
        Ok(accepted(h, &name)? > 40)
    })?;
    let row = reference_row(&ours, &name)?;
    mentions(&row["detail"].to_string(), &["answers are authentic", "precise bounds"])?;
    let rejected = row["rejected"].as_object().is_some_and(serde_json::Map::is_empty);
    ensure!(rejected && keyed(&ours) == 1, "keyed {} times: {row}", keyed(&ours));

    // Both answer as synchronized only when they follow us, their only source. The chronyd's start
    // waits for that.
    let (chronyd, measurements) = chronyd(ctx, network, ip, &bench.ca_file())?;
    let mut ntpd_rs = NtpdRsClient::start(
        &ctx.ntpd_rs()?,
        chronyd.namespace(),
        NTPD_RS_PORT,
        ip,
        &bench.ca_file(),
        &ctx.path("client.ntpd-rs.log"),
    )?;
    follows("chronyd", chronyd.address(), || Ok(()))?;
    let at = ntpd_rs.address();
    follows("ntpd-rs", at, || ntpd_rs.check_alive())?;
    ensure!(sessions(&server, "established")? == 3, "{}", told(&server)?);
    ensure!(requests(&server, "nts_nak")? == 0, "{}", told(&server)?);

    renewed(ctx, ip, &files, &server)?;

    // The same cookies after a restart: nobody has to come for new ones.
    server.terminate()?;
    server.restart()?;
    let before = lines(&measurements);
    answered_again(&ours, &name)?;
    let after = interrupt::poll_until(PATIENCE, || {
        ntpd_rs.check_alive()?;
        let count = lines(&measurements);
        Ok((count >= before + 8).then_some(count))
    })?;
    after.context(Late).context("chronyd gets no answers after the restart")?;
    // All three have asked since: the two others once a second.
    let own = accepted(&ours, &name)?;
    ensure!(sessions(&server, "established")? == 0, "new keys: {}", told(&server)?);
    ensure!(requests(&server, "nts_nak")? == 0, "{}", told(&server)?);
    ensure!(keyed(&ours) == 1, "keyed {} times", keyed(&ours));
    follows("chronyd", chronyd.address(), || Ok(()))?;
    follows("ntpd-rs", at, || ntpd_rs.check_alive())?;
    honest_reading(&page)?;
    let answered = requests(&server, "nts")?;
    Ok(format!(
        "chronyd, ntpd-rs and timevisord ({own} exchanges) follow with NTS; a new certificate in use; {answered} \
         authentic answers after a restart without new keys"
    ))
}

/// A chronyd whose only source is `server`, and the file with its measurements.
fn chronyd(
    ctx: &Context,
    network: Namespace,
    server: IpAddr,
    ca_file: &Path,
) -> anyhow::Result<(Chronyd, PathBuf)> {
    let logs = ctx.path("client");
    fs::create_dir_all(&logs)?;
    let lines = format!(
        "server {server} nts iburst minpoll 0 maxpoll 0 xleave\nnosystemcert\nntstrustedcerts {}\n\
         logdir {}\nlog measurements\n",
        ca_file.display(),
        logs.display()
    );
    let client = Chronyd::start_in(network, 123, "client", ctx.log_dir(), &lines)?;
    Ok((client, logs.join("measurements.log")))
}

/// Waits until the client at `address` says that it is synchronized, one below us.
fn follows(
    what: &str,
    address: SocketAddr,
    mut check: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let followed = interrupt::poll_until(PATIENCE, || {
        check()?;
        let (packet, _) = ask(address)?;
        Ok((packet.leap != LeapIndicator::Unsynchronized && packet.stratum == 11).then_some(()))
    })?;
    followed.context(Late).with_context(|| format!("{what} does not follow us"))
}

/// Another authority's certificate takes the place of the one in use: who trusts only that one gets
/// keys without a restart.
fn renewed(ctx: &Context, ip: IpAddr, files: &ServerFiles, server: &Host) -> anyhow::Result<()> {
    let ctx = ctx.further("renewed")?;
    let bench = Bench::new(&ctx)?;
    let fresh = bench.certify(ip, "renewed")?;
    // Into the same places, as certbot's links lead there.
    fs::rename(&fresh.certificate, &files.certificate)?;
    fs::rename(&fresh.key, &files.key)?;
    server.wait_until("the new certificate is in use", |h| {
        Ok(h.log_text().contains("NTS serves the new certificate"))
    })?;
    let mut host = Host::new(&ctx)?;
    let name = ip.to_string();
    host.start(&nts_reference(&name, &bench.ca_file()))?;
    host.wait_synchronized(20_000)?;
    answered_again(&host, &name)
}

fn told(server: &Host) -> anyhow::Result<serde_json::Value> {
    Ok(server.json(&["status"])?["server"].clone())
}

fn requests(server: &Host, what: &str) -> anyhow::Result<u64> {
    told(server)?["requests"][what].as_u64().with_context(|| format!("no count of {what}"))
}

fn sessions(server: &Host, what: &str) -> anyhow::Result<u64> {
    told(server)?["nts"]["sessions"][what].as_u64().with_context(|| format!("no count of {what}"))
}

/// Lines of measurements, of which some are headings.
fn lines(measurements: &Path) -> usize {
    fs::read_to_string(measurements).unwrap_or_default().lines().count()
}
