//! Guest systems that are built in, described by the files in `plugins/`: the same events.

use proptest::prelude::*;

use super::Plugin;
use super::tests::{FREERTOS, FUNCTIONS, SEGMENTS};
use crate::backend::RawEvent;
use crate::os::guest_os::GuestOs;
use crate::registry;
use crate::symbols::image::Image;
use crate::tasks::event::Event;
use crate::testing_elf::Elf;

/// The built-in guest system and the described one, for one image.
fn pair(elf: &Elf, text: &str) -> (Box<dyn GuestOs>, Box<dyn GuestOs>) {
    let bytes = elf.bytes();
    let image = Image::parse(&bytes).unwrap();
    let described = Plugin::parse("same.toml", text).unwrap().guest(&image).unwrap();
    (registry::probe_image(&image).unwrap(), Box::new(described))
}

/// Version 1, of which guests still exist.
const SEGMENTS_1: &str = include_str!("segments-1.toml");

fn segments(version: u32, wide: bool) -> (Box<dyn GuestOs>, Box<dyn GuestOs>) {
    let (functions, text) =
        if version == 1 { (&FUNCTIONS[..3], SEGMENTS_1) } else { (&FUNCTIONS[..], SEGMENTS) };
    pair(&Elf::with(wide, functions).note(2, &[version]), text)
}

fn freertos(note: &[u32; 11]) -> (Box<dyn GuestOs>, Box<dyn GuestOs>) {
    let functions = [
        "timevisor_task_created",
        "xTaskDelayUntil",
        "vTaskDelay",
        "vTaskPrioritySet",
        "vTaskDelete",
    ];
    let elf = Elf::with(false, &functions)
        .note(1, note)
        .symbol("pxCurrentTCB", 0x5000)
        .symbol("xSchedulerRunning", 0x5004);
    pair(&elf, FREERTOS)
}

const NOTE: [u32; 11] = [1, 11, 2, 0, 4, 4, 1000, 1, 44, 52, 12];

/// Bytes of a point: mostly small numbers, so that tasks occur again, and mostly enough of them.
fn data(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0u8), 2 => 0u8..3, 1 => any::<u8>()];
    prop_oneof![
        8 => prop::collection::vec(byte, most),
        1 => prop::collection::vec(any::<u8>(), most),
        1 => prop::collection::vec(any::<u8>(), 0..=most),
    ]
}

fn events(points: u16, most: usize) -> impl Strategy<Value = Vec<RawEvent>> {
    let failed = prop_oneof![3 => Just(0u16), 1 => any::<u16>()];
    let raw = (0..points + 2, failed, data(most), any::<u64>(), any::<u16>());
    let raw = raw.prop_map(|(point, failed, data, sequence, vcpu)| {
        let counter = (sequence % 2 == 0).then_some(sequence);
        RawEvent { sequence, counter, counter_error: 3, point, vcpu, failed, data }
    });
    prop::collection::vec(raw, 1..12)
}

type Decoded = Option<Event>;

fn both(pair: &mut (Box<dyn GuestOs>, Box<dyn GuestOs>), raw: &RawEvent) -> (Decoded, Decoded) {
    (pair.0.decode(raw).ok(), pair.1.decode(raw).ok())
}

#[test]
fn the_same_points() {
    let versions = [(1, false), (1, true), (2, false), (2, true)];
    let pairs = versions.map(|(version, wide)| segments(version, wide));
    for pair in pairs.into_iter().chain([freertos(&NOTE)]) {
        assert_eq!(pair.0.points(), pair.1.points());
    }
}

/// Notes that one of the two refuses are refused by the other.
#[test]
fn the_same_notes_of_freertos() {
    let functions = ["timevisor_task_created", "xTaskDelayUntil", "vTaskDelay", "vTaskPrioritySet"];
    let plugin = Plugin::parse("same.toml", FREERTOS).unwrap();
    let numbers = [0, 1, 2, 4, 8, 16, 17, 200, 65_536, 65_537, 1_000_000_000, 1_000_000_001];
    for index in 0..NOTE.len() {
        // Slicing is 0 or 1 in every note that there is.
        for number in numbers.into_iter().filter(|number| index != 7 || *number < 2) {
            let mut note = NOTE;
            note[index] = number;
            let elf = Elf::with(false, &[&functions[..], &["vTaskDelete"]].concat())
                .note(1, &note)
                .symbol("pxCurrentTCB", 0x5000)
                .symbol("xSchedulerRunning", 0x5004);
            let bytes = elf.bytes();
            let image = Image::parse(&bytes).unwrap();
            let points = |guest: &dyn GuestOs| guest.points().to_vec();
            let built_in = registry::probe_image(&image).ok().map(|guest| points(&*guest));
            let described = plugin.guest(&image).ok().map(|guest| points(&guest));
            assert_eq!(built_in, described, "{index}: {number}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_same_segments(version in 1u32..=2, wide in any::<bool>(), events in events(5, 48)) {
        let mut pair = segments(version, wide);
        for raw in &events {
            let (built_in, described) = both(&mut pair, raw);
            prop_assert_eq!(built_in, described);
        }
        prop_assert_eq!(pair.0.tasks(), pair.1.tasks());
    }

    #[test]
    fn the_same_freertos(
        slicing in 0u32..2,
        rate in 1u32..=1_000_000_000,
        events in events(5, 40),
    ) {
        const DELETE: u16 = 5;
        let mut note = NOTE;
        (note[6], note[7]) = (rate, slicing);
        let mut pair = freertos(&note);
        for raw in &events {
            let (built_in, described) = both(&mut pair, raw);
            // The end of a task needs nothing of the running one; the built-in one reads it anyway.
            let is_stricter = raw.point == DELETE && raw.failed & 7 != 0;
            if built_in.is_none() && is_stricter {
                break;
            }
            prop_assert_eq!(built_in, described);
            prop_assert_eq!(pair.0.tasks(), pair.1.tasks());
        }
    }
}
