//! A guest's file: refused, or what it says is in it; a guest that it is taken for traps where the
//! file has a slot, and decodes or refuses whatever is read there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_introspection::memory::{GuestMemory, MemoryError};
use timevisor_introspection::registry;
use timevisor_introspection::point::limits;
use timevisor_introspection::symbols::image::Image;
use timevisor_introspection::backend::RawEvent;

/// Memory without anything in it.
#[derive(Debug)]
struct Nothing;

impl GuestMemory for Nothing {
    fn read(&self, address: u64, _: &mut [u8]) -> Result<(), MemoryError> {
        Err(MemoryError::NotRam(address))
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

fuzz_target!(|data: &[u8]| {
    let image = match Image::parse(data) {
        Ok(image) => image,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(image.is_in(&Nothing).is_err(), "an image of nothing");
    for symbol in ["", "main", "timevisor_begin_segment"] {
        let (address, slot) = (image.address(symbol), image.slot(symbol));
        if let Ok(slot) = slot {
            assert!(address.is_ok_and(|address| slot == address || slot == address + 4));
        }
    }
    let Ok(mut guest) = registry::probe_image(&image) else { return };
    let points = guest.points().to_vec();
    assert!(!points.is_empty() && points.len() <= limits::POINTS);
    for point in points {
        assert_eq!(image.slot(&point.symbol), Ok(point.address));
        let len: usize = point.reads.iter().map(|read| usize::from(read.len)).sum();
        assert!(len <= limits::DATA);
        let data: Vec<u8> = data.iter().copied().cycle().take(len).collect();
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
            assert!(guest.decode(&raw).is_ok() || failed != 0);
        }
    }
});
