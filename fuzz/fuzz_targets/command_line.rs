//! QEMU's command line, which belongs to the user who started the VM: a value with commas comes
//! back as it was meant, and nothing is found that is not there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_guests::command_line::CommandLine;

fuzz_target!(|data: &[u8]| {
    // As in /proc/PID/cmdline.
    let words = data.split(|byte| *byte == 0);
    let arguments: Vec<String> =
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let line = CommandLine::parse(&arguments);
    let options = arguments.iter().filter(|word| word.starts_with('-')).count();
    assert!(line.devices.len() + line.objects.len() <= options);
    assert!(line.qmp_sockets.len() <= options);
    for device in &line.devices {
        assert!(line.devices_of(&device.kind).any(|found| found == device));
    }
    for id in line.objects.iter().filter_map(|object| object.get("id")) {
        assert_eq!(line.object(id).and_then(|object| object.get("id")), Some(id));
    }
    if let Some(value) = arguments.last() {
        check_quoting(value);
    }
});

/// Commas are doubled; the option syntax has no way to write the zero byte that separates
/// arguments.
fn check_quoting(value: &str) {
    let quoted = value.replace(',', ",,");
    let words = ["qemu", "-device", &format!("vmclock,id={quoted}")].map(str::to_owned);
    let line = CommandLine::parse(&words);
    assert_eq!(line.devices[0].get("id"), Some(value));
}
