//! Compiles the ACPI table that tells a guest's ptp_vmclock driver where the page is.
//!
//! It is used only by the lab's first tests: the daemon writes its own table, and later tests pass
//! that one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::command;

/// Writes `vmclock.asl` into `dir` for a page at the guest physical `address`; returns the compiled
/// table.
///
/// # Errors
/// When iasl (package acpica-tools) is missing or refuses the source.
pub fn compile(address: u64, dir: &Path) -> anyhow::Result<PathBuf> {
    let source = dir.join("vmclock.asl");
    let last = address + 0xfff;
    let text = format!(
        r#"DefinitionBlock ("", "SSDT", 2, "TMVSR", "VMCLOCK", 1)
{{
    Scope (\_SB)
    {{
        Device (VCLK)
        {{
            Name (_HID, "AMZNC10C")
            Name (_CID, "VMCLOCK")
            Name (_DDN, "VMCLOCK")
            Name (_STA, 0x0F)
            Name (_CRS, ResourceTemplate ()
            {{
                QWordMemory (ResourceConsumer, PosDecode, MinFixed, MaxFixed, Cacheable, ReadOnly,
                    0x0, 0x{address:016X}, 0x{last:016X}, 0x0, 0x1000)
            }})
        }}
    }}
}}
"#
    );
    fs::write(&source, text).with_context(|| format!("cannot write {}", source.display()))?;
    command::run("iasl", &["-ve".as_ref(), source.as_os_str()])
        .context("iasl failed; it comes with the package acpica-tools")?;
    Ok(source.with_extension("aml"))
}
