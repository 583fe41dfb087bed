//! The ACPI table that shows a page at a fixed guest address to a stock guest kernel.
//!
//! One device with the hardware id that Linux's ptp_vmclock driver binds to
//! (drivers/ptp/ptp_vmclock.c) and one memory resource. An encoder for exactly this table, not for
//! AML in general; its output equals iasl's (tests below).

/// Size of the memory resource that the table declares.
const RESOURCE_BYTES: u64 = 4096;

/// Encodes the SSDT for a page at guest-physical `address`, for `-acpitable file=`.
///
/// In ASL: device `\_SB.VCLK` with `_HID` AMZNC10C, `_CID` and `_DDN` VMCLOCK, `_STA` 0xF, and a
/// `_CRS` of one QWordMemory (Cacheable, ReadOnly) of 4096 bytes; see testdata/ssdt-100000000.asl.
#[must_use]
pub fn ssdt(address: u64) -> Vec<u8> {
    let device = [
        b"VCLK".to_vec(),
        name(b"_HID", &string("AMZNC10C")),
        name(b"_CID", &string("VMCLOCK")),
        name(b"_DDN", &string("VMCLOCK")),
        name(b"_STA", &[BYTE_PREFIX, 0x0f]),
        name(b"_CRS", &buffer(&resources(address))),
    ]
    .concat();
    let scope = [b"\\_SB_".to_vec(), package(&[0x5b, 0x82], &device)].concat();
    table(&package(&[0x10], &scope))
}

const BYTE_PREFIX: u8 = 0x0a;
const STRING_PREFIX: u8 = 0x0d;

/// ACPI 6.5, 5.2.6: the common table header, then the definition block. The sum of all bytes is
/// zero.
fn table(block: &[u8]) -> Vec<u8> {
    let length = u32::try_from(36 + block.len()).unwrap_or(u32::MAX);
    let mut table = Vec::new();
    table.extend(b"SSDT");
    table.extend(length.to_le_bytes());
    table.extend([2, 0]); // revision, checksum
    table.extend(b"TIMEVR");
    table.extend(b"VMCLOCK\0");
    table.extend(1u32.to_le_bytes());
    table.extend(b"TMVR"); // creator: this encoder
    table.extend(1u32.to_le_bytes());
    table.extend(block);
    table[9] = table.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// ACPI 6.5, 20.2.4: an opcode, the package's length (which counts its own bytes), the contents.
fn package(opcode: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut out = opcode.to_vec();
    if let Ok(short @ ..=0x3f) = u8::try_from(contents.len() + 1) {
        out.push(short);
    } else {
        let [low, high, ..] = (contents.len() + 2).to_le_bytes();
        out.push(0x40 | (low & 0x0f));
        out.push((high << 4) | (low >> 4));
    }
    out.extend(contents);
    out
}

/// DefName.
fn name(segment: &[u8; 4], object: &[u8]) -> Vec<u8> {
    [&[0x08], segment.as_slice(), object].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&[STRING_PREFIX], text.as_bytes(), &[0]].concat()
}

/// DefBuffer of at most 255 bytes.
fn buffer(bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    package(&[0x11], &[&[BYTE_PREFIX, length], bytes].concat())
}

/// ACPI 6.5, 6.4.3.5.1: a QWord address space descriptor and the end tag.
fn resources(address: u64) -> Vec<u8> {
    let mut out = vec![0x8a, 0x2b, 0x00];
    // Memory; consumer, positive decode, fixed minimum and maximum; cacheable, read-only.
    out.extend([0x00, 0x0d, 0x02]);
    for word in [0, address, address + (RESOURCE_BYTES - 1), 0, RESOURCE_BYTES] {
        out.extend(word.to_le_bytes());
    }
    out.extend([0x79, 0x00]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `iasl -p OUT testdata/ssdt-ADDRESS.asl`, version 20200925, made the .aml files.
    #[test]
    fn the_bytes_are_those_of_iasl() {
        let golden: [(u64, &[u8]); 2] = [
            (0x1_0000_0000, include_bytes!("../testdata/ssdt-100000000.aml")),
            (0x1_4000_0000, include_bytes!("../testdata/ssdt-140000000.aml")),
        ];
        for (address, theirs) in golden {
            let ours = ssdt(address);
            assert_eq!(ours.len(), theirs.len());
            for (offset, (our, their)) in ours.iter().zip(theirs).enumerate() {
                // The checksum and the creator's name and version differ, nothing else.
                let differs = offset == 9 || (28..36).contains(&offset);
                assert!(differs || our == their, "offset {offset}: {our:02x}, iasl {their:02x}");
            }
            assert_eq!(theirs.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
            assert_eq!(ours.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        }
    }
}
