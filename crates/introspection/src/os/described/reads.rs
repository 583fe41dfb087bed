//! The reads of a point: checked with the file, and made for one image.

use super::error::{Fault, ensure};
use super::file::ReadTable;
use super::limits;
use super::note::{NoteRule, Number};
use crate::point::{self, Base, Read, Register};
use crate::symbols::image::{Image, ImageError};

/// One read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ReadRule {
    pub(super) name: String,
    /// Where it is in the file, for messages.
    key: String,
    base: BaseRule,
    offset: Number,
    len: Len,
    /// Without its bytes, its fields are 0; otherwise the event that needs them is refused.
    pub(super) may_fail: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum BaseRule {
    /// By the calling convention.
    Argument(u8),
    Value(Register),
    At(Register),
    From(u8),
    Symbol(String),
    Address,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Len {
    Bytes(Number),
    /// 4 bytes of a guest with 32 bits, 8 with 64.
    Argument,
}

/// The widths of guests that a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bits {
    pub(super) narrow: bool,
    pub(super) wide: bool,
}

/// Arguments on the stack of a guest with 32 bits, and in registers with 64.
const ON_STACK: i64 = 16;
const IN_REGISTERS: [Register; 3] = [Register::Rdi, Register::Rsi, Register::Rdx];

const REGISTERS: [(&str, Register); 6] = [
    ("rdi", Register::Rdi),
    ("rsi", Register::Rsi),
    ("rdx", Register::Rdx),
    ("rsp", Register::Rsp),
    ("gs_base", Register::GsBase),
    ("cr3", Register::Cr3),
];

fn register(name: &str, key: &str) -> Result<Register, Fault> {
    let found = REGISTERS.iter().find(|(known, _)| *known == name).map(|(_, register)| *register);
    found.ok_or_else(|| {
        let names = REGISTERS.map(|(name, _)| name).join(", ");
        Fault::new(key, format!("{name:?} is not a register"), format!("name one of {names}"))
    })
}

impl ReadRule {
    fn compile(
        table: &ReadTable,
        before: &[Self],
        note: &NoteRule,
        bits: Bits,
        key: &str,
    ) -> Result<Self, Fault> {
        let name = &table.name;
        limits::identifier(name, &format!("{key}.name"))?;
        let key = format!("{key}.{name}");
        ensure(
            before.iter().all(|read| read.name != *name),
            &key,
            || "two reads of this point have this name".to_owned(),
            "give each a name of its own",
        )?;
        let is_memory = table.argument.is_none() && table.register.is_none();
        ensure(
            is_memory || (table.offset.is_none() && table.len.is_none()),
            &key,
            || "an argument or a register has neither `offset` nor `len`".to_owned(),
            "remove them; read memory with `from`, `at`, `symbol` or `address`",
        )?;
        let named = [
            table.argument.is_some(),
            table.register.is_some(),
            table.at.is_some(),
            table.from.is_some(),
            table.symbol.is_some(),
            table.address.is_some(),
        ];
        ensure(
            named.iter().filter(|is| **is).count() == 1,
            &key,
            || "it has not exactly one place to read from".to_owned(),
            "give one of `argument`, `register`, `at`, `from`, `symbol` and `address`",
        )?;
        let mut offset = Number::Fixed(0);
        if let Some(table) = &table.offset {
            let range = -limits::OFFSET..=limits::OFFSET;
            offset = note.number(table, &format!("{key}.offset"), range)?;
        }
        let base = if let Some(argument) = table.argument {
            Self::argument(argument, bits, &format!("{key}.argument"))?
        } else if let Some(name) = &table.register {
            BaseRule::Value(register(name, &format!("{key}.register"))?)
        } else if let Some(name) = &table.at {
            BaseRule::At(register(name, &format!("{key}.at"))?)
        } else if let Some(from) = &table.from {
            Self::earlier(from, before, note, &format!("{key}.from"))?
        } else if let Some(symbol) = &table.symbol {
            limits::text(symbol, &format!("{key}.symbol"), limits::TEXT)?;
            BaseRule::Symbol(symbol.clone())
        } else {
            let address = table.address.unwrap_or(0);
            ensure(
                table.offset.is_none() && address >= 0,
                &format!("{key}.address"),
                || "an address is not negative, and has no `offset`".to_owned(),
                "give the address alone",
            )?;
            offset = Number::Fixed(address);
            BaseRule::Address
        };
        let len = match (&base, &table.len) {
            (BaseRule::Argument(_), _) => Len::Argument,
            (BaseRule::Value(_), _) => Len::Bytes(Number::Fixed(8)),
            (_, Some(len)) => {
                let most = i64::try_from(point::limits::DATA).unwrap_or(i64::MAX);
                Len::Bytes(note.number(len, &format!("{key}.len"), 1..=most)?)
            }
            (_, None) => {
                let problem = "memory is read without `len`";
                return Err(Fault::new(key, problem, "give the bytes to read"));
            }
        };
        Ok(Self { name: name.clone(), key, base, offset, len, may_fail: table.may_fail })
    }

