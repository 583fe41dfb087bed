//! The executable of a QEMU, which may be anybody's file: no panic, and little memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_guests::counter_mapping::program::Symbols;
use timevisor_linux::process::text;

fuzz_target!(|data: &[u8]| {
    let Ok(symbols) = Symbols::parse(data) else { return };
    let maps = [
        "0-ffffffffffffffff r--p 00000000 08:01 7 /qemu",
        "ffff0000-0 r--p ffffffffffff0000 08:01 7 /qemu",
        "7000-9000 r-xp 00001000 08:01 7 /qemu",
    ];
    let maps: Vec<_> = maps.iter().filter_map(|line| text::map(line)).collect();
    for index in 0..maps.len() {
        if let Some(program) = symbols.loaded(&maps[index..], |map| map.inode == 7) {
            let _ = (program.address("timers_state"), program.address("use_icount"));
        }
    }
});
