//! Values of events: checked with the file, and computed from what was read. Numbers are computed
//! with 128 bits and then cut to their range, so that nothing that a guest writes overflows.

use super::error::{Fault, ensure};
use super::file::{
    Choice as ChoiceText, ChoiceTable, NameTable, Or, Value as ValueText, ValueTable,
};
use super::limits;
use super::note::{NoteRule, Number};
use super::reads::{Bits, ReadRule};
use crate::os::guest_os::DecodeError;
use crate::os::reads::{Reads, name};
use crate::tasks::event::{Policy, Scheduler};
use crate::tasks::table::Task;

/// What an event may use: a point's reads, and the note.
pub(super) struct Scope<'a> {
    pub(super) reads: &'a [ReadRule],
    pub(super) note: &'a NoteRule,
    pub(super) bits: Bits,
}

/// What was read at a point.
pub(super) struct Found<'a> {
    pub(super) reads: Reads<'a>,
    /// Bit n: read n may fail.
    pub(super) may_fail: u16,
    pub(super) note: &'a [u64],
}

/// What kind of number a key wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// 32 bits.
    Word,
    /// 64 bits.
    Long,
    /// A time: may have a unit.
    Time,
    /// A priority: may be turned around.
    Priority,
    /// A nice value: may be negative.
    Nice,
    /// An exit code: its low 8 bits count.
    Code,
}

/// A number of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Value {
    source: Source,
    unit: Unit,
    subtract_from: Option<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    Constant(i64),
    Note(usize),
    Field(Field),
    /// The sum, which wraps around at the fields' size.
    Sum(Field, Field),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Unit {
    One,
    Ns(i64),
    PerSecond(Number),
}

/// Some bytes of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    read: usize,
    offset: usize,
    size: usize,
    signed: bool,
}

