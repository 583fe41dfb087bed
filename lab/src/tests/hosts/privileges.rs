//! Every thread of a running timevisord has the rights that the threat model's table states, and every
//! thread of that table is seen.
//!
//! References and clients that keep silent hold the short-lived threads up: a name server that does
//! not answer, and an NTS server that accepts a connection and says nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::command;
use crate::host::Host;
use crate::interrupt::{self, Late};
use crate::netns::Namespace;
use crate::programs;
use crate::scenario::Context;
use crate::tests::faults::common::reference;
use crate::tests::hosts::nts::{Bench, FOREVER, accepted};

const PATIENCE: Duration = Duration::from_secs(60);
/// A thread that has begun is confined by then, before it has touched anything.
const BEGINNING: Duration = Duration::from_secs(1);
/// Effective user id of a thread without rights.
const NOBODY: &str = "65534";
const NO_CAPABILITY: &str = "0000000000000000";
/// `look` asks the kernel about one process, and is there for microseconds: not always seen. `ages`
/// is where the counter is not invariant, and `cgroup` where something is reserved.
const NOT_HERE: [&str; 3] = ["look", "ages", "cgroup"];

/// What /proc says of one thread.
#[derive(PartialEq, Eq, Debug)]
struct Rights {
    user: String,
    effective: String,
    permitted: String,
    seccomp: String,
    no_new_privileges: String,
}

impl Rights {
    fn of(task: &Path) -> anyhow::Result<Self> {
        let status = fs::read_to_string(task.join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        Ok(Self {
            user: field("Uid:").split_whitespace().nth(1).unwrap_or_default().to_owned(),
            effective: field("CapEff:"),
            permitted: field("CapPrm:"),
            seccomp: field("Seccomp:"),
            no_new_privileges: field("NoNewPrivs:"),
        })
    }

    fn are_none(&self) -> bool {
        self.user == NOBODY
            && self.effective == NO_CAPABILITY
            && self.permitted == NO_CAPABILITY
            && self.seccomp == "2"
            && self.no_new_privileges == "1"
    }
}

pub(crate) fn privileges(ctx: &Context) -> anyhow::Result<String> {
    let table = table()?;
    let bench = Bench::new(ctx)?;
    let at = Namespace::create()?;
    let (ip, server) = (IpAddr::from(at.host()), at.address().to_string());
    let lines = bench.lines(&at, FOREVER, "server")?;
    let _server = bench.chronyd(at, 123, "server", &lines)?;
    let files = bench.certify(ip, "own")?;

    let _silent_name_server = UdpSocket::bind("127.0.0.97:53")?;
    let resolv = ctx.path("resolv.conf");
    fs::write(&resolv, "nameserver 127.0.0.97\n")?;
    let resolv = resolv.display().to_string();
    command::run("mount", &["--bind", &resolv, "/etc/resolv.conf"])?;
    let silent_keys = TcpListener::bind("127.0.0.1:0")?;
    let port = silent_keys.local_addr()?.port();
    let silent = reference("127.0.0.1")
        + &format!(
            "nts = true\nnts_ke_port = {port}\nca_file = \"{}\"\n",
            bench.ca_file().display()
        );

    let mut host = Host::new(ctx)?;
    let own = format!(
        "[server]\nlisten = [\"{ip}:123\"]\nrate_interval = \"0s\"\nnts_certificate = \"{}\"\nnts_key = \"{}\"\n",
        files.certificate.display(),
        files.key.display()
    );
    let writers = ["audit", "clockbound"].map(|name| {
        let directory = host.directory().join(name);
        format!("[{name}]\nenabled = true\ndirectory = \"{}\"\n", directory.display())
    });
    let references = [bench.reference(&server), silent, reference("time.example.net")];
    host.start(&[references.concat(), own, writers.concat()].concat())?;
    let pid = daemon(&host)?;
    // A local program that talks nonsense; the daemon parses it all the same.
    let mut client = UnixStream::connect(host.directory().join("timelines"))?;
    client.write_all(b"nonsense")?;

    let mut seen = BTreeSet::new();
    let all = interrupt::poll_until(PATIENCE, || {
        host.check_alive()?;
        seen.extend(judge(pid, &table)?);
        let missing =
            table.keys().any(|name| !NOT_HERE.contains(&name.as_str()) && !seen.contains(name));
        Ok((!missing).then_some(()))
    })?;
    let names = || seen.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    all.context(Late).with_context(|| format!("only these threads were seen: {}", names()))?;
    // What they are for works in them. (One of three references is no majority.)
    host.wait_until("authentic answers", |host| Ok(accepted(host, &server)? > 10))?;
    let without = seen.iter().filter(|name| !table[*name]).count();
    ensure!(without >= 6, "{without} threads without rights: {}", names());
    Ok(format!("as the threat model says: {}; {without} of them without rights", names()))
}

/// Judges every thread that there is now, and returns their names.
fn judge(pid: u32, table: &BTreeMap<String, bool>) -> anyhow::Result<Vec<String>> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let main = Rights::of(&tasks.join(pid.to_string()))?;
    ensure!(main.user == "0" && main.effective != NO_CAPABILITY, "the daemon has {main:?}");
    let mut names = Vec::new();
    for entry in fs::read_dir(&tasks)?.flatten() {
        let Some(name) = name_of(&entry.path()) else { continue };
        let has_rights =
            table.get(&name).with_context(|| format!("the threat model has no thread {name}"))?;
        let fine = |rights: &Rights| if *has_rights { *rights == main } else { rights.are_none() };
        if Rights::of(&entry.path()).is_ok_and(|rights| !fine(&rights)) {
            std::thread::sleep(BEGINNING);
            // Another thread may have its number by now, which begins as this one did.
            if name_of(&entry.path()).as_ref() == Some(&name)
                && let Ok(rights) = Rights::of(&entry.path())
            {
                ensure!(fine(&rights), "{name} has {rights:?}");
            }
        }
        names.push(name);
    }
    Ok(names)
}

/// `None` if it has ended.
fn name_of(task: &Path) -> Option<String> {
    fs::read_to_string(task.join("comm")).ok().map(|name| name.trim().to_owned())
}

/// The threads of the threat model's table, and whether they have the daemon's rights.
fn table() -> anyhow::Result<BTreeMap<String, bool>> {
    let page = programs::workspace()?.join("docs/explanation/threat-model.md");
    let text = fs::read_to_string(page)?;
    let (_, rows) = text.split_once("| thread |").context("the threat model has no threads")?;
    let mut table = BTreeMap::new();
    for row in rows.lines().skip(2).take_while(|row| row.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (name, user, capabilities) = (cells[1].trim_matches('`'), cells[2], cells[3]);
        let has_rights = match (user, capabilities) {
            ("the daemon's", "the daemon's") => true,
            ("nobody", "none") => false,
            _ => bail!("a row that nobody understands: {row}"),
        };
        table.insert(name.to_owned(), has_rights);
    }
    Ok(table)
}

/// The daemon's process: not a script that starts it under a unit.
fn daemon(host: &Host) -> anyhow::Result<u32> {
    let pid = host.pid()?;
    if name_of(Path::new(&format!("/proc/{pid}"))).as_deref() == Some("timevisord") {
        return Ok(pid);
    }
    let processes = fs::read_dir("/proc")?.flatten();
    let found = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found = found.filter(|pid: &u32| {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let line = fs::read(folder.join("cmdline")).unwrap_or_default();
        name_of(&folder).as_deref() == Some("timevisord") && !line.ends_with(b"\0--helper\0")
    });
    found.next().context("no timevisord runs")
}
