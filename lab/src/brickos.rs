//! Builds a guest with brickOS from lab/brickos. Debian's source package contains brickOS; its task
//! manager, for the H8 with words of 16 bits, is edited to run on x86.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::command;
use crate::fetch::Fetcher;
use crate::programs;

/// The artifact with the source.
const SOURCE: &str = "source:brickos";

/// Edits of brickOS's tm.c: what is there exactly once, and what replaces it.
const EDITS: &[(&str, &str)] = &[
    // The size of a stack in words, which have 16 bits on the H8.
    ("stack_size>>1", "stack_size/sizeof(*sp)"),
    // Below the stack for an H8, the one for x86.
    ("td->sp_save=sp;", "td->sp_save=port_stack(sp,code_start,argc,argv);"),
    // A trap point where a new task is complete and no other can run yet.
    ("nb_tasks++;", "nb_tasks++; timevisor_brickos_created(td);"),
    // Only here the guest learns of a task that is killed.
    ("void exit(int code) {", "void exit(int code) { guest_log(LOG_EXIT,0,code&255);"),
];

/// Builds the guest (a no-op when it is up to date) and returns its path.
///
/// # Errors
/// When the source cannot be fetched or is not what we edit, or the build fails.
pub fn build(lab_dir: &Path) -> anyhow::Result<PathBuf> {
    let source = Fetcher::new(lab_dir.join("cache")).artifact(SOURCE)?;
    let out = lab_dir.join("brickos");
    fs::create_dir_all(&out)?;
    let (from, to) = (source.join("kernel/tm.c"), out.join("tm.c"));
    let text =
        fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let text = edited(&text).with_context(|| format!("cannot edit {}", from.display()))?;
    // An unchanged file keeps its time, so that make does nothing.
    if !fs::read_to_string(&to).is_ok_and(|before| before == text) {
        fs::write(&to, text)?;
    }
    let makefile = programs::workspace()?.join("lab/brickos").display().to_string();
    let source_is = format!("SOURCE={}", source.display());
    let out_is = format!("OUT={}", out.display());
    command::run("make", &["--silent", "-C", &makefile, &source_is, &out_is])?;
    Ok(out.join("jobs.elf"))
}

fn edited(text: &str) -> anyhow::Result<String> {
    EDITS.iter().try_fold(text.to_owned(), |text, (from, to)| {
        let times = text.matches(from).count();
        ensure!(times == 1, "{from:?} is there {times} times, not once");
        Ok(text.replace(from, to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edit_applies_exactly_once() {
        let text: String = EDITS.iter().map(|(from, _)| format!("{from}\n")).collect();
        let wanted: String = EDITS.iter().map(|(_, to)| format!("{to}\n")).collect();
        assert_eq!(edited(&text).unwrap(), wanted);
        assert!(edited(&text.replace("nb_tasks++;", "")).is_err());
        assert!(edited(&format!("{text}{text}")).is_err());
    }
}