impl Scope<'_> {
    /// The bytes of a read from `offset` on, at least `size` of them.
    fn place(
        &self,
        read: &str,
        offset: i64,
        size: i64,
        key: &str,
    ) -> Result<(usize, usize), Fault> {
        let index = self.reads.iter().position(|rule| rule.name == read);
        let rule = index.and_then(|index| Some((index, self.reads.get(index)?)));
        let Some((index, rule)) = rule else {
            let problem = format!("no read {read:?} is at this point");
            return Err(Fault::new(key, problem, "name one of the point's reads, or of `reads`"));
        };
        let least = rule.bytes(self.note, self.bits).0;
        let end = offset.checked_add(size);
        let place = usize::try_from(offset).ok().filter(|_| end.is_some_and(|end| end <= least));
        let place = place.ok_or_else(|| {
            let problem = format!("{size} bytes at {offset} are not inside read {read} of {least}");
            Fault::new(key, problem, "read more, or give another `offset` and `size`")
        })?;
        Ok((index, place))
    }

    fn field(
        &self,
        read: &str,
        offset: i64,
        size: Option<i64>,
        signed: bool,
        key: &str,
    ) -> Result<Field, Fault> {
        let bytes = size.filter(|size| matches!(size, 1 | 2 | 4 | 8));
        let bytes = bytes.and_then(|size| usize::try_from(size).ok().zip(Some(size)));
        let Some((size, bytes)) = bytes else {
            let problem = "a field has not 1, 2, 4 or 8 bytes";
            return Err(Fault::new(key, problem, "give its `size`"));
        };
        let (read, offset) = self.place(read, offset, bytes, key)?;
        Ok(Field { read, offset, size, signed })
    }

    /// A number, or the constant that a missing key means.
    pub(super) fn value_or(
        &self,
        text: Option<&ValueText>,
        missing: i64,
        want: Want,
        key: &str,
    ) -> Result<Value, Fault> {
        text.map_or(Ok(Value::constant(missing)), |text| self.value(text, want, key))
    }

    pub(super) fn value(&self, text: &ValueText, want: Want, key: &str) -> Result<Value, Fault> {
        match text {
            Or::Constant(number) => {
                let (least, most) = match want {
                    Want::Word | Want::Priority => (0, i64::from(u32::MAX)),
                    Want::Long | Want::Time => (0, i64::MAX),
                    Want::Nice => (-20, 19),
                    Want::Code => (0, 255),
                };
                ensure(
                    (least..=most).contains(number),
                    key,
                    || format!("{number} is not {least} to {most}"),
                    "give a number in this range",
                )?;
                Ok(Value::constant(*number))
            }
            Or::Table(table) => self.read_value(table, want, key),
        }
    }

    /// A number that is read.
    pub(super) fn read_value(
        &self,
        table: &ValueTable,
        want: Want,
        key: &str,
    ) -> Result<Value, Fault> {
        let ValueTable { read, note, offset, size, signed, plus, .. } = table;
        let source = match (read, note) {
            (Some(read), None) => {
                let signed = signed.unwrap_or(false);
                let field = self.field(read, offset.unwrap_or(0), *size, signed, key)?;
                let is_long = matches!(want, Want::Long | Want::Time);
                ensure(
                    field.size <= 4 || is_long,
                    key,
                    || "this key has 4 bytes at most".to_owned(),
                    "read the low half: size = 4",
                )?;
                match plus {
                    None => Source::Field(field),
                    Some(plus) => {
                        let key = format!("{key}.plus");
                        let other = self.field(&plus.read, plus.offset, *size, signed, &key)?;
                        Source::Sum(field, other)
                    }
                }
            }
            (None, Some(note)) => {
                let has_place = offset.is_some() || size.is_some() || signed.is_some();
                ensure(
                    !has_place && plus.is_none(),
                    key,
                    || {
                        "a field of the note has no `offset`, `size`, `signed` and `plus`"
                            .to_owned()
                    },
                    "remove them; [note.fields] says where it is",
                )?;
                Source::Note(self.note.field(note, key)?)
            }
            _ => {
                let problem = "it has not exactly one of `read` and `note`";
                return Err(Fault::new(key, problem, "say where the number is"));
            }
        };
        let unit = self.unit(table, key)?;
        ensure(
            unit == Unit::One || want == Want::Time,
            key,
            || "a unit where no time is".to_owned(),
            "remove `unit_ns` and `per_second`; keys that end in ns have them",
        )?;
        ensure(
            table.subtract_from.is_none() || want == Want::Priority,
            key,
            || "`subtract_from` where no priority is".to_owned(),
            "remove it",
        )?;
        let subtract_from = table.subtract_from;
        Ok(Value { source, unit, subtract_from })
    }

    fn unit(&self, table: &ValueTable, key: &str) -> Result<Unit, Fault> {
        match (table.unit_ns, &table.per_second) {
            (None, None) => Ok(Unit::One),
            (Some(ns), None) if (1..=limits::UNIT_NS).contains(&ns) => Ok(Unit::Ns(ns)),
            (None, Some(rate)) => {
                let key = format!("{key}.per_second");
                Ok(Unit::PerSecond(self.note.number(rate, &key, 1..=i64::MAX)?))
            }
            _ => {
                let problem = format!("not one unit of 1 to {} ns", limits::UNIT_NS);
                Err(Fault::new(key, problem, "give `unit_ns`, or `per_second`"))
            }
        }
    }

    pub(super) fn name(
        &self,
        text: Option<&Or<String, NameTable>>,
        key: &str,
    ) -> Result<Name, Fault> {
        match text {
            None => Ok(Name::Known),
            Some(Or::Constant(constant)) => {
                limits::text(constant, key, limits::NAME)?;
                Ok(Name::Constant(constant.clone()))
            }
            Some(Or::Table(table)) => {
                let most = i64::try_from(crate::point::limits::DATA).unwrap_or(i64::MAX);
                let len = table.len.unwrap_or(most);
                let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or_else(|| {
                    Fault::new(key, "a name has no bytes", "give `len`, at least 1")
                })?;
                let least = table.len.unwrap_or(1);
                let (read, offset) = self.place(&table.read, table.offset, least, key)?;
                Ok(Name::Read { read, offset, len })
            }
        }
    }

    /// A policy or a scheduler.
    pub(super) fn choice<T: Named>(
        &self,
        text: &ChoiceText,
        key: &str,
    ) -> Result<Choice<T>, Fault> {
        match text {
            Or::Constant(name) => named(name, key).map(Choice::Constant),
            Or::Table(table) => {
                let ChoiceTable { read, note, offset, size, values } = table;
                let place = ValueTable {
                    read: read.clone(),
                    note: note.clone(),
                    offset: *offset,
                    size: *size,
                    ..ValueTable::default()
                };
                let number = self.read_value(&place, Want::Word, key)?;
                let names = values.as_ref();
                ensure(
                    names.is_none_or(|all| (1..=limits::VALUES).contains(&all.len())),
                    key,
                    || format!("`values` has not 1 to {} names", limits::VALUES),
                    "list the names, that of number 0 first",
                )?;
                let values = names.map(|all| all.iter().map(|name| named(name, key)).collect());
                Ok(Choice::Read { number, values: values.transpose()? })
            }
        }
    }
}

