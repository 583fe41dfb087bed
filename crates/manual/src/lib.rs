//! Manual pages and shell completions of a program, written from the very definitions that parse its
//! command line: packages never disagree with the program that they contain.
//!
//! Every program has a hidden way to call [`write()`](fn@write); `packaging/stage` uses it.
//!
//! What it does not do: install or compress what it writes, or describe files and formats
//! (docs/reference does that).
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

/// The version that a program prints: with the commit where a package was built, which sets
/// `TIMEVISOR_VERSION`; a plain `cargo build` knows the number alone.
#[macro_export]
macro_rules! version {
    () => {
        match option_env!("TIMEVISOR_VERSION") {
            Some(version) => version,
            None => env!("CARGO_PKG_VERSION"),
        }
    };
}

/// Writes `man/NAME.SECTION` of `command` and of each of its visible subcommands, and
/// `completions/{bash,zsh,fish}/` into `folder`. Equal definitions give equal bytes.
///
/// `section` is the manual's: 1 for users' programs, 8 for daemons.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(command: Command, section: u8, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let mut words = command.clone();
    for (shell, place) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let place = folder.join("completions").join(place);
        fs::create_dir_all(&place)?;
        generate_to(shell, &mut words, &name, place)?;
    }
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let version = command.get_version().unwrap_or_default();
    let source = format!("{name} {version}");
    page(&command, &name, section, &source, &pages)
}

fn page(command: &Command, name: &str, section: u8, source: &str, folder: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    let man = Man::new(command.clone()).title(name).section(section.to_string());
    let man = man.source(source);
    man.render(&mut text)?;
    fs::write(folder.join(format!("{name}.{section}")), text)?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        // The one of an inner command is not disabled with the outer one's.
        if inner.get_name() == "help" {
            continue;
        }
        page(inner, &format!("{name}-{}", inner.get_name()), section, source, folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn program() -> Command {
        let inner = Command::new("apply").about("Make it").arg(Arg::new("budget").long("budget"));
        Command::new("tool")
            .version("1.2 (abc)")
            .about("A tool")
            .subcommand(Command::new("reserve").about("Reservations").subcommand(inner))
            .subcommand(Command::new("secret").hide(true))
    }

    #[test]
    fn every_visible_command_has_a_page_and_every_shell_its_words() {
        let folder = tempfile::tempdir().unwrap();
        write(program(), 1, folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let page = read("man/tool.1");
        assert!(page.contains("1.2 (abc)"), "{page}");
        assert!(read("man/tool-reserve-apply.1").contains("budget"));
        assert!(!folder.path().join("man/tool-secret.1").exists());
        assert!(!folder.path().join("man/tool-help.1").exists());
        for file in ["bash/tool.bash", "zsh/_tool", "fish/tool.fish"] {
            assert!(read(&format!("completions/{file}")).contains("budget"), "{file}");
        }
    }

    #[test]
    fn equal_definitions_give_equal_bytes() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(program(), 8, one.path()).unwrap();
        write(program(), 8, two.path()).unwrap();
        let read = |folder: &Path| fs::read(folder.join("man/tool-reserve.8")).unwrap();
        assert_eq!(read(one.path()), read(two.path()));
    }
}
