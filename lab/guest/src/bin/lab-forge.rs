//! lab-forge: tries to change a clock page that its user may only read, and prints the result of
//! each attempt as JSON.
//!
//! `lab-forge PATH` prints `null` where the kernel allowed the attempt, else the error number. If
//! it gets a writable mapping, it takes the page over as a timevisord would, for a VM named
//! `forged`; `forged` says whether the page shows it. The caller must check what the page's owner
//! sees.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use timevisor_clock_page::abi::header::AT_VM_ID;
use timevisor_clock_page::{CounterId, Identity, PageWriter};
use timevisor_linux::mapping::{Access, MapError, PAGE_BYTES, SharedMapping};
use timevisor_linux::page::{ReadPage, WritePage};
use timevisor_time::TimescaleId;

const FORGED: [u8; 16] = *b"forged          ";

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: lab-forge PATH")?;
    let path = Path::new(&path);
    let open = || File::options().read(true).write(true).open(path);
    let beside = path.with_file_name("beside");
    let map = |file| SharedMapping::new(file, PAGE_BYTES, Access::ReadWrite);
    let mut answer = json!({
        "open": errno(&open()),
        // A read-only descriptor, mapped for writing.
        "map": match map(File::open(path)?) {
            Ok(_) => Value::Null,
            Err(MapError::Map(error)) => json!(error.raw_os_error()),
            Err(error) => json!(error.to_string()),
        },
        "rename": errno(&fs::rename(path, &beside)),
        "create": errno(&File::create_new(&beside)),
        "forged": Value::Null,
    });
    if let Ok(mapping) = open().map_err(MapError::Map).and_then(map) {
        let identity = Identity {
            counter: CounterId::X86Tsc,
            timescale: TimescaleId::Tai,
            host: FORGED,
            vm: FORGED,
            timeline: "tai",
            epoch: 1,
        };
        let _ = PageWriter::take_over(WritePage::new(mapping)?, identity, Some(0));
        let page =
            ReadPage::new(SharedMapping::new(File::open(path)?, PAGE_BYTES, Access::ReadOnly)?)?;
        answer["forged"] = json!(page.bytes()[AT_VM_ID..].starts_with(&FORGED));
    }
    println!("{answer}");
    Ok(())
}

fn errno<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}
