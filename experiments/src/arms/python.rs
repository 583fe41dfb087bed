//! The plant's environment: Python with pinned versions, in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use timevisor_lab::scenario::Context;
use timevisor_lab::{command, packages, programs, progress, venv};

/// An interpreter that has everything.
pub(super) struct Python {
    pub(super) program: PathBuf,
    pub(super) folder: PathBuf,
}

impl Python {
    /// Makes the environment unless it is there as requirements.txt says.
    pub(super) fn ready(venv: &Path) -> anyhow::Result<Self> {
        packages::install(&["python3-venv", "libosmesa6"])?;
        let folder = programs::workspace()?.join("experiments/arms");
        let program = venv::ready(venv, &folder.join("requirements.txt"))?;
        Ok(Self { program, folder })
    }

    fn run(&self, script: &str, arguments: &[&Path], more: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.arg(self.folder.join(script)).args(arguments).args(more);
        command::output(&mut command)
    }

    /// Runs the plant's own tests.
    pub(super) fn test(&self) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["-m", "unittest", "--quiet", "test_arms"]).current_dir(&self.folder);
        progress::step("the plant's own tests", || command::output(&mut command).map(drop))
    }

    /// One cycle as waypoints.
    pub(super) fn plan(&self, ctx: &Context) -> anyhow::Result<PathBuf> {
        let plan = ctx.path("plan.json");
        println!("{}", self.run("plan.py", &[&plan], &[])?.trim());
        Ok(plan)
    }

    /// A picture and an animation of two runs side by side, and recordings of both for Foxglove.
    pub(super) fn show(
        &self,
        ctx: &Context,
        naive: &Path,
        ours: &Path,
        folder: &Path,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        let text = |path: &Path| path.display().to_string();
        let (still, animation) = (folder.join("arms.png"), folder.join("arms.webp"));
        let (still, animation) = (text(&still), text(&animation));
        let titles = ["--titles", "without bounds", "Timevisor"];
        let files = ["--still", &still, "--animation", &animation];
        let said = self.run("render.py", &[naive, ours], &[&titles[..], &files[..]].concat())?;
        ctx.log(&said);
        println!("written: {still}, {animation}");
        for (trace, name) in [(naive, "arms-naive.mcap"), (ours, "arms.mcap")] {
            let mcap = folder.join(name);
            self.run("recording.py", &[trace, &mcap], &[])?;
            println!("written: {}", mcap.display());
        }
        Ok(())
    }
}
