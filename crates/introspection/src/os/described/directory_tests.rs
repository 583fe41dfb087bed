use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::super::tests::SEGMENTS;
use super::*;

fn named(name: &str) -> String {
    SEGMENTS.replace("segments by a file", name)
}

fn names(plugins: &Plugins) -> Vec<&str> {
    plugins.all.iter().map(|plugin| plugin.name.as_str()).collect()
}

#[test]
fn sound_files_count_beside_broken_ones() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let put = |name: &str, text: &str| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), Permissions::from_mode(0o644)).unwrap();
    };
    assert_eq!(read(&at("nothing")), Plugins::default());
    assert_eq!(read(directory.path()), Plugins::default());
    put("20-b.toml", &named("b"));
    put("10-a.toml", &named("a"));
    put("30-again.toml", &named("A"));
    put("31-linux.toml", &named("linux"));
    put("40-cut.toml", &SEGMENTS[..500]);
    put("41-long.toml", &format!("{SEGMENTS}#{}", "x".repeat(1 << 16)));
    fs::write(at("42-bytes.toml"), [0xff, 0xfe]).unwrap();
    put("50-open.toml", &named("open"));
    fs::set_permissions(at("50-open.toml"), Permissions::from_mode(0o664)).unwrap();
    symlink(at("10-a.toml"), at("60-link.toml")).unwrap();
    fs::create_dir(at("70-directory.toml")).unwrap();
    put("80-c.toml", &named("c"));
    put("README", "not a plugin");
    put("90-off.toml.off", &named("off"));

    let plugins = read(directory.path());
    assert_eq!(names(&plugins), ["a", "b", "c"]);
    let told: Vec<String> = plugins.broken.iter().map(ToString::to_string).collect();
    let expected = [
        ("30-again.toml: name: \"A\" is the name of", "10-a.toml"),
        ("31-linux.toml: name: \"linux\" is the name of", "a built-in guest system"),
        ("40-cut.toml: ", ""),
        ("41-long.toml: the file: ", "more than 65536 bytes"),
        ("42-bytes.toml: ", "UTF-8"),
        ("50-open.toml: the file: group or others may write it; `chmod 0644 /", "50-open.toml`"),
        ("60-link.toml: the file: ", "it is a symbolic link; put the file itself there"),
        ("70-directory.toml: the file: ", "it is a directory; put a file there"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, (file, why)) in told.iter().zip(expected) {
        assert!(told.contains(file) && told.contains(why), "{told}");
    }
    // A file that is added counts at once.
    put("00-first.toml", &named("first"));
    assert_eq!(names(&read(directory.path())), ["first", "a", "b", "c"]);
}

/// Its author checks it before root installs it.
#[test]
fn a_file_is_checked_whoever_owns_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("robot.toml");
    let refused = |path: &Path| check_file(path).unwrap_err().to_string();
    assert!(refused(&path).contains("there is no such file; give the path of one"));
    fs::write(&path, SEGMENTS).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let (plugin, owner) = check_file(&path).unwrap();
    assert_eq!(plugin.name, "segments by a file");
    // Only root can give a file away.
    if owner == 0 {
        std::os::unix::fs::chown(&path, Some(4001), None).unwrap();
        assert_eq!(check_file(&path).unwrap().1, 4001);
        let why = read(directory.path()).broken[0].to_string();
        assert!(why.contains("it belongs to user 4001; `chown root /"), "{why}");
    }
    fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
    assert!(refused(&path).contains("`chmod 0644 "));
    assert!(refused(directory.path()).contains("it is a directory"));
}

#[test]
fn a_directory_that_others_may_write_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.toml"), SEGMENTS).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o775)).unwrap();
    let plugins = read(directory.path());
    assert!(plugins.all.is_empty());
    assert!(plugins.broken[0].to_string().contains("group or others may write it"));
    let file = directory.path().join("a.toml");
    assert!(read(&file).broken[0].to_string().contains("not a directory"));
}

#[test]
fn too_many_files_are_none() {
    let directory = tempfile::tempdir().unwrap();
    for n in 0..=limits::FILES {
        fs::write(directory.path().join(format!("{n}.toml")), "").unwrap();
    }
    let plugins = read(directory.path());
    assert!(plugins.all.is_empty() && plugins.broken.len() == 1);
    assert!(plugins.broken[0].to_string().contains("more than 64 files"));
}
