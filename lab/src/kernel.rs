//! An unpacked kernel package: its image, its version, and its modules in load order.
//!
//! Nothing here loads a module on the host.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::command;

/// A kernel that the lab can boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The version as `uname -r` prints it.
    pub version: String,
    /// The bootable image.
    pub image: PathBuf,
    modules: PathBuf,
}

/// A module, decompressed.
#[derive(Debug, Clone)]
pub struct Module {
    /// File name, ending in `.ko`.
    pub file_name: String,
    /// The ELF file.
    pub bytes: Vec<u8>,
}

impl Kernel {
    /// Finds the kernel in the unpacked packages below `root`.
    ///
    /// # Errors
    /// When there is no image or no module tree.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        // Older packages use /lib/modules. Newer ones use /usr/lib/modules and keep the image
        // beside the modules.
        let trees = ["usr/lib/modules", "lib/modules"];
        let modules = trees
            .iter()
            .find_map(|tree| fs::read_dir(root.join(tree)).ok()?.next()?.ok())
            .with_context(|| format!("no kernel modules below {}", root.display()))?
            .path();
        let version = file_name(&modules);
        let image = [root.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")]
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| format!("no vmlinuz-{version} below {}", root.display()))?;
        Ok(Self { version, image, modules })
    }

    /// The folder of its modules, named by its version.
    pub(crate) fn module_tree(&self) -> &Path {
        &self.modules
    }

    /// The modules `wanted` and all their dependencies, dependencies first. Names that are built
    /// into the kernel or unknown to it are left out.
    ///
    /// # Errors
    /// When the dependency list cannot be made or a module cannot be read.
    pub fn modules(&self, wanted: &[String]) -> anyhow::Result<Vec<Module>> {
        let dependencies = self.dependencies()?;
        let mut order: Vec<&str> = Vec::new();
        for name in wanted {
            let Some(paths) = dependencies.get(name.replace('-', "_").as_str()) else { continue };
            // modules.dep lists all transitive dependencies, nearest first.
            for path in paths.iter().rev() {
                if !order.contains(&path.as_str()) {
                    order.push(path);
                }
            }
        }
        order.into_iter().map(|path| self.read(path)).collect()
    }

    /// Maps each module name to its path, followed by the paths of its dependencies.
    fn dependencies(&self) -> anyhow::Result<HashMap<String, Vec<String>>> {
        let list = self.modules.join("modules.dep");
        if !list.exists() {
            self.depmod()?;
        }
        let text =
            fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        let parse = |line: &str| {
            let (path, needs) = line.split_once(':')?;
            let name = file_name(Path::new(path));
            let name = name.split(".ko").next()?.replace('-', "_");
            let all = std::iter::once(path).chain(needs.split_whitespace());
            Some((name, all.map(str::to_owned).collect()))
        };
        Ok(text.lines().filter_map(parse).collect())
    }

    /// Runs depmod on a temporary root, because the module directory that depmod uses depends on
    /// its build.
    fn depmod(&self) -> anyhow::Result<()> {
        let root = tempfile::tempdir()?;
        let tree = fs::canonicalize(&self.modules)?;
        let parent = tree.parent().context("the module tree has no parent")?;
        fs::create_dir_all(root.path().join("usr/lib"))?;
        std::os::unix::fs::symlink(parent, root.path().join("usr/lib/modules"))?;
        std::os::unix::fs::symlink("usr/lib", root.path().join("lib"))?;
        let args = ["-b".as_ref(), root.path().as_os_str(), self.version.as_ref()];
        command::run("/sbin/depmod", &args).map(drop)
    }

    fn read(&self, path: &str) -> anyhow::Result<Module> {
        let full = self.modules.join(path);
        let name = file_name(&full);
        let bytes = match full.extension().and_then(|e| e.to_str()) {
            Some("ko") => fs::read(&full)?,
            Some("xz") => decompress("xz", &full)?,
            Some("zst") => decompress("zstd", &full)?,
            Some("gz") => decompress("gzip", &full)?,
            _ => bail!("{} is compressed in an unknown way", full.display()),
        };
        let stem = name.split(".ko").next().unwrap_or(&name);
        Ok(Module { file_name: format!("{stem}.ko"), bytes })
    }
}

fn decompress(program: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    let out = std::process::Command::new(program)
        .arg("-dc")
        .arg(file)
        .output()
        .with_context(|| format!("cannot run {program}; install it and run again"))?;
    if !out.status.success() {
        bail!("{program} -dc {}: {}", file.display(), String::from_utf8_lossy(&out.stderr));
    }
    Ok(out.stdout)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
