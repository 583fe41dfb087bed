//! A file that describes a guest system: refused, or within all limits; and a guest of it, which
//! decodes or refuses whatever is read there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_introspection::backend::RawEvent;
use timevisor_introspection::os::described::Plugin;
use timevisor_introspection::os::guest_os::GuestOs as _;
use timevisor_introspection::point::limits;
use timevisor_introspection::symbols::image::Image;

/// Guests with the note and the functions of plugins/segments, versions 1 and 2.
const SEGMENTS: [&[u8]; 2] = [
    include_bytes!("../corpus-seeds/introspect_image/segments.elf"),
    include_bytes!("../corpus-seeds/introspect_image/segments-2.elf"),
];

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plugin = match Plugin::parse("file.toml", text) {
        Ok(plugin) => plugin,
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("file.toml: ") && !line.contains('\n'), "{line:?}");
            return;
        }
    };
    for bytes in SEGMENTS {
        decode(&plugin, bytes, data);
    }
});

fn decode(plugin: &Plugin, bytes: &[u8], data: &[u8]) {
    // On the heap, where it is aligned as the parser needs it.
    let bytes = bytes.to_vec();
    let image = Image::parse(&bytes).expect("the seed is sound");
    let Ok(mut guest) = plugin.guest(&image) else { return };
    let points = guest.points().to_vec();
    assert!(!points.is_empty() && points.len() <= limits::POINTS);
    for point in points {
        assert_eq!(image.slot(&point.symbol), Ok(point.address));
        let len: usize = point.reads.iter().map(|read| usize::from(read.len)).sum();
        assert!(len <= limits::DATA && point.reads.len() <= limits::READS);
        let data: Vec<u8> = data.iter().rev().copied().cycle().take(len).collect();
        for failed in [0, 1, u16::MAX] {
            let raw = RawEvent {
                sequence: 0,
                counter: None,
                counter_error: 0,
                point: point.id,
                vcpu: 0,
                failed,
                data: data.clone(),
            };
            match guest.decode(&raw) {
                Ok(event) => assert!(event.thread.comm.bytes().all(|b| (0x20..0x7f).contains(&b))),
                Err(error) => assert!(failed != 0, "{error}"),
            }
        }
    }
}
