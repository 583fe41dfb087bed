//! Structures and numbers of include/uapi/linux/gpio.h, version 2.

use crate::ioctl::{Ioctl, READ, WRITE};

/// GPIO_MAX_NAME_SIZE.
const NAME: usize = 32;
/// GPIO_V2_LINES_MAX.
const LINES: usize = 64;
/// GPIO_V2_LINE_NUM_ATTRS_MAX.
const ATTRS: usize = 10;
/// What the kernel shows as the user of our lines.
const CONSUMER: &[u8] = b"timevisor";

/// GPIO_V2_LINE_ATTR_ID_OUTPUT_VALUES.
pub(super) const ATTR_OUTPUT_VALUES: u32 = 2;

/// enum gpio_v2_line_flag.
pub(super) mod flag {
    pub const USED: u64 = 1 << 0;
    pub const ACTIVE_LOW: u64 = 1 << 1;
    pub const INPUT: u64 = 1 << 2;
    pub const OUTPUT: u64 = 1 << 3;
    pub const EDGE_RISING: u64 = 1 << 4;
    pub const EDGE_FALLING: u64 = 1 << 5;
    pub const EVENT_CLOCK_REALTIME: u64 = 1 << 11;
}

/// struct gpio_v2_line_attribute; `value` is its union.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Attribute {
    pub id: u32,
    pub padding: u32,
    pub value: u64,
}

/// struct gpio_v2_line_config_attribute.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct ConfigAttribute {
    pub attr: Attribute,
    pub mask: u64,
}

/// struct gpio_v2_line_config.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Config {
    pub flags: u64,
    pub num_attrs: u32,
    pub padding: [u32; 5],
    pub attrs: [ConfigAttribute; ATTRS],
}

/// struct gpio_v2_line_request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Request {
    pub offsets: [u32; LINES],
    pub consumer: [u8; NAME],
    pub config: Config,
    pub num_lines: u32,
    pub event_buffer_size: u32,
    pub padding: [u32; 5],
    pub fd: i32,
}

impl Request {
    /// For one line.
    pub(super) fn of_line(offset: u32, flags: u64, event_buffer_size: u32) -> Self {
        let (mut offsets, mut consumer) = ([0; LINES], [0; NAME]);
        offsets[0] = offset;
        consumer[..CONSUMER.len()].copy_from_slice(CONSUMER);
        Self {
            offsets,
            consumer,
            config: Config { flags, ..Config::default() },
            num_lines: 1,
            event_buffer_size,
            padding: [0; 5],
            fd: 0,
        }
    }
}

/// struct gpio_v2_line_info.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Info {
    pub name: [u8; NAME],
    pub consumer: [u8; NAME],
    pub offset: u32,
    pub num_attrs: u32,
    pub flags: u64,
    pub attrs: [Attribute; ATTRS],
    pub padding: [u32; 4],
}

/// struct gpio_v2_line_values.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Values {
    pub bits: u64,
    pub mask: u64,
}

const MAGIC: u8 = 0xb4;

pub(super) const GET_LINEINFO: Ioctl<Info> = Ioctl::new(READ | WRITE, MAGIC, 0x05);
pub(super) const GET_LINE: Ioctl<Request> = Ioctl::new(READ | WRITE, MAGIC, 0x07);
pub(super) const GET_VALUES: Ioctl<Values> = Ioctl::new(READ | WRITE, MAGIC, 0x0e);
pub(super) const SET_VALUES: Ioctl<Values> = Ioctl::new(READ | WRITE, MAGIC, 0x0f);

/// A name that ends with the array or with a zero byte.
pub(super) fn text(name: &[u8]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Numbers, sizes and offsets are those that a C compiler computes from the header of Linux 6.1.
    #[test]
    fn the_layouts_are_the_kernels() {
        assert_eq!(GET_LINEINFO.number(), 0xc100_b405_u32 as libc::Ioctl);
        assert_eq!(GET_LINE.number(), 0xc250_b407_u32 as libc::Ioctl);
        assert_eq!(GET_VALUES.number(), 0xc010_b40e_u32 as libc::Ioctl);
        assert_eq!(SET_VALUES.number(), 0xc010_b40f_u32 as libc::Ioctl);
        assert_eq!((offset_of!(Request, consumer), offset_of!(Request, config)), (256, 288));
        assert_eq!((offset_of!(Request, num_lines), offset_of!(Request, fd)), (560, 588));
        assert_eq!((offset_of!(Config, num_attrs), offset_of!(Config, attrs)), (8, 32));
        assert_eq!((size_of::<Attribute>(), offset_of!(ConfigAttribute, mask)), (16, 16));
        assert_eq!((offset_of!(Info, offset), offset_of!(Info, flags)), (64, 72));
        assert_eq!((offset_of!(Info, attrs), size_of::<Info>()), (80, 256));
        assert_eq!(size_of::<Request>(), 592);
    }

    #[test]
    fn a_request_names_its_line_and_its_user() {
        let request = Request::of_line(7, flag::INPUT | flag::EDGE_RISING, 1024);
        assert_eq!((request.offsets[..2].to_vec(), request.num_lines), (vec![7, 0], 1));
        assert_eq!((request.config.flags, request.config.num_attrs), (0x14, 0));
        assert_eq!(
            (text(&request.consumer), request.event_buffer_size),
            ("timevisor".into(), 1024)
        );
        assert_eq!(text(&[b'x'; NAME]).len(), NAME);
    }
}
