//! Compiles the programs of bpf/ with clang for the feature `bpf`. Where there is no clang, or it
//! fails, everything else is still built: the object is empty, and loading it says why
//! (`bpf::BpfError::NotBuilt`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Programs by the variable that says why they are missing; each has a header of the same name.
const PROGRAMS: [(&str, &str); 2] =
    [("elapsed", "TIMEVISOR_BPF_MISSING"), ("introspect", "TIMEVISOR_BPF_INTROSPECT_MISSING")];
/// Where clang would come to be: the directory changes when it is installed.
const BINARIES: &str = "/usr/bin";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if env::var_os("CARGO_FEATURE_BPF").is_none() || !x86 {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    for (name, variable) in PROGRAMS {
        let source = folder.join(format!("{name}.bpf.c"));
        println!("cargo::rerun-if-changed={}", source.display());
        println!("cargo::rerun-if-changed={}", folder.join(format!("{name}.h")).display());
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let object = out.join(format!("{name}.bpf.o"));
        let missing = compile(&clang, &folder, &source, &object).err().unwrap_or_default();
        if !missing.is_empty() {
            println!("cargo::rerun-if-changed={BINARIES}");
            fs::write(&object, []).expect("the build's own directory can be written");
        }
        println!("cargo::rustc-env={variable}={missing}");
    }
}

/// The reason in one line where it does not work.
fn compile(clang: &str, folder: &Path, source: &Path, object: &Path) -> Result<(), String> {
    let out = Command::new(clang)
        // v3 has the atomics that the records are locked with; -g brings the types of maps and the
        // relocations.
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"])
        .arg(source)
        .arg("-o")
        .arg(object)
        // The place of the sources would make the object differ from one checkout to another.
        .arg(format!("-fdebug-prefix-map={}=bpf", folder.display()))
        .output()
        .map_err(|error| format!("{clang}: {error}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let first = said.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
    Err(format!("{clang} failed: {first}"))
}
