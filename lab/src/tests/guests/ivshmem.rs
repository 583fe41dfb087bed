//! A guest whose kernel does not know vmclock reads the host's time from an ivshmem device and
//! cannot write to it.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::{Client, Way, boot, compare_many};
use crate::comparison::Worst;
use crate::host::{Host, mentions};
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::tests::guests::clock::check_run;

/// Linux 6.1, without ptp_vmclock.
const KERNEL: &str = "bookworm";
/// The memory of the first ivshmem device, as the guest's shell finds it.
const RESOURCE: &str =
    r#"$(dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device | head -n 1))/resource2"#;

pub(crate) fn ivshmem(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut texts = Vec::new();
    for (name, qemu) in [("old", ctx.qemu()?), ("new", ctx.qemu_10()?)] {
        let mut client = boot(ctx, &host, KERNEL, &qemu, Way::Ivshmem, name, "tai")?;
        let text = check(&host, &mut client)
            .with_context(|| format!("QEMU {}.{}", qemu.version.0, qemu.version.1))?;
        texts.push(format!("QEMU {}: {text}", version(&qemu)));
    }
    Ok(texts.join("; "))
}

fn version(qemu: &Qemu) -> String {
    format!("{}.{}", qemu.version.0, qemu.version.1)
}

fn check(host: &Host, client: &mut Client) -> anyhow::Result<String> {
    let row = host.vm(&client.name)?;
    ensure!(row["delivery"] == "ivshmem" && row["status"] == "synchronized", "{row}");
    let devices = client.guest.sh("ls /dev/vmclock0 /dev/ptp0 2>&1 || true")?;
    ensure!(!devices.contains("/dev/vmclock0\n"), "a vmclock device: {devices}");
    let worst = compare_many(host, client, 100)?;
    let reads = check_run(client, 3)?;

    let cannot = cannot_write(host, client)?;
    let again = compare_many(host, client, 20)?;
    users(client)?;
    cannot_migrate(client)?;
    Ok(format!("{}; {reads} more reads, none back; {cannot}; then {}", text(&worst), text(&again)))
}

fn text(worst: &Worst) -> String {
    format!(
        "{} readings: |guest - host| <= {} ns at the same counter, bounds <= +-{:.1} us",
        worst.count,
        worst.difference,
        worst.half_width as f64 / 1000.0
    )
}

/// The guest's root maps the memory for writing and tries to take the page over: this has no
/// effect, neither inside the guest nor outside.
fn cannot_write(host: &Host, client: &mut Client) -> anyhow::Result<String> {
    let page = host.directory().join("vms").join(&client.name).join("page");
    let identity = || anyhow::Ok(std::fs::read(&page)?.get(0x100..0x140).map(<[u8]>::to_vec));
    let disruption = |client: &mut Client| {
        Ok::<_, anyhow::Error>(client.reader.ask("read")?["disruption"].clone())
    };
    let before = (identity()?, disruption(client)?);
    let answer: Value = serde_json::from_str(&client.guest.sh(&format!("lab-forge {RESOURCE}"))?)?;
    ensure!(
        answer["open"].is_null() && answer["forged"] == false,
        "the guest's root was to map the memory for writing, to no effect: {answer}"
    );
    let after = (identity()?, disruption(client)?);
    ensure!(before == after, "the guest has changed its page: {before:?}, then {after:?}");
    Ok("a page taken over by the guest's root stays as it was".to_owned())
}

/// sysfs gives root access to the memory; the command in the error message gives everybody access.
fn users(client: &mut Client) -> anyhow::Result<()> {
    let nobody = "su nobody -s /bin/sh -c 'timevisor now --json' 2>&1";
    client.guest.sh("mkdir -p /etc; echo nobody:x:65534:65534::/:/bin/sh > /etc/passwd")?;
    let refused = client.guest.sh(&format!("{nobody} || true"))?;
    mentions(&refused, &["run as root, or once as root `chmod a+r /sys/bus/pci/devices/"])?;
    client.guest.sh(&format!("chmod a+r {RESOURCE}"))?;
    mentions(&client.guest.sh(nobody)?, &[r#""status":"synchronized""#])
}

/// A migration would leave the guest with another host's page or none, so QEMU refuses it and the
/// guest keeps running.
fn cannot_migrate(client: &mut Client) -> anyhow::Result<()> {
    let target = json!({"uri": "unix:/tmp/no-such-destination"});
    let refused = client.guest.qmp().execute("migrate", &target);
    let refused = refused.err().context("QEMU would migrate an ivshmem device")?.to_string();
    mentions(&refused, &["ivshmem"])?;
    client.reader.ask("read").map(drop)
}
