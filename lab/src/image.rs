//! Builds the guest's initramfs: a static busybox, the modules that a test needs, and the test's
//! files and snippet.
//!
//! The image has no init system and no package manager. It takes a few milliseconds to build, and
//! is built for each test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::command;
use crate::cpio::Cpio;
use crate::kernel::Kernel;

/// Loaded in every guest whose kernel has them as modules.
const BASE_MODULES: &[&str] = &["virtio_pci", "virtio_console", "ptp_vmclock"];

const INIT: &str = include_str!("init.sh");

/// The function that answers the lab port.
pub(crate) const SERVE: &str = include_str!("serve.sh");

/// What the guest does after the snippet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// Switch off.
    PowerOff,
    /// Sleep until QEMU is killed.
    Stay,
    /// Run the lines that [`crate::guest::Guest::sh`] sends, until QEMU is killed.
    Serve,
}

/// An initramfs under construction.
#[derive(Debug)]
pub struct Image {
    kernel: Kernel,
    busybox: PathBuf,
    modules: Vec<String>,
    files: Vec<(PathBuf, String, u32)>,
    snippet: String,
    afterwards: Afterwards,
}

impl Image {
    /// An image for `kernel` with the busybox at `busybox` that serves [`crate::guest::Guest::sh`].
    pub fn new(kernel: &Kernel, busybox: &Path) -> Self {
        Self {
            kernel: kernel.clone(),
            busybox: busybox.to_owned(),
            modules: BASE_MODULES.iter().map(ToString::to_string).collect(),
            files: Vec::new(),
            snippet: String::new(),
            afterwards: Afterwards::Serve,
        }
    }

    /// Loads `name` and its dependencies at boot, after the base modules.
    #[must_use]
    pub fn module(mut self, name: &str) -> Self {
        self.modules.push(name.to_owned());
        self
    }

    /// Leaves out the base module `name`.
    #[must_use]
    pub fn without_module(mut self, name: &str) -> Self {
        self.modules.retain(|m| m != name);
        self
    }

    /// Copies the host's file `from` to `to` in the guest, with permission bits `mode`.
    #[must_use]
    pub fn file(mut self, from: impl Into<PathBuf>, to: &str, mode: u32) -> Self {
        self.files.push((from.into(), to.to_owned(), mode));
        self
    }

    /// Copies the program `from` to /bin under its own name, as an executable.
    #[must_use]
    pub fn program(self, from: &Path) -> Self {
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.file(from, &format!("/bin/{name}"), 0o755)
    }

    /// Adds a dynamically linked program of the host to `/bin`, with the libraries that it needs.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn dynamic_program(self, from: &Path) -> anyhow::Result<Self> {
        let libraries = crate::nested::libraries(from)?;
        let image = libraries.into_iter().fold(self, |image, library| {
            image.file(library.clone(), &library.to_string_lossy(), 0o755)
        });
        Ok(image.program(from))
    }

    /// Runs this shell text after `LAB-READY` and prints its status as `LAB-DONE STATUS`. Under
    /// [`Afterwards::Serve`] no status is printed, and serving starts right after the text.
    #[must_use]
    pub fn snippet(mut self, text: &str) -> Self {
        text.clone_into(&mut self.snippet);
        self
    }

    /// Sets what happens after the snippet.
    #[must_use]
    pub fn afterwards(mut self, afterwards: Afterwards) -> Self {
        self.afterwards = afterwards;
        self
    }

    /// Writes the archive to `path` and returns `path`.
    ///
    /// # Errors
    /// When a file is missing or busybox does not run.
    pub fn write(&self, path: &Path) -> anyhow::Result<PathBuf> {
        fs::write(path, self.build()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.to_owned())
    }

    fn build(&self) -> anyhow::Result<Vec<u8>> {
        let mut cpio = Cpio::new();
        for dir in ["proc", "sys", "tmp", "run", "dev", "lab/modules"] {
            cpio.directory(dir);
        }
        // The kernel opens the console before init mounts anything.
        cpio.character_device("dev/console", 0o600, 5, 1);
        self.add_busybox(&mut cpio)?;
        let mut order = String::new();
        for module in self.kernel.modules(&self.modules)? {
            cpio.file(&format!("lab/modules/{}", module.file_name), 0o644, &module.bytes);
            order += &format!("{}\n", module.file_name);
        }
        cpio.file("lab/modules/order", 0o644, order.as_bytes());
        for (from, to, mode) in &self.files {
            let data = fs::read(from)
                .with_context(|| format!("cannot read {} for the guest", from.display()))?;
            cpio.file(to, *mode, &data);
        }
        let ending = match self.afterwards {
            Afterwards::PowerOff => "poweroff -f\n",
            Afterwards::Stay => "while :; do sleep 1000; done\n",
            Afterwards::Serve => "",
        };
        let serve = if self.afterwards == Afterwards::Serve { "\nserve\n" } else { "\n" };
        cpio.file("lab/run", 0o644, format!("{}{serve}", self.snippet).as_bytes());
        cpio.file("lab/serve", 0o644, SERVE.as_bytes());
        cpio.file("init", 0o755, format!("{INIT}{ending}").as_bytes());
        Ok(cpio.finish())
    }

    fn add_busybox(&self, cpio: &mut Cpio) -> anyhow::Result<()> {
        let bytes = fs::read(&self.busybox)
            .with_context(|| format!("cannot read {}", self.busybox.display()))?;
        cpio.file("bin/busybox", 0o755, &bytes);
        let busybox = self.busybox.to_string_lossy();
        for applet in command::run(&busybox, &["--list-full"])?.lines() {
            if applet != "bin/busybox" && applet != "init" {
                cpio.symlink(applet, "/bin/busybox");
            }
        }
        Ok(())
    }
}