/// What a file names, or gives a number.
pub(super) trait Named: Copy + 'static {
    /// What it is, in messages.
    const WHAT: &'static str;
    /// The names that a file may have.
    const NAMES: &'static [(&'static str, Self)];
    /// Said of the last name, in messages.
    const NOTE: &'static str;

    /// By its own numbers.
    fn new(number: u32) -> Self;

    /// One that is not known.
    fn other(number: u32) -> Self;
}

impl Named for Policy {
    const WHAT: &'static str = "a policy";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("normal", Self::Normal),
        ("fifo", Self::Fifo),
        ("round_robin", Self::RoundRobin),
        ("batch", Self::Batch),
        ("idle", Self::Idle),
        ("deadline", Self::Deadline),
        ("ext", Self::Ext),
        ("keep", Self::Keep),
    ];
    const NOTE: &'static str = " (not of a task), asked (of a task)";

    fn new(number: u32) -> Self {
        Self::new(number)
    }

    fn other(number: u32) -> Self {
        Self::Other(number)
    }
}

impl Named for Scheduler {
    const WHAT: &'static str = "a scheduler";
    const NAMES: &'static [(&'static str, Self)] = &Self::ALL;
    const NOTE: &'static str = "";

    fn new(number: u32) -> Self {
        Self::new(number)
    }

    fn other(number: u32) -> Self {
        Self::Other(number)
    }
}

fn named<T: Named>(name: &str, key: &str) -> Result<T, Fault> {
    let found = T::NAMES.iter().find(|(known, _)| *known == name).map(|(_, found)| *found);
    found.ok_or_else(|| {
        let names: Vec<_> = T::NAMES.iter().map(|(name, _)| *name).collect();
        let step = format!("name one of {}{}", names.join(", "), T::NOTE);
        Fault::new(key, format!("{name:?} is not {}", T::WHAT), step)
    })
}

/// A task's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// The one that the table of tasks has.
    Known,
    Constant(String),
    Read {
        read: usize,
        offset: usize,
        len: usize,
    },
}

/// A policy or a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Choice<T> {
    Constant(T),
    /// By its number: its own numbers (of policies Linux's), or an index of the values.
    Read {
        number: Value,
        values: Option<Vec<T>>,
    },
}

pub(super) type PolicyRule = Choice<Policy>;
pub(super) type SchedulerRule = Choice<Scheduler>;

impl Value {
    pub(super) fn constant(number: i64) -> Self {
        Self { source: Source::Constant(number), unit: Unit::One, subtract_from: None }
    }

    fn number(&self, found: &Found<'_>) -> Result<i128, DecodeError> {
        let number: i128 = match &self.source {
            Source::Constant(number) => (*number).into(),
            Source::Note(field) => found.note.get(*field).copied().unwrap_or(0).into(),
            Source::Field(field) => field.number(found.field(field)?),
            Source::Sum(one, other) => {
                let (a, b) = (found.field(one)?, found.field(other)?);
                let sum = u64::from_le_bytes(a).wrapping_add(u64::from_le_bytes(b));
                one.number(sum.to_le_bytes())
            }
        };
        // A number has 64 bits, a unit fewer than 63.
        let number = match &self.unit {
            Unit::One => number,
            Unit::Ns(ns) => number.saturating_mul((*ns).into()),
            Unit::PerSecond(rate) => {
                let rate = i128::from(rate.value(found.note).max(1));
                number.saturating_mul(1_000_000_000).checked_div_euclid(rate).unwrap_or(0)
            }
        };
        Ok(self.subtract_from.map_or(number, |from| i128::from(from).saturating_sub(number)))
    }

