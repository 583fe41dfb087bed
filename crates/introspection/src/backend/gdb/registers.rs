//! The offsets of registers in the reply to `g`, where registers are in the order of the target
//! description (GDB manual, "Target Descriptions").
//!
//! Parses only the subset of XML that QEMU's files use.

use crate::point::Register;

/// Offsets of registers, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Registers {
    rip: usize,
    rdx: usize,
    rsp: usize,
    rsi: usize,
    rdi: usize,
    gs_base: usize,
    cr3: usize,
}

impl Registers {
    /// Parses the file that describes the processor's core registers.
    pub(super) fn parse(xml: &str) -> Option<Self> {
        let (mut at, mut all) = (0, Vec::new());
        for tag in tags(&without_comments(xml), "reg") {
            let bits: usize = attribute(tag, "bitsize")?.parse().ok()?;
            if bits == 0 || bits > 4096 || !bits.is_multiple_of(8) {
                return None;
            }
            all.push((attribute(tag, "name")?.to_owned(), at, bits));
            at += bits / 8;
        }
        let find = |wanted: &str| {
            let mut places = all.iter().filter(|(name, ..)| name == wanted);
            let (_, at, bits) = places.next()?;
            (*bits == 64 && places.next().is_none()).then_some(*at)
        };
        Some(Self {
            rip: find("rip")?,
            rdx: find("rdx")?,
            rsp: find("rsp")?,
            rsi: find("rsi")?,
            rdi: find("rdi")?,
            gs_base: find("gs_base")?,
            cr3: find("cr3")?,
        })
    }

    /// The instruction pointer, from the reply to `g`.
    pub(super) fn rip(&self, all: &[u8]) -> Option<u64> {
        at(all, self.rip)
    }

    /// The value of one register.
    pub(super) fn value(&self, all: &[u8], register: Register) -> Option<u64> {
        let place = match register {
            Register::Rdx => self.rdx,
            Register::Rsp => self.rsp,
            Register::Rsi => self.rsi,
            Register::Rdi => self.rdi,
            Register::GsBase => self.gs_base,
            Register::Cr3 => self.cr3,
        };
        at(all, place)
    }
}

fn at(all: &[u8], place: usize) -> Option<u64> {
    Some(u64::from_le_bytes(all.get(place..place + 8)?.try_into().ok()?))
}

/// The first file that a description includes; in QEMU, it describes the core registers.
pub(super) fn included(xml: &str) -> Option<String> {
    let text = without_comments(xml);
    let name = attribute(tags(&text, "xi:include").next()?, "href")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (name.len() < 64 && name.chars().all(plain)).then(|| name.to_owned())
}

fn without_comments(xml: &str) -> String {
    let mut pieces = xml.split("<!--");
    let first = pieces.next().unwrap_or_default();
    let others = pieces.filter_map(|piece| piece.split_once("-->")).map(|(_, after)| after);
    [first].into_iter().chain(others).collect()
}

/// The attributes of each tag with this name.
fn tags<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split('<').filter_map(move |piece| {
        let inside = piece.strip_prefix(name)?;
        inside.starts_with(char::is_whitespace).then(|| inside.split('>').next())?
    })
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut left = tag;
    loop {
        let (key, rest) = left.split_once("=\"")?;
        let (value, rest) = rest.split_once('"')?;
        if key.trim() == name {
            return Some(value);
        }
        left = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd">
<feature name="org.gnu.gdb.i386.core"><flags id="x" size="4"><field name="" start="22" end="31"/></flags>
<reg name="rdx" bitsize="64" type="int64" regnum="0"/><reg name="rsi" bitsize="64" type="int64"/>
<reg name="rdi" bitsize="64"/> <reg bitsize="64" name="rsp"/><reg name="rip" bitsize="64"/>
<reg name="eflags" bitsize="32" type="x"/><!--reg name="cs_base" bitsize="64"/>
<reg name="ss_base" bitsize="64"/--><reg name="gs_base" bitsize="64"/><reg name="cr3" bitsize="64"/></feature>"#;

    #[test]
    fn places() {
        let registers = Registers::parse(XML).unwrap();
        let mut all = vec![0; 60];
        all[32] = 7;
        all[44] = 8;
        all[52] = 9;
        assert_eq!(registers.rip(&all), Some(7));
        assert_eq!(registers.value(&all, Register::GsBase), Some(8));
        assert_eq!(registers.value(&all, Register::Cr3), Some(9));
        assert_eq!(registers.value(&all[..59], Register::Cr3), None);
    }

    #[test]
    fn descriptions_that_do_not_do() {
        assert_eq!(Registers::parse(&XML.replace("gs_base", "gs")), None);
        assert_eq!(Registers::parse(&XML.replacen("64", "32", 1)), None, "rdx has to have 64");
        assert_eq!(Registers::parse(&XML.replace("\"32\"", "\"31\"")), None);
        assert_eq!(Registers::parse(&XML.replace("eflags", "rip")), None, "two of a name");
        assert_eq!(Registers::parse(""), None);
    }

    #[test]
    fn includes() {
        let with =
            |name: &str| format!("<target><xi:include href=\"{name}\"/><xi:include href=\"b\"/>");
        assert_eq!(included(&with("i386-64bit.xml")).as_deref(), Some("i386-64bit.xml"));
        assert_eq!((included(&with("a:0,1#")), included("<target/>")), (None, None));
    }
}