    fn argument(argument: i64, bits: Bits, key: &str) -> Result<BaseRule, Fault> {
        let most = if bits.wide { IN_REGISTERS.len() as i64 } else { ON_STACK };
        let number = u8::try_from(argument).ok().filter(|_| argument < most);
        number.map(BaseRule::Argument).ok_or_else(|| {
            let problem = format!("argument {argument}; 0 to {} can be read", most - 1);
            let step = if bits.wide {
                "with `bits = [32]`, 0 to 15 can be read"
            } else {
                "trap a function with fewer arguments"
            };
            Fault::new(key, problem, step)
        })
    }

    fn earlier(from: &str, before: &[Self], note: &NoteRule, key: &str) -> Result<BaseRule, Fault> {
        let index = before.iter().position(|read| read.name == from);
        let pointer = index.and_then(|index| Some((u8::try_from(index).ok()?, before.get(index)?)));
        let Some((index, pointer)) = pointer else {
            let problem = format!("no read {from:?} is before this one");
            return Err(Fault::new(key, problem, "name a read that comes earlier at this point"));
        };
        let is_pointer = match &pointer.len {
            Len::Argument => true,
            Len::Bytes(len) => matches!(note.range_of(len), (4, 4) | (8, 8)),
        };
        ensure(
            is_pointer,
            key,
            || format!("{from} does not have 4 or 8 bytes, and is no pointer"),
            "read the pointer by itself, with len = 4 or 8",
        )?;
        Ok(BaseRule::From(index))
    }

    /// The least and the greatest number of bytes, for all guests that the file is for.
    pub(super) fn bytes(&self, note: &NoteRule, bits: Bits) -> (i64, i64) {
        match &self.len {
            Len::Argument => (if bits.narrow { 4 } else { 8 }, if bits.wide { 8 } else { 4 }),
            Len::Bytes(len) => note.range_of(len),
        }
    }

    /// The read for one image.
    ///
    /// # Errors
    /// When the image lacks its symbol.
    pub(super) fn read(&self, image: &Image<'_>, note: &[u64]) -> Result<Read, String> {
        let wide = image.is_wide();
        let mut offset = self.offset.value(note);
        let base = match &self.base {
            BaseRule::Argument(n) if wide => {
                let register = IN_REGISTERS.get(usize::from(*n)).copied();
                Base::Value(register.unwrap_or(Register::Rdi))
            }
            // Above the return address.
            BaseRule::Argument(n) => {
                offset = 4 + 4 * i64::from(*n);
                Base::Register(Register::Rsp)
            }
            BaseRule::Value(register) => Base::Value(*register),
            BaseRule::At(register) => Base::Register(*register),
            BaseRule::From(earlier) => Base::Earlier(*earlier),
            BaseRule::Symbol(symbol) => {
                let lacks = |error| lacking(image, &format!("{}.symbol", self.key), &error);
                let address = image.address(symbol).map_err(lacks)?;
                offset = address.wrapping_add_signed(offset).cast_signed();
                Base::Absolute
            }
            BaseRule::Address => Base::Absolute,
        };
        let len = match &self.len {
            Len::Argument if wide => 8,
            Len::Argument => 4,
            Len::Bytes(len) => len.value(note),
        };
        let len = u16::try_from(len).map_err(|_| format!("read {} of {len} bytes", self.name))?;
        Ok(Read { base, offset, len })
    }
}

/// What an image lacks that this key names, and perhaps what was meant.
pub(super) fn lacking(image: &Image<'_>, key: &str, error: &ImageError) -> String {
    let near = match error {
        ImageError::NoSymbol(symbol) => image.near(symbol),
        _ => None,
    };
    match near {
        Some(near) => format!("{key}: {error}; did you mean {near}?"),
        None => format!("{key}: {error}"),
    }
}

/// Checks the reads of a point: those of all points first.
pub(super) fn compile(
    common: &[ReadTable],
    own: &[ReadTable],
    note: &NoteRule,
    bits: Bits,
    key: &str,
) -> Result<Vec<ReadRule>, Fault> {
    let mut reads: Vec<ReadRule> = Vec::new();
    let own_key = format!("{key}.reads");
    let all = common.iter().map(|read| ("reads", read));
    for (key, read) in all.chain(own.iter().map(|read| (own_key.as_str(), read))) {
        ensure(
            reads.len() < point::limits::READS,
            key,
            || format!("a point has more than {} reads", point::limits::READS),
            "remove some",
        )?;
        reads.push(ReadRule::compile(read, &reads, note, bits, key)?);
    }
    let data: i64 = reads.iter().map(|read| read.bytes(note, bits).1).sum();
    ensure(
        data <= i64::try_from(point::limits::DATA).unwrap_or(i64::MAX),
        &own_key,
        || format!("a point reads {data} bytes; {} are possible", point::limits::DATA),
        "read less: only the members that the event needs",
    )?;
    Ok(reads)
}
