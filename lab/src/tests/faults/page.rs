//! Page files that are not ours, are not pages, or whose writer died: how the daemon and `timevisor
//! now` handle them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use anyhow::ensure;
use timevisor_clock_page::abi;

use crate::host::{Host, mentions};
use crate::ntp_impostor::Impostor;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{complaint, honest_reading, reference, refusal};

/// Puts something else in place of the page.
type Make<'a> = &'a dyn Fn() -> std::io::Result<()>;

pub(crate) fn page(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let lines = reference(&server.address());
    let mut host = Host::new(ctx)?;
    host.start(&lines)?;
    host.wait_synchronized(10_000)?;
    let good = fs::read(host.directory().join("clock"))?;
    let readers = unreadable(ctx, &host, &good)?;
    host.terminate()?;

    let page = host.directory().join("clock");
    let path = page.display().to_string();
    let target = ctx.path("target");
    fs::write(&target, &good)?;
    let refusals: [(&str, Make<'_>, &[&str]); 6] = [
        ("wrong size", &|| fs::write(&page, [0; 100]), &["100 bytes, not 4096", "remove it"]),
        ("an nvdimm's size", &|| File::create(&page)?.set_len(2 << 20), &["2097152 bytes"]),
        ("a symlink", &|| symlink(&target, &page), &["cannot open the page file", "symbolic link"]),
        (
            "another user's",
            &|| fs::write(&page, &good).and_then(|()| chown(&page, Some(65534), None)),
            &["belongs to user 65534", "remove it, or give it back with chown"],
        ),
        (
            "group-writable",
            &|| {
                fs::write(&page, &good)
                    .and_then(|()| fs::set_permissions(&page, Permissions::from_mode(0o664)))
            },
            &["mode 0664", "group or others may write it", "chmod 0644"],
        ),
        ("a directory", &|| fs::create_dir(&page), &["cannot open the page file", "directory"]),
    ];
    let count = refusals.len();
    for (what, make, parts) in refusals {
        let _ = fs::remove_file(&page);
        make()?;
        let text = refusal(ctx, &host, &lines)?;
        mentions(&text, &[&path])?;
        mentions(&text, parts).map_err(|e| e.context(what))?;
        // Readers refuse what the daemon refuses, except for the nvdimm's size, which is valid for
        // some pages.
        if what != "an nvdimm's size" {
            mentions(&complaint(&host, &["now"])?, &[&path]).map_err(|e| e.context(what))?;
        }
    }
    ensure!(fs::read(&target)? == good, "the link's target was written");
    fs::remove_dir(&page)?;
    // Garbage with the right size and owner is a page to take over; nothing in it is believed.
    fs::write(&page, [0xa5; 4096])?;
    fs::set_permissions(&page, Permissions::from_mode(0o644))?;
    fs::remove_file(host.directory().join("recovery.json"))?;
    host.start(&lines)?;
    host.wait_synchronized(10_000)?;
    honest_reading(&HostPage::open(host.directory())?)?;
    Ok(format!("daemon refuses {count} kinds of files, `now` {readers} kinds of pages"))
}

/// Runs `timevisor now --page` on everything that is not a page; the true page stays unchanged.
fn unreadable(ctx: &Context, host: &Host, good: &[u8]) -> anyhow::Result<usize> {
    let file = ctx.path("page");
    let other = Host::further(ctx, "empty")?;
    let nowhere = complaint(&other, &["now"])?;
    let directory = other.directory().display().to_string();
    mentions(&nowhere, &["there is no clock page", &directory, "start timevisord"])?;
    let changed = |at: usize, bytes: &[u8]| {
        let mut page = good.to_vec();
        page[at..at + bytes.len()].copy_from_slice(bytes);
        page
    };
    let own_sequence = abi::entry::AT_FIRST + 8 * abi::entry::SEQUENCE;
    let counter = abi::entry::AT_FIRST + 8 * abi::entry::META + 3;
    let cases: [(&str, Vec<u8>, &[&str]); 8] = [
        ("empty", Vec::new(), &["has 0 bytes, not 4096"]),
        ("short", good[..4095].to_vec(), &["has 4095 bytes, not 4096"]),
        ("zeroes", vec![0; 4096], &["no clock page", "VCLK"]),
        ("text", b"hello ".repeat(700)[..4096].to_vec(), &["no clock page", "VCLK"]),
        ("QEMU's own page", changed(abi::header::AT_MAGIC, &[0; 8]), &["no Timevisor header"]),
        ("another version", changed(abi::header::AT_VERSION, &[9]), &["version 9", "upgrade"]),
        ("another counter", changed(counter, &[0]), &["cntvct", "does not have"]),
        (
            "a dead writer",
            changed(own_sequence, &[1]),
            &["in the middle of an update", "restart timevisord"],
        ),
    ];
    let count = cases.len() + 3;
    for (what, bytes, parts) in cases {
        fs::write(&file, &bytes)?;
        let text = now(host, &file)?;
        mentions(&text, parts).map_err(|e| e.context(what))?;
    }
    mentions(&now(host, Path::new("/nowhere/page"))?, &["/nowhere/page"])?;
    mentions(&now(host, Path::new("/dev/null"))?, &["/dev/null"])?;
    // Everything in the page except the vmclock block's sequence: guest drivers use that one, and
    // our readers use their own.
    fs::write(&file, good)?;
    File::options()
        .write(true)
        .open(&file)?
        .write_all_at(&[1], abi::vmclock::AT_SEQUENCE as u64)?;
    host.cli(&["now", "--page", &file.display().to_string()])?;
    host.cli(&["now"])?;
    Ok(count)
}

fn now(host: &Host, page: &Path) -> anyhow::Result<String> {
    complaint(host, &["now", "--page", &page.display().to_string()])
}
