//! The documentation of plugins' files: it has every key, and what it shows is sound.

use super::Plugin;
use super::tests::{FREERTOS, RTOS, SEGMENTS};

fn page(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// The text in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// An unknown key is answered with all known ones; the reference explains each of these.
#[test]
fn the_reference_has_every_key() {
    let reference = page("reference/introspection-plugins.md");
    let mut keys = 0;
    for (text, at, with) in [
        (RTOS, "format = 1", "odd = 1\nformat = 1"),
        (RTOS, "owner =", "odd = 1\nowner ="),
        (RTOS, "min = 1, max", "odd = 1, max"),
        (RTOS, "register =", "odd ="),
        (RTOS, "pid = 7", "odd = 7"),
        (RTOS, "size = 4 }\npid", "odd = 4 }\npid"),
        (RTOS, "{ read = \"state\", offset = 8, len = 4 }", "{ odd = 1 }"),
        (RTOS, "size = 1, values", "odd = 1, values"),
        (RTOS, "symbol = \"set\"", "symbol = \"set\"\nodd = 1"),
        (RTOS, "values = [1, 63]", "odd = 1"),
        (RTOS, "nice =", "odd ="),
        (RTOS, "clock =", "odd ="),
        (RTOS, "kind = \"sleep\"", "kind = \"odd\""),
        (RTOS, "per_second = 3", "per_second = { odd = 3 }"),
        (SEGMENTS, "processors = {", "odd = {"),
        (FREERTOS, "kind = \"exit\"", "odd = 1, kind = \"exit\""),
        (FREERTOS, "plus = { read = \"increment\" }", "plus = { odd = 1 }"),
    ] {
        assert!(text.contains(at), "{at}");
        let error = Plugin::parse("odd.toml", &text.replacen(at, with, 1)).unwrap_err().to_string();
        let (_, known) = error.split_once(", expected ").unwrap_or_else(|| panic!("{error}"));
        for key in quoted(known) {
            // The tables of a file have brackets there.
            let all = [format!("`{key}`"), format!("[{key}"), format!("{key}.NAME")];
            let plus = reference.contains(&format!(" {key},"))
                || reference.contains(&format!(" {key} }}"));
            assert!(plus || all.iter().any(|it| reference.contains(it)), "no {key}: {error}");
            keys += 1;
        }
    }
    assert!(keys > 60, "{keys}");
}

/// Each value that the how-to shows for a guest's peculiarity, in a plugin.
#[test]
fn values_of_the_how_to_are_sound() {
    let how_to = page("how-to/write-introspection-plugin.md");
    let (_, table) = how_to.split_once("| your guest has | write |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let mut values = 0;
    for value in quoted(table).filter(|value| value.contains(" = {") && value.ends_with('}')) {
        let (key, read) = value.split_once(" = ").unwrap();
        let needed = match key {
            "per_second" => continue,
            "ns" => "kind = \"sleep\"\nabsolute = true",
            "policy" => "kind = \"set_scheduler\"\ntarget = \"nobody\"",
            _ => "kind = \"set_scheduler\"\ntarget = \"nobody\"\npolicy = \"fifo\"",
        };
        let text = format!(
            "format = 1\nname = \"n\"\nversion = \"1\"\nsupports = \"s\"\n[note]\nowner = \"o\"\n\
             type = 1\nsize = 4\nfields.version = {{ offset = 0, size = 4, accept = [1] }}\n\
             [[point]]\nsymbol = \"f\"\nreads = [\n{{ name = \"ticks\", argument = 0 }},\n\
             {{ name = \"last\", argument = 1 }},\n{{ name = \"increment\", argument = 2 }},\n\
             {{ name = \"task\", from = \"last\", len = 16 }},\n]\n\
             [point.event]\nthread = \"nobody\"\n{needed}\n{key} = {read}\n"
        );
        Plugin::parse("how-to.toml", &text).unwrap_or_else(|error| panic!("{value}: {error}"));
        values += 1;
    }
    assert!(values >= 6, "{values}");
}
