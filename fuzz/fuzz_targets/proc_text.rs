//! What the kernel writes about processes, parts of which are their owners' choice: names in any
//! form do not change what else is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_linux::process::text;

fuzz_target!(|data: &[u8]| {
    let any = String::from_utf8_lossy(data);
    let _ = (text::stat(&any), text::users(&any), text::flock_holder(&any, "08:01:7"));
    for line in any.lines() {
        let _ = text::map(line);
    }
    // A name of the process' choice in what is otherwise the kernel's.
    let name: String = any.chars().filter(|c| *c != '\n').take(64).collect();
    let numbers = "1 ".repeat(18);
    let stat = text::stat(&format!("7 ({name}) S {numbers}4711 0 0")).unwrap();
    assert_eq!((stat.state, stat.started), ('S', 4711));
    let line = format!("1000-3000 r--p 00001000 08:01 42    /x{name}");
    let map = text::map(&line).unwrap();
    assert_eq!((map.start, map.end, map.offset, map.inode), (0x1000, 0x3000, 0x1000, 42));
    assert_eq!(map.path, format!("/x{name}"));
});