    pub(super) fn u32(&self, found: &Found<'_>) -> Result<u32, DecodeError> {
        let number = self.number(found)?.clamp(0, u32::MAX.into());
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    pub(super) fn i32(&self, found: &Found<'_>) -> Result<i32, DecodeError> {
        let number = self.number(found)?.clamp(i32::MIN.into(), i32::MAX.into());
        Ok(i32::try_from(number).unwrap_or(0))
    }

    pub(super) fn u64(&self, found: &Found<'_>) -> Result<u64, DecodeError> {
        let number = self.number(found)?.clamp(0, u64::MAX.into());
        Ok(u64::try_from(number).unwrap_or(u64::MAX))
    }

    pub(super) fn i64(&self, found: &Found<'_>) -> Result<i64, DecodeError> {
        let number = self.number(found)?.clamp(i64::MIN.into(), i64::MAX.into());
        Ok(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// The low 8 bits; a negative number is two's complement.
    pub(super) fn low_byte(&self, found: &Found<'_>) -> Result<u8, DecodeError> {
        let [low, ..] = self.number(found)?.to_le_bytes();
        Ok(low)
    }

    pub(super) fn is_zero(&self, found: &Found<'_>) -> Result<bool, DecodeError> {
        Ok(self.number(found)? == 0)
    }
}

impl Field {
    /// The number in the low bytes.
    fn number(&self, mut bytes: [u8; 8]) -> i128 {
        let is_negative = self.signed
            && self
                .size
                .checked_sub(1)
                .is_some_and(|top| bytes.get(top).is_some_and(|byte| *byte >= 0x80));
        bytes
            .iter_mut()
            .skip(self.size)
            .for_each(|byte| *byte = if is_negative { 0xff } else { 0 });
        if self.signed {
            i64::from_le_bytes(bytes).into()
        } else {
            u64::from_le_bytes(bytes).into()
        }
    }
}

impl Found<'_> {
    /// All bytes of a read; none of one that failed and may.
    fn bytes(&self, n: usize) -> Result<&[u8], DecodeError> {
        let bit = u32::try_from(n).ok().and_then(|n| 1u16.checked_shl(n)).unwrap_or(0);
        if self.may_fail & self.reads.raw.failed & bit != 0 { Ok(&[]) } else { self.reads.all(n) }
    }

    /// A field with zeros above it; zero of a read that failed and may.
    fn field(&self, field: &Field) -> Result<[u8; 8], DecodeError> {
        let bytes = self.bytes(field.read)?;
        let mut whole = [0; 8];
        if bytes.is_empty() {
            return Ok(whole);
        }
        let error = DecodeError::Read { point: self.reads.raw.point, read: field.read };
        let bytes = bytes.get(field.offset..).and_then(|rest| rest.get(..field.size));
        let (room, bytes) = whole.get_mut(..field.size).zip(bytes).ok_or(error)?;
        room.copy_from_slice(bytes);
        Ok(whole)
    }
}

impl Name {
    /// The name of the task that the table has as `known`.
    pub(super) fn text(
        &self,
        found: &Found<'_>,
        known: Option<&Task>,
    ) -> Result<String, DecodeError> {
        match self {
            Self::Known => Ok(known.map(|task| task.thread.comm.clone()).unwrap_or_default()),
            Self::Constant(text) => Ok(text.clone()),
            Self::Read { read, offset, len } => {
                let bytes = found.bytes(*read)?.get(*offset..).unwrap_or_default();
                Ok(name(bytes.get(..*len).unwrap_or(bytes)))
            }
        }
    }
}

impl<T: Named> Choice<T> {
    pub(super) fn chosen(&self, found: &Found<'_>) -> Result<T, DecodeError> {
        Ok(match self {
            Self::Constant(chosen) => *chosen,
            Self::Read { number, values: None } => T::new(number.u32(found)?),
            Self::Read { number, values: Some(values) } => {
                let number = number.u32(found)?;
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                values.get(index).copied().unwrap_or(T::other(number))
            }
        })
    }
}
