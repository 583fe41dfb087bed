//! include/timevisor.h is what src/ says. `make -C clients/c header` writes it.
#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::path::Path;

/// As cbindgen makes it, without the names of our pointer types: C has its own.
fn generated() -> String {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let bindings =
        cbindgen::Builder::new().with_crate(crate_dir).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    without_aliases(&String::from_utf8(text).unwrap())
}

/// `typedef const struct timevisor_reading *In_timevisor_reading;` is dropped with its comment, and
/// replaced wherever it is used.
fn without_aliases(text: &str) -> String {
    let alias = |paragraph: &str| {
        let last = paragraph.lines().last()?;
        let (what, name) =
            last.strip_prefix("typedef ")?.strip_suffix(';')?.rsplit_once([' ', '*'])?;
        let ours = name.starts_with("timevisor_") || paragraph.contains('{');
        (!ours).then(|| (name.to_owned(), last["typedef ".len()..][..what.len() + 1].to_owned()))
    };
    let (mut kept, mut aliases) = (Vec::new(), Vec::new());
    for paragraph in text.split("\n\n") {
        match alias(paragraph) {
            Some(alias) => aliases.push(alias),
            None => kept.push(paragraph),
        }
    }
    // Longer names first: one may begin like another.
    aliases.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let mut text = kept.join("\n\n");
    for (name, what) in aliases {
        for (before, after) in [("(", ""), (", ", ""), ("    ", "")] {
            let used = format!("{before}{name} {after}");
            text = text.replace(&used, &format!("{before}{what}"));
        }
        assert!(!text.contains(&format!("{name} ")), "{name} is used in an unforeseen place");
    }
    text.trim_start().to_owned()
}

#[test]
fn the_header_is_what_the_library_has() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/timevisor.h");
    let text = generated();
    if std::env::var_os("TIMEVISOR_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (old, new)) in committed.lines().zip(text.lines()).enumerate() {
        assert_eq!(old, new, "line {} of timevisor.h; run `make -C clients/c header`", number + 1);
    }
    assert!(committed == text, "timevisor.h has another length; run `make -C clients/c header`");
}

/// One initializer for every structure that has a size, and no other name leaks.
#[test]
fn every_structure_has_its_initializer() {
    let text = generated();
    let mut structures = 0;
    for line in text.lines() {
        let Some(name) = line.strip_prefix("typedef struct timevisor_") else { continue };
        let Some(name) = name.strip_suffix(" {") else { continue };
        let init = format!("#define TIMEVISOR_{}_INIT {{(uint32_t)sizeof(", name.to_uppercase());
        assert!(text.contains(&init), "{init}");
        structures += 1;
    }
    assert_eq!(structures, 26);
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let foreign = code
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .find(|word| word.starts_with("In") && word.contains('_') || word.starts_with("Out_"));
    assert_eq!(foreign, None);
}
